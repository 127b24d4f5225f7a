// SPDX-License-Identifier: Apache-2.0
// The executor on the kernels' source, compiled once: threads for ranks, the host for a device.
#ifndef SHARDPLAN_TESTS_DEVICE_EXECUTOR_ON_DEVICE_HPP
#define SHARDPLAN_TESTS_DEVICE_EXECUTOR_ON_DEVICE_HPP

#include "runtime/device/cuda/device.hpp"
#include "runtime/engine/threads/threads.hpp"
#include "runtime/sharded/run.hpp"

namespace shardplan::runtime {

using kernels_on_host = cuda::cuda_device<cuda::host_launcher>;

extern template gathered_result<float> run_sharded<float, planned_methods>(thread_communicator&, const checkpoint&,
                                                                           const plan_spec&, num, const row_loader&,
                                                                           const run_options&, const kernels_on_host&);
extern template gathered_result<double> run_sharded<double, planned_methods>(thread_communicator&, const checkpoint&,
                                                                             const plan_spec&, num, const row_loader&,
                                                                             const run_options&,
                                                                             const kernels_on_host&);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_TESTS_DEVICE_EXECUTOR_ON_DEVICE_HPP
