// SPDX-License-Identifier: Apache-2.0
// The forward of one rank under any legal plan, written once. The layout of its tokens is a type (L), and so is whether
// the residual stream between tensor-parallel regions holds all of them or this tp rank's share (Residual).
// Letters: s tokens of a row on this rank, b rows of a micro-batch, n = s * b, H hidden, V' vocabulary rows on this
// rank.
#ifndef SHARDPLAN_RUNTIME_SHARDED_EXECUTOR_HPP
#define SHARDPLAN_RUNTIME_SHARDED_EXECUTOR_HPP

#include <cmath>

#include "runtime/sharded/attention.hpp"
#include "runtime/sharded/experts.hpp"
#include "runtime/sharded/local_tokens.hpp"
#include "runtime/sharded/results.hpp"

namespace shardplan::runtime {

/// What the last stage of one rank holds of one micro-batch.
template <Layout L, class T>
struct local_outputs {
  sequence<logits, L, std::vector<T>> scores;            // (s, b, V')
  sequence<token_losses, L, std::vector<T>> token_loss;  // (s, b)
  num_sequence<targets, L> wanted;                       // (s, b)
  num_sequence<real_offsets, L> real;                    // (s, b)
};

/// Cross-entropy of logits whose vocabulary is cut over tp: every tp rank gets every token's loss.
/// Logits and targets must be of one layout; anything else does not compile.
template <Layout L, class T, Communicator C>
sequence<token_losses, L, std::vector<T>> cross_entropy(const rank_view<C>& view,
                                                        const sequence<logits, L, std::vector<T>>& scores,
                                                        const num_sequence<targets, L>& wanted) {
  const auto tp = view.group(axis::tp);
  const auto n = static_cast<std::size_t>(scores.tokens());
  std::vector<T> largest(n), sums(n), picked(n);
  row_max<T>(scores.data(), largest);
  view.comm.all_reduce(tp, std::span<T>(largest), reduce_op::max);
  row_exp_sum<T>(scores.data(), largest, sums);
  view.comm.all_reduce(tp, std::span<T>(sums), reduce_op::sum);
  pick_targets<T>(scores.data(), wanted.data(), chunk(view.model().vocab_size, tp.size(), tp.index()).begin, picked);
  view.comm.all_reduce(tp, std::span<T>(picked), reduce_op::sum);
  sequence<token_losses, L, std::vector<T>> loss(scores, 1);
  for (std::size_t i = 0; i < n; ++i)
    if (wanted.data()[i] != ignored_target) loss.data()[i] = std::log(sums[i]) + largest[i] - picked[i];
  return loss;
}

template <Layout L, class Residual, class T, Communicator C>
class executor {
  using stream = hidden<T, Residual>;  // the residual stream
  static constexpr bool split = residual_traits<Residual>::split;

 public:
  executor(const rank_view<C>& view, const checkpoint& weights)
      : view_(view),
        parameters_(weights, view),
        rotary_(
            make_rotary_frequencies(view.config.rope, view.model().head_dim, view.model().max_position_embeddings)) {}

  /// Runs the micro-batches through this rank's stages, in the order of the plan's schedule. `forced` (micro-batch, MoE
  /// layer, n, k) or empty. Outputs of each micro-batch, on the last stage; nothing elsewhere.
  std::vector<local_outputs<L, T>> forward(const std::vector<local_tokens<L, T>>& micro_batches,
                                           const std::vector<std::vector<std::vector<num>>>& forced) {
    const auto pp = view_.group(axis::pp);
    const num last_stage = num_stages(view_.plan) - 1;
    std::vector<local_outputs<L, T>> outputs;
    std::map<std::pair<num, num>, stream> waiting;  // (stage, micro-batch): its input, when this rank made it itself
    for_each_forward(view_.plan, static_cast<num>(micro_batches.size()), pp.index(), [&](num stage, num m) {
      const local_tokens<L, T>& tokens = micro_batches[static_cast<std::size_t>(m)];
      const auto input = [&]() -> stream {
        if (stage == 0) return embed(tokens);
        if (auto made = waiting.extract({stage, m}); !made.empty()) return std::move(made.mapped());
        stream x = empty_stream(tokens);  // sized from the local length: what the stage before holds of it
        view_.comm.label(phase::forward, stage_layers(view_.model(), view_.plan, stage).begin);
        view_.comm.receive(pp, std::span<T>(x.data()), stage_owner(view_.plan, stage - 1));
        return x;
      };
      stream x = input();
      static const std::vector<std::vector<num>> nowhere;
      run_layers(x, tokens, stage, forced.empty() ? nowhere : forced[static_cast<std::size_t>(m)]);
      if (stage == last_stage) {
        outputs.push_back(head(x, tokens));
      } else if (const num next = stage_owner(view_.plan, stage + 1); next == pp.index()) {
        waiting.emplace(std::pair{stage + 1, m}, std::move(x));
      } else {
        view_.comm.label(phase::forward, stage_layers(view_.model(), view_.plan, stage).end);
        view_.comm.send(pp, read_only(x.data()), next);
      }
    });
    return outputs;
  }

 private:
  stream empty_stream(const local_tokens<L, T>& tokens) const {
    return {tokens.at.length() / sequence_parallel_degree(view_.plan), tokens.at.rows(), view_.model().hidden_size, {}};
  }

  /// Each tp rank looks up the ids that its rows of the vocabulary hold; the sum is the embedding.
  stream embed(const local_tokens<L, T>& tokens) const {
    const num H = view_.model().hidden_size;
    if (!tokens.ids) {
      stream x = empty_stream(tokens);
      const num first = split ? view_.at(axis::tp) * static_cast<num>(x.data().size()) : 0;
      std::copy_n(tokens.embeds->data().begin() + first, x.data().size(), x.data().begin());
      return x;
    }
    const auto in_use = parameters_.single(parameter_kind::embed_tokens);
    const parameter_part<T>& table = in_use[parameter_kind::embed_tokens];
    view_.comm.label(phase::forward, parameter::no_layer);
    const dim_range here = chunk(view_.model().vocab_size, view_.plan.tp, view_.at(axis::tp));
    hidden<T, L> x(tokens.at, H);
    for (std::size_t i = 0; i < tokens.ids->data().size(); ++i)
      if (const num id = tokens.ids->data()[i]; id >= here.begin && id < here.end)
        std::copy_n(table.values.begin() + (id - here.begin) * H, H, x.data().begin() + static_cast<num>(i) * H);
    return sum_over_tp<Residual>::of(view_, std::move(x));
  }

  void run_layers(stream& x, const local_tokens<L, T>& tokens, num stage, const std::vector<std::vector<num>>& forced) {
    const layer_range layers = stage_layers(view_.model(), view_.plan, stage);
    if (layers.size() == 0) return;
    const sequence<shardplan::rotary_table, L, std::vector<T>> angles = rotary(tokens);
    const routed_tokens all_routed = routed(tokens);
    num moe_layer = 0;
    for (num layer = 0; layer < layers.begin; ++layer) moe_layer += is_moe_layer(view_.model(), layer) ? 1 : 0;
    for (num layer = layers.begin; layer < layers.end; ++layer) {
      const parameters_in_use<T> w = parameters_.layer(layer);
      view_.comm.label(phase::forward, layer);
      add<T>(x.data(), self_attention(norm(x, w[parameter_kind::input_layernorm]), angles, tokens, w).data());
      const stream normed = norm(x, w[parameter_kind::post_attention_layernorm]);
      if (is_moe_layer(view_.model(), layer)) {
        routed_tokens routes = all_routed;
        if (!forced.empty()) routes.forced = forced[static_cast<std::size_t>(moe_layer)];
        add<T>(x.data(), mixture_of_experts<T, Residual>(view_, normed, w, routes).data());
        ++moe_layer;
      } else {
        add<T>(x.data(), mlp(normed, w).data());
      }
    }
  }

  stream norm(const stream& x, const parameter_part<T>& weight) const {
    stream out(x, x.width());
    rms_norm<T>(x.data(), weight.values, view_.config.rms_norm_eps, out.data());
    return out;
  }

  stream self_attention(const stream& x, const sequence<shardplan::rotary_table, L, std::vector<T>>& angles,
                        const local_tokens<L, T>& tokens, const parameters_in_use<T>& w) const {
    const num D = view_.model().head_dim;
    const auto& every = gather_tokens(view_, x);  // (s, b, H)
    const auto project = [&](parameter_kind weight, parameter_kind bias) {
      std::vector<T> y = linear<T>(every.data(), w[weight]);
      if (w.has(bias)) add_bias<T>(y, w[bias].values);
      return y;
    };
    std::vector<T> q = project(parameter_kind::q_proj, parameter_kind::q_bias);  // (n, heads, D)
    std::vector<T> k = project(parameter_kind::k_proj, parameter_kind::k_bias);  // (n, kv_heads, D)
    std::vector<T> v = project(parameter_kind::v_proj, parameter_kind::v_bias);
    rms_norm<T>(q, w[parameter_kind::q_norm].values, view_.config.rms_norm_eps, q);
    rms_norm<T>(k, w[parameter_kind::k_norm].values, view_.config.rms_norm_eps, k);
    rotate<T>(q, angles.data(), D);
    rotate<T>(k, angles.data(), D);
    const std::vector<T> context = attend<T>(view_, std::move(q), std::move(k), std::move(v), tokens.places);

    hidden<T, L> out(every, view_.model().hidden_size);
    out.data() = linear<T>(context, w[parameter_kind::o_proj]);
    stream sum = sum_over_tp<Residual>::of(view_, std::move(out));
    if (w.has(parameter_kind::o_bias))
      add_bias<T>(sum.data(), w[parameter_kind::o_bias].values);  // once, after the sum
    return sum;
  }

  stream mlp(const stream& x, const parameters_in_use<T>& w) const {
    const auto& every = gather_tokens(view_, x);
    std::vector<T> gate = linear<T>(every.data(), w[parameter_kind::mlp_gate]);
    const std::vector<T> up = linear<T>(every.data(), w[parameter_kind::mlp_up]);
    swiglu<T>(gate, up, gate);
    hidden<T, L> out(every, x.width());
    out.data() = linear<T>(gate, w[parameter_kind::mlp_down]);
    return sum_over_tp<Residual>::of(view_, std::move(out));
  }

  local_outputs<L, T> head(const stream& x, const local_tokens<L, T>& tokens) const {
    const auto final_norm = parameters_.single(parameter_kind::final_norm);
    const auto kind = view_.model().tie_word_embeddings ? parameter_kind::embed_tokens : parameter_kind::lm_head;
    const auto in_use = parameters_.single(kind);
    view_.comm.label(phase::loss, parameter::no_layer);
    const stream normed = norm(x, final_norm[parameter_kind::final_norm]);
    const auto& every = gather_tokens(view_, normed);
    sequence<logits, L, std::vector<T>> scores(every, in_use[kind].shape[0]);
    scores.data() = linear<T>(every.data(), in_use[kind]);
    auto loss = cross_entropy(view_, scores, tokens.wanted);
    return {std::move(scores), std::move(loss), tokens.wanted, tokens.real};
  }

  sequence<shardplan::rotary_table, L, std::vector<T>> rotary(const local_tokens<L, T>& tokens) const {
    sequence<shardplan::rotary_table, L, std::vector<T>> table(tokens.at, view_.model().head_dim);
    runtime::rotary_table<T>(rotary_, tokens.at.data(), table.data());
    return table;
  }

  routed_tokens routed(const local_tokens<L, T>& tokens) const {
    routed_tokens out;
    for (num at : tokens.real.data()) out.real.push_back(at >= 0);
    return out;
  }

  rank_view<C> view_;
  parameter_store<T, C> parameters_;
  rotary_frequencies rotary_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_EXECUTOR_HPP
