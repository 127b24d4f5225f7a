// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/nccl_instances.hpp"

namespace shardplan::runtime {

template gathered_result<float> run_sharded<bf16, planned_methods>(nccl_communicator&, const checkpoint&,
                                                                   const plan_spec&, num, const row_loader&,
                                                                   const run_options&, const gpu&);

}  // namespace shardplan::runtime
