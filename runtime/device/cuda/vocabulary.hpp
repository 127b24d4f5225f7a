// SPDX-License-Identifier: Apache-2.0
// Cross-entropy over a vocabulary that is cut: logits (n, W) hold columns [first, first + W) of it. One block per
// token; statistics are kept in what T is accumulated in.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_VOCABULARY_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_VOCABULARY_HPP

#include <shardplan/sequence.hpp>

#include "runtime/device/cuda/loops.hpp"

namespace shardplan::runtime::cuda {

template <class T>
struct row_statistic_arguments {
  const T* logits;
  num width;
  const accumulated<T>* largest;  // null: it is what is asked
  accumulated<T>* out;
};

/// The largest logit of a row, or the sum of exp(logit - largest).
template <class T, bool Sum>
struct row_statistic_kernel {
  static constexpr int threads = 256;
  using A = accumulated<T>;
  using arguments = row_statistic_arguments<T>;
  using fold = std::conditional_t<Sum, sum_of, largest_of>;
  struct shared {
    block_fold<A, threads> values;
  };
  struct state {};
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 3; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state&, shared& shared) {
    if (s == 0) {
      const T* row = a.logits + at.block * a.width;
      A value = Sum ? A{0} : largest_of::none<A>();
      for (num i = at.thread; i < a.width; i += threads)
        if constexpr (Sum)
          value += std::exp(widen(row[i]) - a.largest[at.block]);
        else
          value = fold{}(widen(row[i]), value);
      shared.values.put(at.thread, value);
    } else if (s == 1) {
      shared.values.fold(at.thread, fold{});
    } else if (at.thread == 0) {
      a.out[at.block] = shared.values.result(fold{});
    }
  }
};

template <class T>
struct pick_targets_body {
  const T* logits;
  const num* targets;
  num first, width;
  accumulated<T>* picked;
  SHARDPLAN_HOST_DEVICE void operator()(num row) const {
    const num column = targets[row] - first;
    picked[row] = column >= 0 && column < width ? widen(logits[row * width + column]) : 0;
  }
};

template <class A>
struct token_losses_body {
  const A *largest, *picked;
  const num* targets;
  A *sums, *losses;
  SHARDPLAN_HOST_DEVICE void operator()(num row) const {
    const A log_sum = std::log(sums[row]) + largest[row];
    sums[row] = log_sum;
    losses[row] = targets[row] == ignored_target ? 0 : log_sum - picked[row];
  }
};

template <class T>
struct cross_entropy_backward_body {
  T* logits;
  const num* targets;
  num first, width;
  const accumulated<T>* log_sum;
  accumulated<T> scale;
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {
    const num target = targets[row], column = target - first;
    T* at = logits + row * width;
    for (num i = c.begin; i < c.end; i += c.step) {
      const accumulated<T> p = target < 0 ? 0 : std::exp(widen(at[i]) - log_sum[row]) * scale;
      at[i] = narrow<T>(target >= 0 && i == column ? p - scale : p);
    }
  }
};

/// largest (n): of each row, -infinity where W is 0
template <class T, Launcher L>
void row_max(L& on, std::span<const T> logits, std::span<accumulated<T>> largest) {
  const num n = static_cast<num>(largest.size());
  on.template launch<row_statistic_kernel<T, false>>(
      n, {logits.data(), n == 0 ? 0 : static_cast<num>(logits.size()) / n, nullptr, largest.data()});
}
/// sums (n): of exp(logit - largest)
template <class T, Launcher L>
void row_exp_sum(L& on, std::span<const T> logits, std::span<const accumulated<T>> largest,
                 std::span<accumulated<T>> sums) {
  const num n = static_cast<num>(sums.size());
  on.template launch<row_statistic_kernel<T, true>>(
      n, {logits.data(), n == 0 ? 0 : static_cast<num>(logits.size()) / n, largest.data(), sums.data()});
}
/// picked (n): the logit of each row's target where this part holds it, else 0
template <class T, Launcher L>
void pick_targets(L& on, std::span<const T> logits, std::span<const num> targets, num first,
                  std::span<accumulated<T>> picked) {
  const num n = static_cast<num>(picked.size()), width = n == 0 ? 0 : static_cast<num>(logits.size()) / n;
  for_each_element(on, n, pick_targets_body<T>{logits.data(), targets.data(), first, width, picked.data()});
}

/// Losses (n) of all tokens, 0 where there is no target, and in place of `sums` the log of the sum of exp over the
/// whole vocabulary: from the three above, summed (largest: its largest) over all parts of the vocabulary.
template <class A, Launcher L>
void losses_of_tokens(L& on, std::span<A> sums, std::span<const A> largest, std::span<const A> picked,
                      std::span<const num> targets, std::span<A> losses) {
  for_each_element(on, static_cast<num>(losses.size()),
                   token_losses_body<A>{largest.data(), picked.data(), targets.data(), sums.data(), losses.data()});
}

/// The gradient of each logit, in its place: (exp(logit - log_sum) - [is the target]) * scale, and 0 in rows whose
/// target is negative. log_sum (n): log of the sum of exp over the whole vocabulary.
template <class T, Launcher L>
void cross_entropy_backward(L& on, std::span<T> logits, std::span<const num> targets, num first,
                            std::span<const accumulated<T>> log_sum, accumulated<T> scale) {
  const num n = static_cast<num>(targets.size()), width = n == 0 ? 0 : static_cast<num>(logits.size()) / n;
  for_each_row(on, n, width,
               cross_entropy_backward_body<T>{logits.data(), targets.data(), first, width, log_sum.data(), scale});
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_VOCABULARY_HPP
