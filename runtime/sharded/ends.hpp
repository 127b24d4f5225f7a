// SPDX-License-Identifier: Apache-2.0
// The two ends of the model, whose vocabulary is cut over tp: the embedding, and the head with its loss.
#ifndef SHARDPLAN_RUNTIME_SHARDED_ENDS_HPP
#define SHARDPLAN_RUNTIME_SHARDED_ENDS_HPP

#include "runtime/sharded/blocks.hpp"

namespace shardplan::runtime {

/// Rows of the vocabulary that this rank holds of the embedding.
template <Communicator C, Device D>
dim_range vocabulary_here(const rank_view<C, D>& view, parameter_kind kind) {
  return part_in_use(view.model(), view.plan, make_parameter(view.model(), kind), view.rank()).dims[0].ranges[0];
}
/// Rows of the vocabulary, columns of the logits, that this rank holds of the head.
template <Communicator C, Device D>
dim_range vocabulary_here(const rank_view<C, D>& view) {
  return vocabulary_here(view, head_weight(view.model()));
}
/// The ranks that hold the head's other rows: tp, or this rank alone where the head is whole on each.
template <Communicator C, Device D>
auto vocabulary_group(const rank_view<C, D>& view) {
  return is_cut(view.plan, head_weight(view.model())) ? view.group(axis::tp) : view.alone();
}

/// Each tp rank looks up the ids that its rows hold; the sum is the embedding. Given embeddings are only cut.
template <Layout L, class Residual, class T, Communicator C, Device D>
hidden<T, Residual, D> embed(const rank_view<C, D>& view, const micro_batch<L, T, D>& tokens,
                             const layer_state<T, D>& w) {
  const num H = view.model().hidden_size;
  if (!tokens.ids) {
    const num tp = residual_traits<Residual>::split ? view.plan.tp : 1, length = tokens.at.length() / tp;
    const auto size = static_cast<std::size_t>(length * tokens.at.rows() * H);
    const std::size_t first = tp > 1 ? static_cast<std::size_t>(view.at(axis::tp)) * size : 0;
    return {length, tokens.at.rows(), H, copied<T>(view.on, read_only(tokens.embeds->data()).subspan(first, size)), {}};
  }
  auto x = unwritten<T>(view.on, tokens.at, H);
  look_up<T>(view.on, w[parameter_kind::embed_tokens].values, tokens.ids->data(),
             vocabulary_here(view, parameter_kind::embed_tokens).begin, H, x.data());
  return after_modules<Residual>(view, std::move(x), parameter_kind::embed_tokens);
}

template <Layout L, class Residual, class T, Communicator C, Device D>
void embed_backward(const rank_view<C, D>& view, const hidden<T, Residual, D>& dx, const micro_batch<L, T, D>& tokens,
                    const layer_state<T, D>& w) {
  if (!tokens.ids) return;
  const auto& every = gather_tokens(view, dx);
  look_up_backward<T>(view.on, every.data(), tokens.ids->data(),
                      vocabulary_here(view, parameter_kind::embed_tokens).begin, view.model().hidden_size,
                      w.gradient(parameter_kind::embed_tokens));
}

/// Cross-entropy of logits (s, b, V') whose vocabulary is cut over vocabulary_group(): every tp rank gets every token's
/// loss. Logits and targets must be of one layout; anything else does not compile. This is the default of the loss
/// seam: another loss is another class with these two members.
template <class T, class D = cpu_device>
class vocabulary_cross_entropy {
  using A = accumulated<T>;

 public:
  template <Layout L>
  using scores_sequence = sequence<logits, L, buffer_on<D, T>>;
  template <Layout L>
  using targets_sequence = sequence<targets, L, buffer_on<D, num>>;

  /// Losses (s, b) of all tokens, 0 where there is no target. The run's loss is their sum over all ranks divided by
  /// `num_items`, the real targets of the global batch.
  template <Layout L, Communicator C>
  sequence<token_losses, L, buffer_on<D, A>> forward(const rank_view<C, D>& view, const scores_sequence<L>& scores,
                                                     const targets_sequence<L>& wanted, num /*num_items*/) {
    const auto parts = vocabulary_group(view);
    const auto n = static_cast<std::size_t>(scores.tokens());
    auto largest = allocate<A>(view.on, n), picked = allocate<A>(view.on, n), losses = allocate<A>(view.on, n);
    log_sum_ = allocate<A>(view.on, n);
    row_max<T>(view.on, scores.data(), largest);
    view.comm.all_reduce(parts, std::span<A>(largest), reduce_op::max);
    row_exp_sum<T>(view.on, scores.data(), largest, log_sum_);
    view.comm.all_reduce(parts, std::span<A>(log_sum_), reduce_op::sum);
    pick_targets<T>(view.on, scores.data(), wanted.data(), vocabulary_here(view).begin, picked);
    view.comm.all_reduce(parts, std::span<A>(picked), reduce_op::sum);
    losses_of_tokens<A>(view.on, log_sum_, largest, picked, wanted.data(), losses);
    return {scores, 1, std::move(losses)};
  }

  /// The gradient of the run's loss with respect to the logits, in their place.
  template <Layout L, Communicator C>
  void backward(const rank_view<C, D>& view, scores_sequence<L>& scores, const targets_sequence<L>& wanted,
                num num_items) {
    cross_entropy_backward<T>(view.on, scores.data(), wanted.data(), vocabulary_here(view).begin, log_sum_,
                              num_items > 0 ? A{1} / static_cast<A>(num_items) : A{0});
  }

 private:
  buffer_on<D, A> log_sum_;  // (n): of each token, over the whole vocabulary
};

/// Final norm, head and loss.
template <Layout L, class Residual, class T, class Loss, class D = cpu_device>
class head_block {
 public:
  using stream = hidden<T, Residual, D>;
  using scores_sequence = sequence<logits, L, buffer_on<D, T>>;

  /// Weights: final_norm, and `head` (the head, or the embedding it is tied to).
  template <Communicator C>
  sequence<token_losses, L, buffer_on<D, accumulated<T>>> forward(const rank_view<C, D>& view, const stream& x,
                                                                  const micro_batch<L, T, D>& tokens,
                                                                  const layer_state<T, D>& w, parameter_kind head,
                                                                  num num_items) {
    const stream normed = norm_.forward(view, x, w, parameter_kind::final_norm);
    const auto& every = gather_tokens(view, normed);
    x_ = copied<T>(view.on, every.data());
    scores_.emplace(every, w[head].shape[0], linear<T>(view.on, x_, w[head]));
    return loss_.forward(view, *scores_, tokens.wanted, num_items);
  }
  /// The logits, of whoever has no backward to come.
  scores_sequence scores(const D&) && { return std::move(*scores_); }
  /// A copy of them: a backward still needs them.
  scores_sequence scores(const D& on) const& { return {*scores_, scores_->width(), copied<T>(on, scores_->data())}; }

  template <Communicator C>
  stream backward(const rank_view<C, D>& view, const micro_batch<L, T, D>& tokens, const layer_state<T, D>& w,
                  parameter_kind head, num num_items) {
    scores_sequence dscores = scores(view.on);
    loss_.backward(view, dscores, tokens.wanted, num_items);
    hidden<T, L, D> dx(dscores, view.model().hidden_size,
                       linear_backward<T>(view.on, x_, w[head], dscores.data(), w.gradient(head)));
    return norm_.backward(view, after_modules<Residual>(view, std::move(dx), head), w, parameter_kind::final_norm);
  }

 private:
  norm_block<Residual, T, D> norm_;
  buffer_on<D, T> x_;  // (n, H)
  std::optional<scores_sequence> scores_;
  Loss loss_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_ENDS_HPP
