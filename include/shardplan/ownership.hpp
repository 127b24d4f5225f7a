// SPDX-License-Identifier: Apache-2.0
// Which elements of a parameter a rank works with, and which of them it keeps. Every cut of a parameter, in the
// checkpoint reader, the executor, the memory account and the messages, comes from here.
#ifndef SHARDPLAN_OWNERSHIP_HPP
#define SHARDPLAN_OWNERSHIP_HPP

#include <shardplan/pipeline.hpp>

namespace shardplan {

/// The i-th of `count` parts of `n` indices when each holds `ceil(n / count)`: the last may hold fewer, or none.
constexpr dim_range chunk(num n, num count, num i) {
  const num size = ceil_div(n, count);
  const num begin = i * size < n ? i * size : n;
  return {begin, begin + size < n ? begin + size : n};
}

/// The part of `p` that `rank` computes with, that is after gathering its shards: what tp, ep and etp leave of it.
/// Over the ranks of a tp group (dense) or an ep x etp group (experts) the parts cover every element; equally often,
/// which is once but for replicated modules and copied key/value heads. The pipeline is not looked at (rank_holds).
constexpr region part_in_use(const model_spec& m, const plan_spec& plan, const parameter& p, num rank) {
  region part = p.whole();
  const auto dim = [&](std::size_t d) -> dim_part& { return part.dims[d]; };
  const num tp = coordinate(dense_mesh(plan), rank, axis::tp);
  const num ep = coordinate(expert_mesh(plan), rank, axis::ep), etp = coordinate(expert_mesh(plan), rank, axis::etp);
  const auto experts_here = [&] {
    const dim_range r = chunk(m.num_experts, plan.ep, ep);
    dim(0) = {r.begin, r.end};
  };
  switch (style_of(plan, p.kind, p.layer)) {
    default:  // replicated: whole
      break;
    case module_style::vocabulary: {
      const dim_range r = chunk(m.vocab_size, plan.tp, tp);
      dim(0) = {r.begin, r.end};
      break;
    }
    case module_style::colwise: {
      const num copies = is_key_value(p.kind) ? kv_copies(plan, m) : 1;
      const num share = p.shape[0] / (plan.tp / copies);
      dim(0) = {tp / copies * share, (tp / copies + 1) * share};
      break;
    }
    case module_style::rowwise:
      if (p.shape.size() > 1) {  // the bias stays whole
        const num share = p.shape[1] / plan.tp;
        dim(1) = {tp * share, (tp + 1) * share};
      }
      break;
    case module_style::packed_colwise: {
      experts_here();
      const num width = p.shape[1] / 2, share = width / plan.etp, begin = etp * share;
      // One range when nothing is cut, so that a part has one spelling.
      if (plan.etp > 1) dim(1) = {{begin, begin + share}, {width + begin, width + begin + share}};
      break;
    }
    case module_style::grouped_rowwise: {
      experts_here();
      const num share = p.shape[2] / plan.etp;
      dim(2) = {etp * share, (etp + 1) * share};
      break;
    }
  }
  return part;
}

/// The axis over which state of that class is sharded.
constexpr axis shard_axis(parameter_class c) { return c == parameter_class::expert ? axis::efsdp : axis::fsdp_cp; }

/// Shard `i` of `count` of a part: consecutive indices of dim 0, uneven or empty where they do not divide.
/// post: over all i the shards are disjoint, in order, and cover the part
constexpr region shard(const region& part, num count, num i) {
  region r = part;
  const dim_range at = chunk(part.dims[0].size(), count, i);
  r.dims[0] = part.dims[0].slice(at.begin, at.end);
  return r;
}

enum class state_kind : unsigned char { parameter, gradient, optimizer };

/// Is that state sharded over the shard axis, or kept whole (of the part in use) by every rank?
constexpr bool is_sharded(zero_stage z, state_kind s) {
  switch (s) {
    case state_kind::parameter:
      return z == zero_stage::zero3;
    case state_kind::gradient:
      return z == zero_stage::zero3 || z == zero_stage::zero2;
    case state_kind::optimizer:
      break;
  }
  return true;
}

/// The elements of `p` whose state `rank` keeps between steps; empty where its stages do not hold the parameter.
/// post: over all ranks every element is kept, each equally often: dp_replicate times, and once for each tp copy, for
/// each shard that keeps it whole, and for each stage of a tied embedding
constexpr region owned(const model_spec& m, const plan_spec& plan, const parameter& p, state_kind state, num rank) {
  if (!rank_holds(m, plan, rank, p)) return {};
  const region part = part_in_use(m, plan, p, rank);
  if (!is_sharded(plan.zero, state)) return part;
  const rank_group shards = group_of(plan, m, rank, shard_axis(class_of(p.kind)));
  return shard(part, shards.size(), shards.index);
}

/// Of the ranks that keep equal copies of the same elements of `p`, is `rank` the first? A sum over these counts every
/// logical element once, whatever is replicated: replicas, tp ranks of a replicated module, copied key/value heads, and
/// the two ends of a tied embedding.
constexpr bool is_first_copy(const model_spec& m, const plan_spec& plan, const parameter& p, num rank) {
  const mesh dense = dense_mesh(plan);
  if (coordinate(dense, rank, axis::dp_replicate) != 0) return false;
  if (p.kind == parameter_kind::embed_tokens && coordinate(dense, rank, axis::pp) != 0) return false;
  if (class_of(p.kind) == parameter_class::expert) {  // efsdp, ep and etp are all cuts
    const mesh experts = expert_mesh(plan);
    return is_cut(plan, p.kind, p.layer) ||
           (coordinate(experts, rank, axis::ep) == 0 && coordinate(experts, rank, axis::etp) == 0);
  }
  const region part = part_in_use(m, plan, p, rank);
  if (part == p.whole()) return coordinate(dense, rank, axis::tp) == 0;
  return !is_key_value(p.kind) || coordinate(dense, rank, axis::tp) % kv_copies(plan, m) == 0;
}

}  // namespace shardplan
#endif  // SHARDPLAN_OWNERSHIP_HPP
