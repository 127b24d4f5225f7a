// SPDX-License-Identifier: Apache-2.0
// One line of an account of communication: what a plan predicts and what an engine records are lists of these.
#ifndef SHARDPLAN_LEDGER_HPP
#define SHARDPLAN_LEDGER_HPP

#include <shardplan/axes.hpp>

namespace shardplan {

enum class operation : unsigned char {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  gather,
  send,
  receive,
  barrier,
};

/// Why something is communicated. `check` and `collect` belong to whoever runs a plan, the others to the plan.
enum class phase : unsigned char { parameters, forward, loss, backward, gradients, collect, check };

constexpr text_view name_of(operation o) {
  constexpr text_view names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                                 "gather",     "send",       "receive",        "barrier"};
  return names[static_cast<std::size_t>(o)];
}
constexpr text_view name_of(phase p) {
  constexpr text_view names[] = {"parameters", "forward", "loss", "backward", "gradients", "collect", "check"};
  return names[static_cast<std::size_t>(p)];
}

/// One collective call of one rank. Calls on groups of one rank send nothing and have no entry; nor have barriers.
struct ledger_entry {
  operation what{};
  axis_set axes{};
  num group_size = 1;
  /// Bytes of the buffer this rank handed over, before any algorithm:
  ///   all_reduce, broadcast  the whole inout buffer, on every member (so on those that only receive a broadcast too)
  ///   all_gather, gather     this rank's own part
  ///   reduce_scatter         the input: the parts of all members
  ///   all_to_all             the input: what goes to all members, this rank included
  ///   send                   the message
  ///   receive                the message (the buffer filled), so that a send and its receive say the same
  num bytes = 0;
  /// Of `bytes`, those that never leave this rank: its own part in reduce_scatter and all_to_all, all of a message to
  /// itself; the whole of a gather on the root; else 0.
  num kept = 0;
  bool root = false;  ///< this rank is the root of the broadcast or gather
  phase why{};
  num layer = -1;  ///< -1: none

  friend constexpr bool operator==(const ledger_entry&, const ledger_entry&) = default;
};

/// Bytes this rank puts on the wire with the usual bandwidth-optimal algorithm (n = group_size):
///   all_reduce      2 * (n - 1) / n * bytes, rounded up (ring: reduce_scatter, then all_gather)
///   all_gather      (n - 1) * bytes (ring: a rank forwards n - 1 parts; of its own size when parts are even)
///   broadcast       (n - 1) * bytes on the root, 0 elsewhere (the total is the same for every algorithm)
///   reduce_scatter, all_to_all, gather, send   bytes - kept
///   receive, barrier   0
constexpr num wire_bytes(const ledger_entry& e) {
  const num others = e.group_size - 1;
  switch (e.what) {
    case operation::all_reduce:
      return ceil_div(2 * others * e.bytes, e.group_size);
    case operation::all_gather:
      return others * e.bytes;
    case operation::broadcast:
      return e.root ? others * e.bytes : 0;
    case operation::reduce_scatter:
    case operation::all_to_all:
    case operation::gather:
    case operation::send:
      return e.bytes - e.kept;
    case operation::receive:
    case operation::barrier:
      return 0;
  }
  return 0;
}

}  // namespace shardplan
#endif  // SHARDPLAN_LEDGER_HPP
