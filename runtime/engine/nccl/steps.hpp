// SPDX-License-Identifier: Apache-2.0
// Of which calls of NCCL one collective of ours is made, for one member.
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_STEPS_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_STEPS_HPP

#include <vector>

#include "runtime/engine/request.hpp"

namespace shardplan::runtime {

enum class nccl_function : unsigned char {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  reduce,
  send,
  receive,
  copy
};

constexpr std::string_view name_of(nccl_function k) {
  constexpr std::string_view names[] = {"ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclBroadcast",
                                        "ncclReduce",    "ncclSend",      "ncclRecv",          "cudaMemcpyAsync"};
  return names[static_cast<std::size_t>(k)];
}

/// Counts and offsets in elements; `count` as NCCL counts: of all_gather the part that is sent, of reduce_scatter the
/// part that is received.
struct nccl_step {
  nccl_function kind{};
  num from = 0;  ///< offset in the request's `in`; -1: a member that only receives
  num to = 0;    ///< offset in the request's `out`; -1: a member that only sends
  num count = 0;
  num peer = -1;  ///< member: root, destination or source
  friend bool operator==(const nccl_step&, const nccl_step&) = default;
};

/// The steps of member `index` of n > 1, all to be called as one group of NCCL; what has no elements is left out. Of a
/// barrier, of sends and of receives there are none.
/// pre: disagreement() of all members' calls is ""
std::vector<nccl_step> nccl_steps_of(const request& call, num index, num n);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_STEPS_HPP
