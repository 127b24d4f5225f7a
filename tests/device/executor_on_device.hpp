// SPDX-License-Identifier: Apache-2.0
// The executor on the kernels' source, compiled once: in f64 with memory of the host and the engine of threads as it
// is, in f32 and bf16 with memory that the host cannot touch.
#ifndef SHARDPLAN_TESTS_DEVICE_EXECUTOR_ON_DEVICE_HPP
#define SHARDPLAN_TESTS_DEVICE_EXECUTOR_ON_DEVICE_HPP

#include "runtime/device/cuda/device.hpp"
#include "runtime/sharded/run.hpp"
#include "tests/device/guarded.hpp"

namespace shardplan::runtime {

using kernels_on_host = cuda::cuda_device<cuda::host_launcher>;
using kernels_on_guarded = cuda::cuda_device<guarded::launcher>;

extern template gathered_result<double> run_sharded<double, planned_methods>(thread_communicator&, const checkpoint&,
                                                                             const plan_spec&, num, const row_loader&,
                                                                             const run_options&,
                                                                             const kernels_on_host&);
extern template gathered_result<float> run_sharded<float, planned_methods>(guarded::communicator&, const checkpoint&,
                                                                           const plan_spec&, num, const row_loader&,
                                                                           const run_options&,
                                                                           const kernels_on_guarded&);
extern template gathered_result<float> run_sharded<bf16, planned_methods>(guarded::communicator&, const checkpoint&,
                                                                          const plan_spec&, num, const row_loader&,
                                                                          const run_options&,
                                                                          const kernels_on_guarded&);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_TESTS_DEVICE_EXECUTOR_ON_DEVICE_HPP
