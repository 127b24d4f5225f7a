// SPDX-License-Identifier: Apache-2.0
// What a rank may ask of an engine. Everything above the engines is written against this concept alone.
//
// Common to all collectives:
// - Every member of a group calls the same operations on it in the same order; an object belongs to one rank, and only
//   that rank's thread calls it. Different groups are independent.
// - Sizes, counts and offsets are in elements. Parts lie in group-member order, without gaps. Zero is a fine count.
// - Reductions are computed in group-member order for every element, ((m0 op m1) op m2) ..., whatever the timing, so a
//   repeated run gives the same bits. Sums of bf16 are formed in float and rounded once. Integers wrap; a NaN survives
//   max and min.
// - Buffers of real numbers lie in the memory of what the rank computes on; those of integers, which often steer, all
//   of one call there or all in the host's. Only the engine nccl's ranks have two memories.
// - On return the buffers are the caller's again. They are not touched after a throw either.
// - engine_error: members disagree about the operation, element type, root, counts or sizes (the text names two ranks,
//   the operation and the sizes); a member died, returned or did not come within the timeout.
// - Buffers of one call must not overlap, but a part may lie where it belongs in the whole: `mine` may be exactly this
//   member's part of `all`.
#ifndef SHARDPLAN_RUNTIME_ENGINE_COMMUNICATOR_HPP
#define SHARDPLAN_RUNTIME_ENGINE_COMMUNICATOR_HPP

#include <concepts>  // same_as
#include <cstdint>   // int32_t
#include <shardplan/mesh.hpp>
#include <span>  // span

#include "runtime/engine/recorder.hpp"
#include "runtime/real.hpp"

namespace shardplan::runtime {

enum class reduce_op : unsigned char { sum, max, min };

constexpr std::string_view name_of(reduce_op op) {
  constexpr std::string_view names[] = {"sum", "max", "min"};
  return names[static_cast<std::size_t>(op)];
}

/// What can be communicated.
template <class T>
concept Element = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, bf16> ||
    std::same_as<T, std::int64_t> || std::same_as<T, std::uint64_t> || std::same_as<T, std::int32_t>;

/// A handle of a group, cheap to copy, valid as long as its communicator.
template <class G>
concept CommunicatorGroup = std::copyable<G> && requires(const G& g, num i) {
  { g.size() } -> std::same_as<num>;
  { g.index() } -> std::same_as<num>;    // which member this rank is
  { g.member(i) } -> std::same_as<num>;  // rank of member i
  { g.axes() } -> std::same_as<axis_set>;
};

/// The operations for one element type; n = g.size(), me = g.index().
template <class C, class T>
concept CommunicatesElement = requires(C& c, const typename C::group_type& g, std::span<T> out, std::span<const T> in,
                                       std::span<const num> counts, num member, reduce_op op) {
  c.all_reduce(g, out, op);                  // inout (k), the same k on all
  c.all_gather(g, in, out);                  // mine (k) -> all (n * k)
  c.all_gather(g, in, out, counts);          // mine (counts[me]) -> all (sum of counts); all members know all counts
  c.reduce_scatter(g, in, out);              // all (n * k) -> mine (k), summed
  c.reduce_scatter(g, in, out, counts);      // all (sum of counts) -> mine (counts[me]), summed
  c.all_to_all(g, in, counts, out, counts);  // send, send_counts (n) -> receive, receive_counts (n)
  c.broadcast(g, out, member);               // inout (k), from the root to all
  c.gather(g, in, out, counts, member);      // mine (counts[me]) -> all (sum of counts) on the root, empty elsewhere
  c.send(g, in, member);      // buffered: returns without waiting; matched in order per (group, phase, from, to)
  c.receive(g, out, member);  // the length must be the message's
  // The same, to compute while it goes on: the buffers are the engine's until finish() of what is returned.
  { c.begin_all_gather(g, in, out, counts) } -> std::same_as<typename C::pending>;
  { c.begin_receive(g, out, member) } -> std::same_as<typename C::pending>;
};

template <class C>
concept Communicator = CommunicatorGroup<typename C::group_type> && CommunicatesElement<C, float> &&
    CommunicatesElement<C, double> && CommunicatesElement<C, bf16> && CommunicatesElement<C, std::int64_t> &&
    CommunicatesElement<C, std::uint64_t> && CommunicatesElement<C, std::int32_t> &&
    requires(C& c, const C& fixed, const typename C::group_type& g, const rank_group& ranks, axis_set axes, phase why,
             num layer) {
  { fixed.rank() } -> std::same_as<num>;
  { fixed.world_size() } -> std::same_as<num>;
  { c.group(ranks, axes) } -> std::same_as<typename C::group_type>;  // cached: ask again at no cost
  c.barrier(g);
  // Returns when members have come to receive what was sent to them over the group in this phase, where sends wait for
  // that; they must come without waiting for what this rank does next. Before work that a message is to overlap.
  c.flush(g);
  c.label(why, layer);  // what the next calls are for, in the ledger and in messages
  { c.ledger() } -> std::same_as<recorder&>;
  c.check_abort();  // leaves by an exception when the run has failed elsewhere: for long work between collectives
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_COMMUNICATOR_HPP
