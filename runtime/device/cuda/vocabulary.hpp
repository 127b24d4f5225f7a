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
  bool at_once;  // neighbours are moved so
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
      each_group<threads>(constant<in_16_bytes<T>>{}, at.thread, a.width, a.at_once, [&](num i, auto n) {
        const auto logits = load(row + i, n);
        for_each_of(n, [&](int k) {
          if constexpr (Sum)
            value += std::exp(widen(logits[k]) - a.largest[at.block]);
          else
            value = fold{}(widen(logits[k]), value);
        });
      });
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
  static constexpr int at_once = in_16_bytes<T>;
  T* logits;
  const num* targets;
  num first, width;
  const accumulated<T>* log_sum;
  accumulated<T> scale;
  bool is_aligned() const { return are_aligned<at_once>(logits) && width % at_once == 0; }
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {
    const num target = targets[row], column = target - first;
    const accumulated<T> log_sum_here = log_sum[row];
    const accumulated<T> scale_here = target < 0 ? 0 : scale;
    c.each(constant<at_once>{}, [&](num i, auto n) {
      T* at = logits + row * width + i;
      const auto here = load(at, n);
      store(at, n, [&](int k) {
        const accumulated<T> p = target < 0 ? 0 : std::exp(widen(here[k]) - log_sum_here);
        return narrow<T>(std::fma(p, scale_here, i + k == column ? -scale_here : 0));
      });
    });
  }
};

template <class T, bool Sum, Launcher L>
void row_statistics(L& on, std::span<const T> logits, const accumulated<T>* largest, std::span<accumulated<T>> out) {
  constexpr int group = in_16_bytes<T>;
  const num n = static_cast<num>(out.size()), width = n == 0 ? 0 : static_cast<num>(logits.size()) / n;
  const bool at_once = width % group == 0 && are_aligned<group>(logits.data());
  on.template launch<row_statistic_kernel<T, Sum>>(n, {logits.data(), width, largest, out.data(), at_once});
}

/// largest (n): of each row, -infinity where W is 0
template <class T, Launcher L>
void row_max(L& on, std::span<const T> logits, std::span<accumulated<T>> largest) {
  row_statistics<T, false>(on, logits, nullptr, largest);
}
/// sums (n): of exp(logit - largest)
template <class T, Launcher L>
void row_exp_sum(L& on, std::span<const T> logits, std::span<const accumulated<T>> largest,
                 std::span<accumulated<T>> sums) {
  row_statistics<T, true>(on, logits, largest.data(), sums);
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
