// SPDX-License-Identifier: Apache-2.0
// The two ends of the model, whose vocabulary is cut over tp: the embedding, and the head with its loss.
#ifndef SHARDPLAN_RUNTIME_SHARDED_ENDS_HPP
#define SHARDPLAN_RUNTIME_SHARDED_ENDS_HPP

#include <cmath>

#include "runtime/sharded/blocks.hpp"

namespace shardplan::runtime {

/// Rows of the vocabulary that this rank holds of the embedding.
template <Communicator C>
dim_range vocabulary_here(const rank_view<C>& view, parameter_kind kind) {
  return part_in_use(view.model(), view.plan, make_parameter(view.model(), kind), view.rank()).dims[0].ranges[0];
}
/// Rows of the vocabulary, columns of the logits, that this rank holds of the head.
template <Communicator C>
dim_range vocabulary_here(const rank_view<C>& view) {
  return vocabulary_here(view, head_weight(view.model()));
}
/// The ranks that hold the head's other rows: tp, or this rank alone where the head is whole on each.
template <Communicator C>
auto vocabulary_group(const rank_view<C>& view) {
  return is_cut(view.plan, head_weight(view.model())) ? view.group(axis::tp) : view.alone();
}

/// Each tp rank looks up the ids that its rows hold; the sum is the embedding. Given embeddings are only cut.
template <Layout L, class Residual, class T, Communicator C>
hidden<T, Residual> embed(const rank_view<C>& view, const local_tokens<L, T>& tokens, const layer_state<T>& w) {
  const num H = view.model().hidden_size;
  if (!tokens.ids) {
    hidden<T, Residual> x(tokens.at.length() / (residual_traits<Residual>::split ? view.plan.tp : 1), tokens.at.rows(),
                          H, {});
    const num first = residual_traits<Residual>::split ? view.at(axis::tp) * static_cast<num>(x.data().size()) : 0;
    std::copy_n(tokens.embeds->data().begin() + first, x.data().size(), x.data().begin());
    return x;
  }
  const dim_range here = vocabulary_here(view, parameter_kind::embed_tokens);
  const std::span<const T> table = w[parameter_kind::embed_tokens].values;
  hidden<T, L> x(tokens.at, H);
  for (std::size_t i = 0; i < tokens.ids->data().size(); ++i)
    if (const num id = tokens.ids->data()[i]; id >= here.begin && id < here.end)
      std::copy_n(table.begin() + (id - here.begin) * H, H, x.data().begin() + static_cast<num>(i) * H);
  return after_modules<Residual>(view, std::move(x), parameter_kind::embed_tokens);
}

template <Layout L, class Residual, class T, Communicator C>
void embed_backward(const rank_view<C>& view, const hidden<T, Residual>& dx, const local_tokens<L, T>& tokens,
                    const layer_state<T>& w) {
  if (!tokens.ids) return;
  const auto& every = gather_tokens(view, dx);
  const num H = view.model().hidden_size;
  const dim_range here = vocabulary_here(view, parameter_kind::embed_tokens);
  const std::span<T> table = w.gradient(parameter_kind::embed_tokens);
  for (std::size_t i = 0; i < tokens.ids->data().size(); ++i)
    if (const num id = tokens.ids->data()[i]; id >= here.begin && id < here.end)
      add<T>(table.subspan(static_cast<std::size_t>((id - here.begin) * H), static_cast<std::size_t>(H)),
             std::span<const T>(every.data()).subspan(i * static_cast<std::size_t>(H), static_cast<std::size_t>(H)));
}

/// Cross-entropy of logits (s, b, V') whose vocabulary is cut over vocabulary_group(): every tp rank gets every token's
/// loss. Logits and targets must be of one layout; anything else does not compile. This is the default of the loss
/// seam: another loss is another class with these two members.
template <class T>
class vocabulary_cross_entropy {
 public:
  /// Losses (s, b) of all tokens, 0 where there is no target. The run's loss is their sum over all ranks divided by
  /// `num_items`, the real targets of the global batch.
  template <Layout L, Communicator C>
  sequence<token_losses, L, buffer<T>> forward(const rank_view<C>& view, const sequence<logits, L, buffer<T>>& scores,
                                               const num_sequence<targets, L>& wanted, num /*num_items*/) {
    const auto parts = vocabulary_group(view);
    const auto n = static_cast<std::size_t>(scores.tokens());
    buffer<T> largest(n), picked(n);
    log_sum_.resize(n);
    row_max<T>(scores.data(), largest);
    view.comm.all_reduce(parts, std::span<T>(largest), reduce_op::max);
    row_exp_sum<T>(scores.data(), largest, log_sum_);
    view.comm.all_reduce(parts, std::span<T>(log_sum_), reduce_op::sum);
    pick_targets<T>(scores.data(), wanted.data(), vocabulary_here(view).begin, picked);
    view.comm.all_reduce(parts, std::span<T>(picked), reduce_op::sum);
    sequence<token_losses, L, buffer<T>> loss(scores, 1);
    for (std::size_t i = 0; i < n; ++i) {
      log_sum_[i] = std::log(log_sum_[i]) + largest[i];
      if (wanted.data()[i] != ignored_target) loss.data()[i] = log_sum_[i] - picked[i];
    }
    return loss;
  }

  /// The gradient of the run's loss with respect to the logits, in their place.
  template <Layout L, Communicator C>
  void backward(const rank_view<C>& view, sequence<logits, L, buffer<T>>& scores,
                const num_sequence<targets, L>& wanted, num num_items) {
    cross_entropy_backward<T>(scores.data(), wanted.data(), vocabulary_here(view).begin, log_sum_,
                              num_items > 0 ? T{1} / static_cast<T>(num_items) : T{0});
  }

 private:
  buffer<T> log_sum_;  // (n): of each token, over the whole vocabulary
};

/// Final norm, head and loss.
template <Layout L, class Residual, class T, class Loss>
class head_block {
 public:
  using stream = hidden<T, Residual>;
  using scores_sequence = sequence<logits, L, buffer<T>>;

  /// Weights: final_norm, and `head` (the head, or the embedding it is tied to).
  template <Communicator C>
  sequence<token_losses, L, buffer<T>> forward(const rank_view<C>& view, const stream& x,
                                               const local_tokens<L, T>& tokens, const layer_state<T>& w,
                                               parameter_kind head, num num_items) {
    const stream normed = norm_.forward(view.config, x, w, parameter_kind::final_norm);
    const auto& every = gather_tokens(view, normed);
    x_ = every.data();
    scores_.emplace(every, w[head].shape[0], linear<T>(x_, w[head]));
    return loss_.forward(view, *scores_, tokens.wanted, num_items);
  }
  const scores_sequence& scores() const { return *scores_; }

  template <Communicator C>
  stream backward(const rank_view<C>& view, const local_tokens<L, T>& tokens, const layer_state<T>& w,
                  parameter_kind head, num num_items) {
    scores_sequence dscores = *scores_;
    loss_.backward(view, dscores, tokens.wanted, num_items);
    hidden<T, L> dx(dscores, view.model().hidden_size,
                    linear_backward<T>(x_, w[head], dscores.data(), w.gradient(head)));
    return norm_.backward(view.config, after_modules<Residual>(view, std::move(dx), head), w,
                          parameter_kind::final_norm);
  }

 private:
  norm_block<Residual, T> norm_;
  buffer<T> x_;  // (n, H)
  std::optional<scores_sequence> scores_;
  Loss loss_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_ENDS_HPP
