// SPDX-License-Identifier: Apache-2.0
// The choices a plan makes beside its degrees: how attention crosses context-parallel ranks, how tokens reach
// experts, in which order a pipeline runs, and how much of a parameter's state is sharded.
#ifndef SHARDPLAN_METHODS_HPP
#define SHARDPLAN_METHODS_HPP

#include <shardplan/meta.hpp>

namespace shardplan {

/// Context-parallel attention. The first of each enumeration is the default of the plan text.
enum class cp_method : unsigned char {
  ulysses,       ///< all-to-all from tokens to heads and back: every rank attends whole rows with some heads
  ring,          ///< key/value blocks travel round the ranks, softmax is accumulated online
  all_gather,    ///< every rank gathers all keys and values
  ulysses_ring,  ///< Ulysses inside groups of U neighbours, a ring over the R groups
};
enum class dispatch_kind : unsigned char {
  dispatch,    ///< every (token, expert) pair travels to the expert and back: all-to-all with uneven counts
  all_reduce,  ///< rows are replicated, every rank adds what its experts contribute
  all_gather,  ///< rows are gathered, results are reduce-scattered
};
enum class schedule_kind : unsigned char { one_f_one_b, gpipe, interleaved };
enum class zero_stage : unsigned char {
  zero3,  ///< parameters, gradients and optimizer state sharded
  zero1,  ///< optimizer state sharded
  zero2,  ///< optimizer state and gradients sharded
};

constexpr text_view name_of(cp_method m) {
  constexpr text_view names[] = {"ulysses", "ring", "all_gather", "ulysses_ring"};
  return names[static_cast<std::size_t>(m)];
}
constexpr text_view name_of(dispatch_kind d) {
  constexpr text_view names[] = {"dispatch", "all_reduce", "all_gather"};
  return names[static_cast<std::size_t>(d)];
}
constexpr text_view name_of(schedule_kind s) {
  constexpr text_view names[] = {"1f1b", "gpipe", "interleaved"};
  return names[static_cast<std::size_t>(s)];
}
constexpr text_view name_of(zero_stage z) {
  constexpr text_view names[] = {"zero3", "zero1", "zero2"};
  return names[static_cast<std::size_t>(z)];
}

}  // namespace shardplan
#endif  // SHARDPLAN_METHODS_HPP
