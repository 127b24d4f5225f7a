// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDPLAN_RUNTIME_CLI_NCCL_ENGINE_HPP
#define SHARDPLAN_RUNTIME_CLI_NCCL_ENGINE_HPP

namespace shardplan::cli {

/// engine_error where the engine nccl is not built, or finds no GPU.
void require_nccl();

}  // namespace shardplan::cli
#endif  // SHARDPLAN_RUNTIME_CLI_NCCL_ENGINE_HPP
