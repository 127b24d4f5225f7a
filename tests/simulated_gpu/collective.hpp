// SPDX-License-Identifier: Apache-2.0
// The calls of one group on one communicator of the simulated NCCL, as an operation of a stream.
#ifndef SHARDPLAN_TESTS_SIMULATED_GPU_COLLECTIVE_HPP
#define SHARDPLAN_TESTS_SIMULATED_GPU_COLLECTIVE_HPP

#include <nccl.h>

#include <deque>

#include "tests/simulated_gpu/machine.hpp"
#include "tests/simulated_gpu/rings.hpp"

struct ncclComm {
  int n = 0, rank = 0, device = 0;
  bool blocking = true;
  bool all_met = false, aborted = false;
  ncclResult_t state = ncclInProgress;
  std::unique_ptr<simulated::rings> line;
  std::deque<std::uint64_t> order;              // of what is under way
  std::uint64_t next = 0;                       // number
  std::vector<std::function<void()>> to_start;  // what NCCL has not put on streams yet
};

namespace simulated {

using communicator = std::shared_ptr<ncclComm>;

enum class nccl_kind : unsigned char { all_reduce, all_gather, reduce_scatter, broadcast, reduce, send, receive };

struct nccl_call {
  nccl_kind kind{};
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type{};
  ncclRedOp_t op{};
  int peer = -1;  // or root
};

std::size_t size_of(ncclDataType_t type);  ///< 0: not simulated
/// Bytes that the call reads, and writes, as member `rank` of n; 0 where it does not.
std::size_t bytes_in(const nccl_call& c, int rank, int n);
std::size_t bytes_out(const nccl_call& c, int rank, int n);

/// Goes on whenever it is called, once all that the communicator began before has ended. Inputs are read when it
/// begins, and outputs hold NaN from then on until it ends. A peer that never comes: it never ends. One that calls
/// something else: neither.
operation exchange_of(communicator comm, std::vector<nccl_call> calls);

}  // namespace simulated
#endif  // SHARDPLAN_TESTS_SIMULATED_GPU_COLLECTIVE_HPP
