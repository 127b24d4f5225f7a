// SPDX-License-Identifier: Apache-2.0
// Over whom the gradient of a parameter is still a partial sum, and who must add it up. The loss is a sum over tokens
// divided by the global count of targets, so gradients are plain sums: nothing is averaged.
#ifndef SHARDPLAN_REDUCTION_HPP
#define SHARDPLAN_REDUCTION_HPP

#include <shardplan/ownership.hpp>

namespace shardplan {

/// What happens to a gradient after the backward, in this order: sums over `tensor` (tp, its key/value copies, the ep
/// x etp group of experts that are whole on every rank, or nothing), reduce-scatter over `shard` (fsdp_cp or efsdp),
/// sum over dp_replicate, and for a tied embedding the sum of the first and the last stage. Axes of degree 1 are part
/// of it: they sum one value.
struct gradient_reduction {
  axis_set tensor{};
  axis shard = axis::fsdp_cp;
  bool both_ends = false;
  /// What a framework that averages over data must divide by: nothing here is divided.
  num divisor = 1;

  friend constexpr bool operator==(const gradient_reduction&, const gradient_reduction&) = default;
};

/// The reduction of one parameter. Found per class by searching for the only set of axes that gives the baseline's
/// gradient.
constexpr gradient_reduction reduction_of(const model_spec& m, const plan_spec& plan, const parameter& p) {
  gradient_reduction r;
  r.shard = shard_axis(class_of(p.kind));
  r.divisor = gradient_divisor(plan);
  switch (p.kind) {
    case parameter_kind::embed_tokens:
      r.both_ends = m.tie_word_embeddings && plan.pp > 1;
      break;
    case parameter_kind::k_proj:
    case parameter_kind::v_proj:
    case parameter_kind::k_bias:
    case parameter_kind::v_bias:
      // Ranks with the same head each saw its own queries; whole heads on every rank saw all of them.
      if (is_cut(plan, p.kind, p.layer)) r.tensor = axis::tp_copies;
      break;
    case parameter_kind::q_norm:
    case parameter_kind::k_norm:  // one weight for heads on different ranks
      if (is_cut(plan, parameter_kind::q_proj, p.layer)) r.tensor = axis::tp;
      break;
    case parameter_kind::router:  // rows were split before it
      r.tensor = axis::tp;
      break;
    case parameter_kind::experts_gate_up:
    case parameter_kind::experts_down:  // where every rank has all experts, each saw its own rows
      if (!is_cut(plan, p.kind, p.layer)) r.tensor = axis_set(axis::ep) | axis::etp;
      break;
    case parameter_kind::input_layernorm:
    case parameter_kind::post_attention_layernorm:
    case parameter_kind::final_norm:
    case parameter_kind::o_bias:  // each tp rank saw all tokens, or its own
      if (plan.sequence_parallel) r.tensor = axis::tp;
      break;
    default:
      break;
  }
  return r;
}

/// The first and the last pipeline rank of the group of `rank`: who sums a tied embedding.
constexpr rank_group both_ends_group(const plan_spec& plan, num rank) {
  const mesh m = dense_mesh(plan);
  const num at = coordinate(m, rank, axis::pp), stride = m.stride(axis::pp);
  const num last = stage_owner(plan, num_stages(plan) - 1);
  rank_group g;
  g.first = rank - at * stride;
  g.index = at == 0 ? 0 : 1;
  g.steps.push_back({last == 0 ? 1 : 2, last * stride});
  return g;
}

}  // namespace shardplan
#endif  // SHARDPLAN_REDUCTION_HPP
