// SPDX-License-Identifier: Apache-2.0
// The executor on a GPU, over NCCL.
#ifndef SHARDPLAN_TESTS_DEVICE_EXECUTOR_ON_GPU_HPP
#define SHARDPLAN_TESTS_DEVICE_EXECUTOR_ON_GPU_HPP

#include "runtime/device/cuda/device.hpp"
#include "runtime/device/cuda/launcher.hpp"
#include "runtime/engine/nccl/nccl.hpp"
#include "runtime/sharded/run.hpp"

namespace shardplan::runtime {

using gpu = cuda::cuda_device<cuda::gpu_launcher>;

extern template gathered_result<float> run_sharded<float, planned_methods>(nccl_communicator&, const checkpoint&,
                                                                           const plan_spec&, num, const row_loader&,
                                                                           const run_options&, const gpu&);
extern template gathered_result<double> run_sharded<double, planned_methods>(nccl_communicator&, const checkpoint&,
                                                                             const plan_spec&, num, const row_loader&,
                                                                             const run_options&, const gpu&);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_TESTS_DEVICE_EXECUTOR_ON_GPU_HPP
