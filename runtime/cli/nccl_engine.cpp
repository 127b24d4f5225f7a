// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/nccl_engine.hpp"

#include "runtime/cli/nccl_instances.hpp"
#include "runtime/cli/process_engine.hpp"
#include "runtime/engine/nccl/process.hpp"

namespace shardplan::cli {

std::unique_ptr<plan_engine> make_nccl_engine(std::chrono::milliseconds timeout, printer print) {
  return std::make_unique<process_engine<runtime::nccl_process>>(
      engine_kind::nccl, std::make_unique<runtime::nccl_process>(timeout), std::move(print));
}

}  // namespace shardplan::cli
