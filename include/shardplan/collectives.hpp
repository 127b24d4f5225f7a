// SPDX-License-Identifier: Apache-2.0
// The program of communication of one rank, computed from the plan: every collective of a forward, a loss, a backward
// and the reduction of gradients, in order, with its bytes. An engine that carries the plan out records the same list.
#ifndef SHARDPLAN_COLLECTIVES_HPP
#define SHARDPLAN_COLLECTIVES_HPP

#include <shardplan/layer_collectives.hpp>
#include <shardplan/reduction.hpp>

namespace shardplan {

namespace detail {

/// Walks what a rank does and reports each collective. The order and the labels are the executor's.
template <Routing R, class Sink>
class communication : layer_communication<R, Sink> {
 public:
  using base = layer_communication<R, Sink>;
  using base::base;

  constexpr void run() {
    for (num step = 0; step < (shape_.steps > 0 ? shape_.steps : 1); ++step) {
      pass();
      if (shape_.training && step == 0) {
        label(phase::gradients, parameter::no_layer);
        bytes(operation::all_reduce, world_axes, 8);  // the norm
      }
      if (shape_.steps > 0 && !is_sharded(p_.zero, state_kind::parameter)) share_shards();
    }
  }

 private:
  using base::attention_backward;
  using base::attention_forward;
  using base::bytes;
  using base::bytes_in;
  using base::enter;
  using base::experts_backward;
  using base::experts_forward;
  using base::gather_tokens;
  using base::group;
  using base::label;
  using base::leave;
  using base::m_;
  using base::n_;
  using base::p_;
  using base::rank_;
  using base::shape_;
  using base::stream_;
  using base::sum_over_tp;
  using base::sums;
  using base::values;

  constexpr void pass() {
    const num at = group(axis::pp).index;
    const bool each = is_sharded(p_.zero, state_kind::gradient);
    if (!shape_.training) {
      for_each_forward(p_, shape_.micro_batches, at, [&](const pipeline_step& s) { forward(s); });
    } else {
      for_each_step(p_, shape_.micro_batches, at, [&](const pipeline_step& s) {
        if (s.kind == step_kind::forward) return forward(s);
        backward(s);
        if (each) reduce(s.stage);
      });
      if (!each)
        for (num stage = at; stage < num_stages(p_); stage += p_.pp) reduce(stage);
      finish();
    }
    label(phase::loss, parameter::no_layer);
    const num last = stage_owner(p_, num_stages(p_) - 1);
    if (at == last) bytes(operation::all_reduce, axis_set(axis::dp_replicate) | axis::fsdp | axis::cp, 8);
    bytes(operation::broadcast, axis::pp, 16, 0, at == last);
  }

  constexpr bool is_last(num stage) const { return stage == num_stages(p_) - 1; }
  constexpr parameter_kind head() const { return head_weight(m_); }

  constexpr void use(const parameter& q) {
    if (!is_sharded(p_.zero, state_kind::parameter)) return;
    const axis over = shard_axis(class_of(q.kind));
    const rank_group shards = group(over);
    label(phase::parameters, q.layer);
    values(operation::all_gather, over, shard(part_in_use(m_, p_, q, rank_), shards.size(), shards.index).size());
  }
  constexpr void use_layer(num layer, phase why) {
    for_each_layer_parameter(m_, layer, [&](const parameter& q) { use(q); });
    label(why, layer);
  }
  constexpr void use_head(phase why) {
    use(make_parameter(m_, parameter_kind::final_norm));
    use(make_parameter(m_, head()));
    label(why, parameter::no_layer);
  }
  constexpr void use_embedding(phase why) {
    use(make_parameter(m_, parameter_kind::embed_tokens));
    label(why, parameter::no_layer);
  }

  /// Without experts in any layer there is no auxiliary loss, although the configuration may ask for it.
  constexpr bool auxiliary() const { return shape_.auxiliary && num_moe_layers(m_) > 0; }
  /// The statistics of the auxiliary loss: chosen and probability of each expert, and the rows counted.
  constexpr num statistics() const { return 2 * m_.num_experts + 1; }

  constexpr void neighbour(operation what, num other, phase why, num labelled_stage) {
    if (stage_owner(p_, other) == group(axis::pp).index) return;  // the same rank
    label(why, stage_layers(m_, p_, labelled_stage).begin);
    values(what, axis::pp, stream_);
    if (auxiliary()) sums(what, axis::pp, statistics());
  }

  constexpr void forward(const pipeline_step& s) {
    if (s.stage > 0) {
      neighbour(operation::receive, s.stage - 1, phase::forward, s.stage);
    } else if (!shape_.embeds) {
      use_embedding(phase::forward);
      sum_over_tp(parameter_kind::embed_tokens);
    }
    const layer_range layers = stage_layers(m_, p_, s.stage);
    for (num layer = layers.begin; layer < layers.end; ++layer) {
      use_layer(layer, phase::forward);
      enter(layer);
      gather_tokens();
      attention_forward();
      sum_over_tp(parameter_kind::o_proj, layer);
      if (is_moe_layer(m_, layer)) {
        experts_forward(layer, s.micro_batch);
      } else {
        gather_tokens();
        sum_over_tp(parameter_kind::mlp_down, layer);
      }
      leave();
    }
    if (auxiliary()) {
      label(phase::loss, parameter::no_layer);
      sums(operation::all_reduce, axis_set(axis::dp_replicate) | axis::fsdp | axis::cp | axis::tp, statistics());
    }
    if (!is_last(s.stage)) return neighbour(operation::send, s.stage + 1, phase::forward, s.stage + 1);
    use_head(phase::loss);
    gather_tokens();
    if (!is_cut(p_, head())) return;
    for (int i = 0; i < 3; ++i) sums(operation::all_reduce, axis::tp, n_);  // max, sum, target of each token
  }

  constexpr void backward(const pipeline_step& s) {
    if (is_last(s.stage)) {
      use_head(phase::backward);
      sum_over_tp(head());
    } else {
      neighbour(operation::receive, s.stage + 1, phase::backward, s.stage);
    }
    const layer_range layers = stage_layers(m_, p_, s.stage);
    for (num layer = layers.end; layer-- > layers.begin;) {
      use_layer(layer, phase::backward);
      enter(layer);
      if (is_moe_layer(m_, layer)) {
        experts_backward(layer, s.micro_batch);
      } else {
        gather_tokens();
        sum_over_tp(parameter_kind::mlp_gate, layer);
      }
      gather_tokens();
      attention_backward();
      sum_over_tp(parameter_kind::q_proj, layer);
      leave();
    }
    if (s.stage > 0) return neighbour(operation::send, s.stage - 1, phase::backward, s.stage - 1);
    if (shape_.embeds) return;
    use_embedding(phase::backward);
    gather_tokens();
  }

  // ---- gradients
  constexpr void reduce(num stage) {
    for_each_parameter(m_, [&](const parameter& q) {
      if (!stage_holds(m_, p_, stage, q)) return;
      const region part = part_in_use(m_, p_, q, rank_);
      const gradient_reduction how = reduction_of(m_, p_, q);
      label(phase::gradients, q.layer);
      if (!how.tensor.empty()) sums(operation::all_reduce, how.tensor, part.size());
      const rank_group shards = group(how.shard);
      sums(operation::reduce_scatter, how.shard, part.size(), shard(part, shards.size(), shards.index).size());
    });
  }
  constexpr void finish() {
    for_each_parameter(m_, [&](const parameter& q) {
      if (!rank_holds(m_, p_, rank_, q)) return;
      const num kept = owned(m_, p_, q, state_kind::optimizer, rank_).size();
      label(phase::gradients, q.layer);
      sums(operation::all_reduce, axis::dp_replicate, kept);
      if (reduction_of(m_, p_, q).both_ends)
        bytes_in(operation::all_reduce, axis::pp, both_ends_group(p_, rank_).size(), kept * shape_.wide_bytes(), 0,
                 false);
    });
  }

  constexpr void share_shards() {
    for_each_parameter(m_, [&](const parameter& q) {
      if (!rank_holds(m_, p_, rank_, q)) return;
      label(phase::parameters, q.layer);
      values(operation::all_gather, shard_axis(class_of(q.kind)),
             owned(m_, p_, q, state_kind::optimizer, rank_).size());
    });
  }
};

}  // namespace detail

/// Calls `sink(ledger_entry)` for each collective of `rank`, in the order it makes them; groups of one rank have none.
/// Exact, given the routing; everything but the rows of `dispatch` is independent of it. The plan must be legal. A sink
/// that takes (ledger_entry, times) is told once of the hops of a ring, which are alike.
template <Routing R, class Sink>
constexpr void for_each_collective(const model_spec& m, const plan_spec& p, const run_shape& shape, num rank,
                                   const R& routing, Sink&& sink) {
  detail::communication<R, Sink>(m, p, shape, rank, routing, sink).run();
}

}  // namespace shardplan
#endif  // SHARDPLAN_COLLECTIVES_HPP
