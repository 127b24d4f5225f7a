// SPDX-License-Identifier: Apache-2.0
// Operations on a CPU that are plain loops, beside those of ops.hpp and pairs.hpp.
// Letters: n tokens, W width, D head_dim, E experts, k experts per token.
#ifndef SHARDPLAN_RUNTIME_DEVICE_LOOPS_HPP
#define SHARDPLAN_RUNTIME_DEVICE_LOOPS_HPP

#include <algorithm>  // copy_n, fill_n
#include <cmath>      // log, sqrt
#include <shardplan/run_shape.hpp>
#include <shardplan/sequence.hpp>
#include <span>

#include "runtime/device/adamw_step.hpp"
#include "runtime/device/ops.hpp"
#include "runtime/device/row_block.hpp"

namespace shardplan::runtime {

/// out (n, W): the row of each id in a table that holds ids from `first` on; 0 where another part of it does.
template <class T>
void look_up(std::span<const T> table, std::span<const num> ids, num first, num width, std::span<T> out) {
  const num rows = width == 0 ? 0 : static_cast<num>(table.size()) / width;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto to = out.begin() + static_cast<num>(i) * width;
    if (const num row = ids[i] - first; row >= 0 && row < rows)
      std::copy_n(table.begin() + row * width, width, to);
    else
      std::fill_n(to, width, T{0});
  }
}
/// dtable grows by dx (n, W) in the row of each token's id.
template <class T>
void look_up_backward(std::span<const T> dx, std::span<const num> ids, num first, num width, std::span<T> dtable) {
  const num rows = width == 0 ? 0 : static_cast<num>(dtable.size()) / width;
  const auto w = static_cast<std::size_t>(width);
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (const num row = ids[i] - first; row >= 0 && row < rows)
      add<T>(dtable.subspan(static_cast<std::size_t>(row) * w, w), dx.subspan(i * w, w));
}

/// Losses (n) of all tokens, 0 where there is no target, and in place of `sums` the log of the sum of exp over the
/// whole vocabulary: from row_max, row_exp_sum and pick_targets, put together over all parts of the vocabulary.
template <class T>
void losses_of_tokens(std::span<T> sums, std::span<const T> largest, std::span<const T> picked,
                      std::span<const num> targets, std::span<T> losses) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = std::log(sums[i]) + largest[i];
    losses[i] = targets[i] == ignored_target ? T{0} : sums[i] - picked[i];
  }
}

/// Expert -1 for all choices (n, k) of tokens that are not `real` (n).
inline void leave_out_padding(std::span<num> experts, std::span<const char> real, num per_token) {
  for (std::size_t i = 0; i < real.size(); ++i)
    if (!real[i]) std::fill_n(experts.begin() + static_cast<num>(i) * per_token, per_token, -1);
}

/// `statistics` (2E + 1) grow by those of the `counted` (n) rows: how often each expert was chosen, the sum of its
/// probabilities, and the number of rows.
template <class T>
void add_balance(std::span<const num> experts, std::span<const T> probabilities, std::span<const char> counted,
                 num per_token, std::span<T> statistics) {
  const std::size_t E = statistics.size() / 2, k = static_cast<std::size_t>(per_token);
  for (std::size_t i = 0; i < counted.size(); ++i) {
    if (!counted[i]) continue;
    for (std::size_t j = 0; j < k; ++j) statistics[static_cast<std::size_t>(experts[i * k + j])] += 1;
    for (std::size_t e = 0; e < E; ++e) statistics[E + e] += probabilities[i * E + e];
    statistics.back() += 1;
  }
}
/// dscores (n, E) grow by `scale` times the gradient of the load-balancing loss of the counted rows,
///   E * sum over e of (chosen[e] / rows) * (probability[e] / rows);
/// only probabilities carry it.
template <class T>
void add_balance_gradient(std::span<T> dscores, std::span<const T> probabilities, std::span<const T> statistics,
                          std::span<const char> counted, std::type_identity_t<T> scale) {
  const std::size_t E = statistics.size() / 2;
  const T rows = statistics.back();
  if (rows == 0) return;
  for (std::size_t i = 0; i < counted.size(); ++i) {
    if (!counted[i]) continue;
    const T* p = probabilities.data() + i * E;
    const T each = scale * static_cast<T>(E) / (rows * rows);
    T along = 0;
    for (std::size_t e = 0; e < E; ++e) along += p[e] * statistics[e] * each;
    for (std::size_t e = 0; e < E; ++e) dscores[i * E + e] += p[e] * (statistics[e] * each - along);
  }
}

/// What a Ulysses group of `ranks` sends when tokens are traded for heads: from x (n, heads, D) to out
/// (ranks, n, share, D), each rank's share of the heads together.
template <class T>
void pack_heads(std::span<const T> x, num heads, num head_dim, num ranks, std::span<T> out) {
  const num n = static_cast<num>(x.size()) / (heads * head_dim), share = num_traded_heads(heads, ranks);
  auto to = out.begin();
  for (num u = 0; u < ranks; ++u)
    for (num i = 0; i < n; ++i)
      to = std::copy_n(x.begin() + (i * heads + first_traded_head(heads, ranks, u)) * head_dim, share * head_dim, to);
}
/// What it makes of the answer: from (ranks, n, share, D) to out (n, heads, D). A head that went to several ranks is
/// summed, in their order: that is a gradient, which each of them owes a part of.
template <class T>
void sum_heads(std::span<const T> in, num heads, num head_dim, num ranks, std::span<T> out) {
  const num n = static_cast<num>(out.size()) / (heads * head_dim), share = num_traded_heads(heads, ranks);
  std::fill(out.begin(), out.end(), T{0});
  const T* from = in.data();
  for (num u = 0; u < ranks; ++u)
    for (num i = 0; i < n; ++i) {
      T* to = out.data() + (i * heads + first_traded_head(heads, ranks, u)) * head_dim;
      for (num j = 0; j < share * head_dim; ++j) to[j] += *from++;
    }
}

/// to (rows, W): what was received block by block, in the order of `blocks`.
template <class T>
void sort_blocks(std::span<const T> from, std::span<const row_block> blocks, num width, std::span<T> to) {
  for (const row_block& b : blocks)
    std::copy_n(from.begin() + b.received * width, b.rows * width, to.begin() + b.place * width);
}
/// The way back: rows by expert to the order they were received in.
template <class T>
void unsort_blocks(std::span<const T> from, std::span<const row_block> blocks, num width, std::span<T> to) {
  for (const row_block& b : blocks)
    std::copy_n(from.begin() + b.place * width, b.rows * width, to.begin() + b.received * width);
}

/// AdamW as Loshchilov and Hutter have it (arXiv 1711.05101), in the order of operations of torch.optim.AdamW.
template <class T>
void adamw_update(const adamw_step<T>& by, std::span<const T> gradient, std::span<T> values, std::span<T> first,
                  std::span<T> second) {
  const T decay = 1 - by.learning_rate * by.weight_decay;
  for (std::size_t i = 0; i < values.size(); ++i) {
    first[i] += (gradient[i] - first[i]) * (1 - by.beta1);
    second[i] = second[i] * by.beta2 + gradient[i] * gradient[i] * (1 - by.beta2);
    values[i] *= decay;
    values[i] -=
        by.learning_rate / by.correction1 * first[i] / (std::sqrt(second[i]) / std::sqrt(by.correction2) + by.epsilon);
  }
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_LOOPS_HPP
