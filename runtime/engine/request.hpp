// SPDX-License-Identifier: Apache-2.0
// One collective call with the element type taken off, so that an engine is written once, on bytes.
#ifndef SHARDPLAN_RUNTIME_ENGINE_REQUEST_HPP
#define SHARDPLAN_RUNTIME_ENGINE_REQUEST_HPP

#include <cstddef>  // byte
#include <string>
#include <vector>

#include "runtime/engine/communicator.hpp"
#include "runtime/error.hpp"

namespace shardplan::runtime {

enum class element_type : unsigned char { f32, f64, i64, u64, i32, bf16 };

template <Element T>
inline constexpr element_type element_type_of = std::same_as<T, float>           ? element_type::f32
                                                : std::same_as<T, double>        ? element_type::f64
                                                : std::same_as<T, std::int64_t>  ? element_type::i64
                                                : std::same_as<T, std::uint64_t> ? element_type::u64
                                                : std::same_as<T, std::int32_t>  ? element_type::i32
                                                                                 : element_type::bf16;
constexpr std::string_view name_of(element_type t) {
  constexpr std::string_view names[] = {"float", "double", "int64", "uint64", "int32", "bf16"};
  return names[static_cast<std::size_t>(t)];
}
constexpr num size_of(element_type t) {
  constexpr num sizes[] = {4, 8, 8, 8, 4, 2};
  return sizes[static_cast<std::size_t>(t)];
}

/// Sizes and counts in elements. Every operation hands over `in` and fills `out`; where it works in place both are the
/// same buffer.
struct request {
  operation what{};
  element_type type{};
  reduce_op reduce{};
  num peer = -1;  ///< member: root of broadcast and gather, destination of send, source of receive
  const std::byte* in = nullptr;
  num in_size = 0;
  std::byte* out = nullptr;
  num out_size = 0;
  std::span<const num> counts{};          ///< uneven parts of all_gather, reduce_scatter, gather; all_to_all's sends
  std::span<const num> receive_counts{};  ///< of all_to_all
  axis_set axes{};
  phase why{};
  num layer = -1;

  num in_bytes() const { return in_size * size_of(type); }
  num out_bytes() const { return out_size * size_of(type); }
};

/// "tp", "fsdp+cp", "no axis"
std::string describe(axis_set axes);
/// "all_reduce(sum) of 12 double over tp (forward, layer 3)"
std::string describe(const request& call);
/// "rank 3", "ranks 0, 2, 3"
std::string describe_ranks(std::span<const num> ranks);

/// What is wrong with one call of all members of a group, "" when nothing is: the members' calls (n), in member order,
/// and their ranks (n). The same for every member that asks, and only calls without fault touch each other's buffers.
std::string disagreement(std::span<const request* const> calls, std::span<const num> ranks);

/// An engine_error about several ranks, whose text names them: run() puts no rank in front of it.
class collective_error : public engine_error {
 public:
  using engine_error::engine_error;
};

/// The ranks of the group's members. collective_error when `rank` is not member `ranks.index`, or a member is outside
/// the world or there twice.
std::vector<num> require_members(const rank_group& ranks, axis_set axes, num rank, num world_size);
/// collective_error of `rank` when the other end of a send or receive is no member of `n`.
void require_peer(const request& call, num n, num rank);
/// collective_error naming both ranks when what was sent is not what is to be received.
void require_same_message(const request& sent, num from, const request& received, num to);
/// Any collective of a group of one: a copy, if anything. `rank` is the only member.
void collect_alone(const request& call, num rank);

/// The call, as it may be kept when its buffers are the caller's again.
request without_buffers(request call);

/// Elements of member `i`'s part of a gathered or scattered buffer, and where the part begins.
/// pre: disagreement() is ""
num part_size(const request& call, num i, num group_size);
num part_offset(const request& call, num i, num group_size);
/// Of a large all_reduce of `size` elements, member i of n reduces those in [slice_begin(i), slice_begin(i + 1)).
constexpr num slice_begin(num size, num i, num n) { return size / n * i + (size % n < i ? size % n : i); }

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_REQUEST_HPP
