// SPDX-License-Identifier: Apache-2.0
// Which layers a pipeline stage holds, which rank holds a stage, and in which order a rank runs its stages.
#ifndef SHARDPLAN_PIPELINE_HPP
#define SHARDPLAN_PIPELINE_HPP

#include <shardplan/mesh.hpp>
#include <shardplan/parameters.hpp>

namespace shardplan {

/// Layers [begin, end) of one stage.
struct layer_range {
  num begin = 0, end = 0;
  constexpr num size() const { return end - begin; }
  constexpr bool has(num layer) const { return layer >= begin && layer < end; }
  friend constexpr bool operator==(const layer_range&, const layer_range&) = default;
};

/// The layers of stage `stage` of num_stages(p): as listed, else an even share.
/// post: the stages are disjoint, in order, and cover every layer
constexpr layer_range stage_layers(const model_spec& m, const plan_spec& p, num stage) {
  if (p.stages.empty()) {
    const num share = m.num_hidden_layers / num_stages(p);
    return {stage * share, (stage + 1) * share};
  }
  num begin = 0;
  for (num s = 0; s < stage; ++s) begin += p.stages[static_cast<std::size_t>(s)];
  return {begin, begin + p.stages[static_cast<std::size_t>(stage)]};
}

/// Coordinate on axis pp of the rank that holds a stage: stages go round the ranks.
constexpr num stage_owner(const plan_spec& p, num stage) { return stage % p.pp; }

/// Does `stage` hold the parameter? A tied embedding stands on the first stage and, as the head, on the last.
constexpr bool stage_holds(const model_spec& m, const plan_spec& p, num stage, const parameter& q) {
  const bool first = stage == 0, last = stage == num_stages(p) - 1;
  switch (q.kind) {
    case parameter_kind::embed_tokens:
      return first || (last && m.tie_word_embeddings);
    case parameter_kind::final_norm:
    case parameter_kind::lm_head:
      return last;
    default:
      return stage_layers(m, p, stage).has(q.layer);
  }
}

/// Does `rank` hold (a part of) the parameter on any of its stages?
constexpr bool rank_holds(const model_spec& m, const plan_spec& p, num rank, const parameter& q) {
  const num at = coordinate(dense_mesh(p), rank, axis::pp);
  for (num stage = at; stage < num_stages(p); stage += p.pp)
    if (stage_holds(m, p, stage, q)) return true;
  return false;
}

/// Calls `f(stage, micro_batch)` for each forward of the rank at pp coordinate `at`, in the order it runs them.
/// Interleaved stages take turns in rounds of pp micro-batches; a forward waits for no later one of its own rank.
template <class F>
constexpr void for_each_forward(const plan_spec& p, num micro_batches, num at, F&& f) {
  const num round = p.virtual_stages > 1 ? p.pp : micro_batches;
  for (num first = 0; first < micro_batches; first += round)
    for (num turn = 0; turn < p.virtual_stages; ++turn)
      for (num m = first; m < first + round && m < micro_batches; ++m) f(turn * p.pp + at, m);
}

}  // namespace shardplan
#endif  // SHARDPLAN_PIPELINE_HPP
