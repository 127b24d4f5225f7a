// SPDX-License-Identifier: Apache-2.0
// The executor on a GPU and the engine of NCCL, compiled once per type: whoever includes this does not instantiate it
// again.
#ifndef SHARDPLAN_RUNTIME_CLI_NCCL_INSTANCES_HPP
#define SHARDPLAN_RUNTIME_CLI_NCCL_INSTANCES_HPP

#include "runtime/device/cuda/device.hpp"
#include "runtime/device/cuda/launcher.hpp"
#include "runtime/engine/nccl/nccl.hpp"
#include "runtime/sharded/run.hpp"

namespace shardplan::runtime {

/// What a rank of the engine nccl computes on.
using gpu = cuda::cuda_device<cuda::gpu_launcher>;
static_assert(Device<gpu>);

extern template gathered_result<float> run_sharded<float, planned_methods>(nccl_communicator&, const checkpoint&,
                                                                           const plan_spec&, num, const row_loader&,
                                                                           const run_options&, const gpu&);
extern template gathered_result<double> run_sharded<double, planned_methods>(nccl_communicator&, const checkpoint&,
                                                                             const plan_spec&, num, const row_loader&,
                                                                             const run_options&, const gpu&);
extern template gathered_result<float> run_sharded<bf16, planned_methods>(nccl_communicator&, const checkpoint&,
                                                                          const plan_spec&, num, const row_loader&,
                                                                          const run_options&, const gpu&);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CLI_NCCL_INSTANCES_HPP
