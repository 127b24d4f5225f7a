// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/nccl_engine.hpp"

#include <string>

#include "runtime/error.hpp"
#ifdef SHARDPLAN_HAS_NCCL
#include "runtime/engine/nccl/process.hpp"
#endif

namespace shardplan::cli {

void require_nccl() {
#ifdef SHARDPLAN_HAS_NCCL
  const std::string obstacle = runtime::nccl_obstacle();
#else
  const std::string obstacle = "the engine nccl is not built into this command, which was built without CUDA";
#endif
  if (!obstacle.empty()) throw runtime::engine_error(obstacle + "; use --engine threads");
}

}  // namespace shardplan::cli
