// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDPLAN_RUNTIME_CLI_NCCL_ENGINE_HPP
#define SHARDPLAN_RUNTIME_CLI_NCCL_ENGINE_HPP

#include "runtime/cli/plan_engine.hpp"

namespace shardplan::cli {

/// Takes a GPU, and meets the other processes that a launcher started; each is one rank. engine_error without a GPU.
std::unique_ptr<plan_engine> make_nccl_engine(std::chrono::milliseconds timeout, printer print);

}  // namespace shardplan::cli
#endif  // SHARDPLAN_RUNTIME_CLI_NCCL_ENGINE_HPP
