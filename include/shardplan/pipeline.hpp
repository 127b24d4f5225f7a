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

// ---- the timeline

enum class step_kind : unsigned char { forward, backward };

/// One turn of a rank: the forward or backward of one micro-batch through one of its stages.
struct pipeline_step {
  step_kind kind = step_kind::forward;
  num stage = 0, micro_batch = 0;
  friend constexpr bool operator==(const pipeline_step&, const pipeline_step&) = default;
};

/// Forwards that the rank at pp coordinate `at` runs before its first backward. 1f1b: as many as stages follow;
/// interleaved: Narayanan et al., arXiv 2104.04473, section 2.2; gpipe: all.
constexpr num num_warmup_forwards(const plan_spec& p, num micro_batches, num at) {
  const num all = micro_batches * p.virtual_stages, after = p.pp - at - 1;
  switch (p.schedule) {
    case schedule_kind::gpipe:
      return all;
    case schedule_kind::one_f_one_b:
      return after < all ? after : all;
    case schedule_kind::interleaved:
      break;
  }
  const num warmup = 2 * after + (p.virtual_stages - 1) * p.pp;
  return warmup < all ? warmup : all;
}

/// The i-th forward (or backward) of the rank at pp coordinate `at`: interleaved stages take turns in rounds of pp
/// micro-batches, first stage first in forwards and last stage first in backwards.
constexpr pipeline_step nth_step(const plan_spec& p, step_kind kind, num i, num at) {
  const num round = p.pp * p.virtual_stages;
  if (p.virtual_stages == 1) return {kind, at, i};
  const num turn = i % round / p.pp;
  const num chunk = kind == step_kind::forward ? turn : p.virtual_stages - 1 - turn;
  return {kind, chunk * p.pp + at, i / round * p.pp + i % p.pp};
}

/// Calls `f(pipeline_step)` for each forward and backward of the rank at pp coordinate `at`, in the order it runs them.
/// post: every (stage of the rank, micro-batch) has one forward and, later, one backward
template <class F>
constexpr void for_each_step(const plan_spec& p, num micro_batches, num at, F&& f) {
  const num all = micro_batches * p.virtual_stages, warmup = num_warmup_forwards(p, micro_batches, at);
  for (num i = 0; i < warmup; ++i) f(nth_step(p, step_kind::forward, i, at));
  for (num i = 0; i < all; ++i) {
    if (warmup + i < all) f(nth_step(p, step_kind::forward, warmup + i, at));
    f(nth_step(p, step_kind::backward, i, at));
  }
}

/// The same for an evaluation, which has forwards alone.
template <class F>
constexpr void for_each_forward(const plan_spec& p, num micro_batches, num at, F&& f) {
  for (num i = 0; i < micro_batches * p.virtual_stages; ++i) f(nth_step(p, step_kind::forward, i, at));
}

}  // namespace shardplan
#endif  // SHARDPLAN_PIPELINE_HPP
