// SPDX-License-Identifier: Apache-2.0
// How much work one rank of a run has: its heads, its rows, and what the routing of tokens to experts adds to that.
#ifndef SHARDPLAN_RUN_SHAPE_HPP
#define SHARDPLAN_RUN_SHAPE_HPP

#include <concepts>  // same_as
#include <shardplan/ownership.hpp>

namespace shardplan {

/// What a run is, beside model and plan.
struct run_shape {
  num padded_length = 0;  ///< of a row
  num micro_rows = 0;     ///< rows of one micro-batch of one data shard
  num micro_batches = 1;
  num element_bytes = 4;   ///< of activations and parameters; counts and ids have 8, the loss 8
  bool training = false;   ///< with backward and gradients, of which the norm is computed once
  num steps = 0;           ///< optimizer steps, each with a training pass; 0: one pass and no step
  bool auxiliary = false;  ///< with the load-balancing loss of the routers
  bool embeds = false;     ///< the caller gives embeddings: nothing is looked up

  /// Of what sums are kept in, whatever the elements are: gradients of parameters, router weights, statistics of the
  /// auxiliary loss, and the log sums of tokens.
  constexpr num wide_bytes() const { return element_bytes < 4 ? 4 : element_bytes; }
};

/// Heads a rank gets when `ranks` of a Ulysses group trade tokens for `heads`: with fewer heads than ranks, one.
constexpr num num_traded_heads(num heads, num ranks) { return heads < ranks ? 1 : heads / ranks; }
/// The first of those that rank `u` gets: with fewer heads than ranks, the one that its queries read.
constexpr num first_traded_head(num heads, num ranks, num u) { return u * heads / ranks; }

/// Rows that one rank routes, of the n tokens its tp group has in common. Under all_reduce the ranks of one ep x etp
/// group, neighbours on tp, take the same rows and the groups divide them; otherwise tp ranks divide them. Where no
/// layer cuts experts, the rules do not ask that such groups fit tp.
constexpr dim_range routed_rows(const plan_spec& p, num n, num tp_index) {
  const num group = p.ep * p.etp;
  const num sharing = p.dispatch == dispatch_kind::all_reduce && p.tp % group == 0 ? group : 1;
  return chunk(n, p.tp / sharing, tp_index / sharing);
}

/// The routing of a run: how many of the (token, choice) pairs of rank `rank` in a micro-batch chose one of some
/// experts. Padding is not routed.
template <class R>
concept Routing = requires(const R& r, num moe_layer, num micro_batch, num rank, dim_range experts) {
  { r(moe_layer, micro_batch, rank, experts) } -> std::same_as<num>;
};

/// Rows that a rank routes in a micro-batch, padding included.
constexpr num rows_to_route(const plan_spec& p, const run_shape& shape, num rank) {
  const num n = local_length(p.layout, shape.padded_length, p.cp) * shape.micro_rows;
  return routed_rows(p, n, coordinate(dense_mesh(p), rank, axis::tp)).size();
}

/// A routing in which every expert is chosen equally often: the balanced value, rounded down.
struct balanced_routing {
  const model_spec& model;
  const plan_spec& plan;
  const run_shape& shape;
  constexpr num operator()(num, num, num rank, dim_range experts) const {
    return rows_to_route(plan, shape, rank) * model.num_experts_per_tok * experts.size() / model.num_experts;
  }
};

/// What dispatch sends at most, known before any routing. A row chooses k distinct ones of E experts, so of r rows
///   at most   r * min(k, e)             pairs choose among e of them, and
///   at least  r * max(0, k - (E - e)).
/// With it every line of the ledger is a bound that some routing reaches, though not one routing all. Where ep ranks
/// hold E / ep = s experts each and route r rows each, that is per layer and micro-batch
///   sent, what stays included    r * k                   (balanced: the same)
///   sent to other ranks          r * min(k, E - s)       (balanced: r * k * (ep - 1) / ep)
///   received, own included       ep * r * min(k, s)      (balanced: r * k)
/// rows of hidden_size values: ep times the balanced value when all choose the experts of one rank and k <= s.
struct bounding_routing {
  const model_spec& model;
  const plan_spec& plan;
  const run_shape& shape;
  constexpr num operator()(num, num, num rank, dim_range experts) const {
    const num k = model.num_experts_per_tok;
    return rows_to_route(plan, shape, rank) * (experts.size() < k ? experts.size() : k);
  }
  constexpr num least(num, num, num rank, dim_range experts) const {
    const num elsewhere = model.num_experts - experts.size(), k = model.num_experts_per_tok;
    return rows_to_route(plan, shape, rank) * (elsewhere < k ? k - elsewhere : 0);
  }
};

/// Rows that arrive at the experts of `rank` from its ep group, itself included; its etp group shares them afterwards.
template <Routing R>
constexpr num rows_received(const model_spec& m, const plan_spec& p, const R& routing, num moe_layer, num micro_batch,
                            num rank) {
  const rank_group ep = group_of(p, m, rank, axis::ep);
  num sum = 0;
  for (num i = 0; i < ep.size(); ++i)
    sum += routing(moe_layer, micro_batch, ep.member(i), chunk(m.num_experts, p.ep, ep.index));
  return sum;
}

}  // namespace shardplan
#endif  // SHARDPLAN_RUN_SHAPE_HPP
