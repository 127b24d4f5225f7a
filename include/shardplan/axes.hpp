// SPDX-License-Identifier: Apache-2.0
// The axes of a mesh. An axis is of a mesh, a dim is of a tensor; the two words are never mixed.
#ifndef SHARDPLAN_AXES_HPP
#define SHARDPLAN_AXES_HPP

#include <shardplan/meta.hpp>

namespace shardplan {

/// A named dimension of a mesh. The sub-axes are factors of cp (`cp_ring` x `cp_ulysses`, Ulysses fastest) and of
/// tp (`tp_heads` x `tp_copies`, the copies of one key/value head fastest).
enum class axis : unsigned char {
  pp,
  dp_replicate,
  fsdp,
  cp,
  tp,
  efsdp,
  ep,
  etp,
  fsdp_cp,
  cp_ring,
  cp_ulysses,
  tp_heads,
  tp_copies,
};
inline constexpr std::size_t num_axes = 13;

constexpr text_view name_of(axis a) {
  constexpr text_view names[num_axes] = {"pp",  "dp_replicate", "fsdp",    "cp",         "tp",       "efsdp",    "ep",
                                         "etp", "fsdp_cp",      "cp_ring", "cp_ulysses", "tp_heads", "tp_copies"};
  return names[static_cast<std::size_t>(a)];
}

/// A set of axes: the subject of a collective, or the cut of a tensor dim.
struct axis_set {
  unsigned bits = 0;

  constexpr axis_set() = default;
  constexpr axis_set(axis a) : bits(1u << static_cast<unsigned>(a)) {}  // NOLINT: one axis is a set of axes
  constexpr bool has(axis a) const { return (bits >> static_cast<unsigned>(a)) & 1u; }
  constexpr bool empty() const { return bits == 0; }
  friend constexpr axis_set operator|(axis_set a, axis_set b) {
    axis_set both;
    both.bits = a.bits | b.bits;
    return both;
  }
  friend constexpr bool operator==(axis_set, axis_set) = default;
};
constexpr axis_set operator|(axis a, axis b) { return axis_set(a) | axis_set(b); }

/// Every axis of the dense view: a group over them is the world.
inline constexpr axis_set world_axes = axis::pp | axis::dp_replicate | axis::fsdp | axis::cp | axis::tp;

}  // namespace shardplan
#endif  // SHARDPLAN_AXES_HPP
