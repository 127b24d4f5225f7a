// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_NCCL_ERROR_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_NCCL_ERROR_HPP

#include <nccl.h>

#include <string>
#include <string_view>

#include "runtime/engine/nccl/remote_error.hpp"

namespace shardplan::runtime::detail {

/// Throws engine_error unless the call went well or is under way, as in
///   ncclAllReduce: unhandled system error (connection refused by ...)
inline void check(ncclResult_t code, std::string_view call, ncclComm_t comm = nullptr) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  const char* const more = ncclGetLastError(comm);
  const std::string text = std::string(call) + ": " + ncclGetErrorString(code) +
                           (more != nullptr && *more != '\0' ? " (" + std::string(more) + ")" : "");
  if (code == ncclRemoteError) throw remote_error(text);
  throw engine_error(text);
}

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_NCCL_ERROR_HPP
