// SPDX-License-Identifier: Apache-2.0
// A mesh factorises the ranks of the world, row-major, last axis fastest. Few free functions make one view from
// another; all views of one world share its root.
#ifndef SHARDPLAN_MESH_HPP
#define SHARDPLAN_MESH_HPP

#include <shardplan/axes.hpp>
#include <shardplan/plan.hpp>

namespace shardplan {

struct mesh_axis {
  axis name{};
  num degree = 1;
  friend constexpr bool operator==(const mesh_axis&, const mesh_axis&) = default;
};

struct mesh {
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);
  fixed_vector<mesh_axis, num_axes> axes{};

  constexpr num size() const {
    num n = 1;
    for (const mesh_axis& a : axes) n *= a.degree;
    return n;
  }
  /// Index of an axis, npos when the mesh has not got it.
  constexpr std::size_t find(axis a) const {
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (axes[i].name == a) return i;
    return npos;
  }
  constexpr num degree(axis a) const {
    const std::size_t i = find(a);
    return i < axes.size() ? axes[i].degree : 1;
  }
  /// Distance in ranks between neighbours on an axis.
  constexpr num stride(axis a) const {
    num s = 1;
    for (std::size_t i = axes.size(); i-- > 0 && axes[i].name != a;) s *= axes[i].degree;
    return s;
  }
  friend constexpr bool operator==(const mesh&, const mesh&) = default;
};

/// Position of `rank` on an axis of `degree` places whose neighbours are `stride` ranks apart.
constexpr num place_on(num degree, num stride, num rank) { return rank / stride % degree; }

/// Position of `rank` on one axis; 0 on an axis the mesh has not got.
constexpr num coordinate(const mesh& m, num rank, axis a) {
  return m.find(a) == mesh::npos ? 0 : place_on(m.degree(a), m.stride(a), rank);
}

/// Merges the neighbouring axes `first` and `second` into one.
/// post: coordinate(result, r, merged) == coordinate(m, r, first) * m.degree(second) + coordinate(m, r, second)
constexpr mesh flatten(const mesh& m, axis first, axis second, axis merged) {
  mesh out;
  for (std::size_t i = 0; i < m.axes.size(); ++i) {
    if (m.axes[i].name == first && i + 1 < m.axes.size() && m.axes[i + 1].name == second) {
      out.axes.push_back({merged, m.axes[i].degree * m.axes[i + 1].degree});
      ++i;
    } else {
      out.axes.push_back(m.axes[i]);
    }
  }
  return out;
}

/// Splits an axis into `outer` (slower) and `inner` (faster, of degree `inner_degree`).
/// post: flatten(result, outer, inner, whole) == m
constexpr mesh unflatten(const mesh& m, axis whole, axis outer, axis inner, num inner_degree) {
  mesh out;
  for (const mesh_axis& a : m.axes) {
    if (a.name == whole) {
      out.axes.push_back({outer, a.degree / inner_degree});
      out.axes.push_back({inner, inner_degree});
    } else {
      out.axes.push_back(a);
    }
  }
  return out;
}

/// The ranks that differ from one rank only on some axes: member i of the group, by mixed radix over those axes.
struct rank_group {
  struct step {
    num degree = 1, stride = 1;
    friend constexpr bool operator==(const step&, const step&) = default;
  };
  num first = 0;  ///< rank of member 0
  num index = 0;  ///< which member the asking rank is
  fixed_vector<step, num_axes> steps{};

  constexpr num size() const {
    num n = 1;
    for (const step& s : steps) n *= s.degree;
    return n;
  }
  /// post: member(index) is the asking rank
  constexpr num member(num i) const {
    num rank = first;
    for (std::size_t k = steps.size(); k-- > 0; i /= steps[k].degree) rank += i % steps[k].degree * steps[k].stride;
    return rank;
  }
  /// Adds an axis that varies faster than those the group has: the ranks that differ from `rank` on it too are members.
  constexpr void widen(num rank, step by) {
    const num at = place_on(by.degree, by.stride, rank);
    first -= at * by.stride;
    index = index * by.degree + at;
    steps.push_back(by);
  }
  friend constexpr bool operator==(const rank_group&, const rank_group&) = default;
};

/// The group of `rank` over `over`, members in row-major order of the mesh. Axes the mesh has not got have degree 1.
constexpr rank_group select(const mesh& m, num rank, axis_set over) {
  rank_group g;
  g.first = rank;
  for (const mesh_axis& a : m.axes)
    if (over.has(a.name)) g.widen(rank, {a.degree, m.stride(a.name)});
  return g;
}

// ---- the views of a plan

/// (pp, dp_replicate, fsdp_cp, tp)
constexpr mesh root_mesh(const plan_spec& p) {
  mesh m;
  m.axes.push_back({axis::pp, p.pp});
  m.axes.push_back({axis::dp_replicate, p.dp_replicate});
  m.axes.push_back({axis::fsdp_cp, p.fsdp * p.cp});
  m.axes.push_back({axis::tp, p.tp});
  return m;
}

/// (pp, dp_replicate, fsdp, cp, tp)
constexpr mesh dense_mesh(const plan_spec& p) {
  return unflatten(root_mesh(p), axis::fsdp_cp, axis::fsdp, axis::cp, p.cp);
}

/// (pp, dp_replicate, efsdp, ep, etp), of the same ranks
constexpr mesh expert_mesh(const plan_spec& p) {
  const mesh inner = flatten(root_mesh(p), axis::fsdp_cp, axis::tp, axis::efsdp);
  return unflatten(unflatten(inner, axis::efsdp, axis::efsdp, axis::ep, p.ep * p.etp), axis::ep, axis::ep, axis::etp,
                   p.etp);
}

/// dense_mesh with cp = cp_ring x cp_ulysses and tp = tp_heads x tp_copies; what attention is cut over
constexpr mesh attention_mesh(const plan_spec& p, const model_spec& model) {
  const mesh by_method = unflatten(dense_mesh(p), axis::cp, axis::cp_ring, axis::cp_ulysses, ulysses_degree(p));
  return unflatten(by_method, axis::tp, axis::tp_heads, axis::tp_copies, kv_copies(p, model));
}

/// The group of `rank` over axes of any one view of the plan.
/// post: the group over all axes of a view has world_size members
constexpr rank_group group_of(const plan_spec& p, const model_spec& model, num rank, axis_set over) {
  if (over.has(axis::efsdp) || over.has(axis::ep) || over.has(axis::etp)) return select(expert_mesh(p), rank, over);
  if (over.has(axis::fsdp_cp)) return select(root_mesh(p), rank, over);
  if (over.has(axis::cp_ring) || over.has(axis::cp_ulysses) || over.has(axis::tp_heads) || over.has(axis::tp_copies))
    return select(attention_mesh(p, model), rank, over);
  return select(dense_mesh(p), rank, over);
}

/// Data index: which of the num_data_shards batches `rank` reads. Equal for all ranks that differ in pp, cp, tp alone.
constexpr num data_index(const plan_spec& p, num rank) {
  const mesh m = dense_mesh(p);
  return coordinate(m, rank, axis::dp_replicate) * p.fsdp + coordinate(m, rank, axis::fsdp);
}

}  // namespace shardplan
#endif  // SHARDPLAN_MESH_HPP
