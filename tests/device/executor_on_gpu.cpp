// SPDX-License-Identifier: Apache-2.0
// What links it shows that the executor compiles for a GPU, and that it launches no kernel that no .cu file names.
#include "tests/device/executor_on_gpu.hpp"

namespace shardplan::runtime {

static_assert(Device<gpu>);

template gathered_result<float> run_sharded<float, planned_methods>(nccl_communicator&, const checkpoint&,
                                                                    const plan_spec&, num, const row_loader&,
                                                                    const run_options&, const gpu&);
template gathered_result<double> run_sharded<double, planned_methods>(nccl_communicator&, const checkpoint&,
                                                                      const plan_spec&, num, const row_loader&,
                                                                      const run_options&, const gpu&);

}  // namespace shardplan::runtime
