// SPDX-License-Identifier: Apache-2.0
// The router's choice and its gradient: one block per token. Scores, probabilities and weights are float or double
// whatever the activations are stored in.
// Letters: n tokens, E experts, k experts per token.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ROUTER_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ROUTER_HPP

#include "runtime/device/cuda/loops.hpp"

namespace shardplan::runtime::cuda {

/// An expert and how probable it is; -1: none.
template <class A>
struct candidate {
  A probability;
  num expert;
};
/// The more probable one, the lower index of two that are equal.
struct better_of final {
  template <class A>
  SHARDPLAN_HOST_DEVICE static bool is_before(const candidate<A>& a, const candidate<A>& b) {
    return a.probability > b.probability || (a.probability == b.probability && a.expert < b.expert);
  }
  template <class A>
  SHARDPLAN_HOST_DEVICE candidate<A> operator()(const candidate<A>& a, const candidate<A>& b) const {
    if (a.expert < 0) return b;
    return b.expert >= 0 && is_before(b, a) ? b : a;
  }
};

template <class A>
struct choose_experts_arguments {
  A* scores;
  num num_experts, per_token;
  bool normalize;
  num* experts;
  A* weights;
};

template <class A, int Threads>
struct choose_experts_kernel {
  static constexpr int threads = Threads;
  using arguments = choose_experts_arguments<A>;
  struct shared {
    block_fold<A, Threads> largest, sum;
    block_fold<candidate<A>, Threads> best;
  };
  struct state {
    bool replayed;
    A largest;
    candidate<A> last;  // the expert chosen last
  };
  // Largest score; probabilities; then per choice two steps, a third being shared with the next choice; weights.
  static constexpr num first_choice = 4;
  SHARDPLAN_HOST_DEVICE static num steps(const arguments& a, num) { return first_choice + 2 * a.per_token + 1; }

  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state& mine, shared& shared) {
    A* p = a.scores + at.block * a.num_experts;
    num* chosen = a.experts + at.block * a.per_token;
    if (s == 0) {
      A largest = largest_of::none<A>();
      for (num e = at.thread; e < a.num_experts; e += threads) largest = largest_of{}(p[e], largest);
      shared.largest.put(at.thread, largest);
      mine.replayed = a.per_token > 0 && chosen[0] >= 0;
      return;
    }
    if (s == 1) return shared.largest.fold(at.thread, largest_of{});
    if (s == 2) {
      mine.largest = shared.largest.result(largest_of{});
      A sum = 0;
      for (num e = at.thread; e < a.num_experts; e += threads) sum += p[e] = std::exp(p[e] - mine.largest);
      return shared.sum.put(at.thread, sum);
    }
    if (s == 3) return shared.sum.fold(at.thread);
    const num choice = (s - first_choice) / 2;
    if ((s - first_choice) % 2 == 1) return shared.best.fold(at.thread, better_of{});
    if (choice == 0) {
      const A sum = shared.sum.result();
      for (num e = at.thread; e < a.num_experts; e += threads) p[e] /= sum;
      mine.last = {INFINITY, -1};  // before every expert
    } else {
      accept(a, mine, shared, chosen, choice - 1, at.thread);
    }
    if (choice < a.per_token) {
      // Who comes after the last one, in order of probability and index, was not chosen yet.
      candidate<A> best{0, -1};
      for (num e = at.thread; e < a.num_experts; e += threads)
        if (const candidate<A> c{p[e], e}; better_of::is_before(mine.last, c)) best = better_of{}(best, c);
      shared.best.put(at.thread, best);
    } else if (at.thread == 0) {
      weigh(a, at.block, p, chosen);
    }
  }

 private:
  SHARDPLAN_HOST_DEVICE static void accept(const arguments&, state& mine, const shared& shared, num* chosen, num choice,
                                           int thread) {
    mine.last = shared.best.result(better_of{});
    // Nothing is more probable than NaN: a row of it takes the first experts.
    if (mine.last.expert < 0) mine.last = {-1, choice};
    if (thread == 0 && !mine.replayed) chosen[choice] = mine.last.expert;
  }
  SHARDPLAN_HOST_DEVICE static void weigh(const arguments& a, num row, const A* p, const num* chosen) {
    A* weights = a.weights + row * a.per_token;
    A sum = 0;
    for (num k = 0; k < a.per_token; ++k) sum += weights[k] = p[chosen[k]];
    if (a.normalize)
      for (num k = 0; k < a.per_token; ++k) weights[k] /= sum;
  }
};

template <class A>
struct choose_experts_backward_arguments {
  A* probabilities;
  num num_experts, per_token;
  bool normalize;
  const num* experts;
  const A *weights, *dweights;
};

template <class A, int Threads>
struct choose_experts_backward_kernel {
  static constexpr int threads = Threads;
  using arguments = choose_experts_backward_arguments<A>;
  struct shared {};
  struct state {
    A sum, along, through;
  };
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 2; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state& mine, shared&) {
    A* p = a.probabilities + at.block * a.num_experts;
    const num* chosen = a.experts + at.block * a.per_token;
    const A *w = a.weights + at.block * a.per_token, *dw = a.dweights + at.block * a.per_token;
    const bool routed = a.per_token > 0 && chosen[0] >= 0;
    if (s == 0) {
      // w = p / sum of the chosen p, or p: then dL/dp = (dw - sum of w dw) / sum, or dw.
      mine = {1, 0, 0};
      if (!routed) return;
      if (a.normalize) {
        mine.sum = 0;
        for (num k = 0; k < a.per_token; ++k) mine.sum += p[chosen[k]], mine.along += w[k] * dw[k];
      }
      for (num k = 0; k < a.per_token; ++k) mine.through += p[chosen[k]] * ((dw[k] - mine.along) / mine.sum);
      return;
    }
    for (num e = at.thread; e < a.num_experts; e += threads) {
      A dp = 0;
      if (routed)
        for (num k = 0; k < a.per_token; ++k)
          if (chosen[k] == e) dp = (dw[k] - mine.along) / mine.sum;
      p[e] *= dp - mine.through;  // through the softmax
    }
  }
};

template <class A>
struct balance_term {
  const num* experts;
  const A* probabilities;
  const char* counted;
  num num_experts, per_token;
  SHARDPLAN_HOST_DEVICE A operator()(num row, num column) const {
    if (!counted[row]) return 0;
    if (column >= 2 * num_experts) return 1;
    if (column >= num_experts) return probabilities[row * num_experts + column - num_experts];
    A times = 0;
    for (num k = 0; k < per_token; ++k) times += experts[row * per_token + k] == column ? A{1} : A{0};
    return times;
  }
};

template <class A>
struct balance_gradient_arguments {
  A* dscores;
  const A *probabilities, *statistics;
  const char* counted;
  num num_experts;
  A scale;
};

template <class A, int Threads>
struct balance_gradient_kernel {
  static constexpr int threads = Threads;
  using arguments = balance_gradient_arguments<A>;
  struct shared {
    block_fold<A, Threads> along;
  };
  struct state {
    A each;  // what one more choice of an expert adds to the loss, per unit of probability
  };
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 3; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state& mine, shared& shared) {
    const A rows = a.statistics[2 * a.num_experts];
    if (rows == 0 || !a.counted[at.block]) return;
    const A* p = a.probabilities + at.block * a.num_experts;
    if (s == 0) {
      mine.each = a.scale * static_cast<A>(a.num_experts) / (rows * rows);
      A along = 0;
      for (num e = at.thread; e < a.num_experts; e += threads) along += p[e] * a.statistics[e] * mine.each;
      shared.along.put(at.thread, along);
    } else if (s == 1) {
      shared.along.fold(at.thread);
    } else {
      const A along = shared.along.result();
      for (num e = at.thread; e < a.num_experts; e += threads)
        a.dscores[at.block * a.num_experts + e] += p[e] * (a.statistics[e] * mine.each - along);
    }
  }
};

struct leave_out_padding_body {
  num* experts;
  const char* real;
  num per_token;
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {
    if (!real[row])
      for (num k = c.begin; k < c.end; k += c.step) experts[row * per_token + k] = -1;
  }
};

/// Softmax of each row of `scores` (n, E) over all experts, in place; then the k largest, largest first, a tie going to
/// the lower index: `experts` (n, k) and their `weights` (n, k), which sum to 1 iff `normalize`. Rows whose first entry
/// of `experts` is not negative on entry keep the experts they come with (a replayed choice). k is at most E.
template <class A, Launcher L>
void choose_experts(L& on, std::span<A> scores, num num_experts, num per_token, bool normalize, std::span<num> experts,
                    std::span<A> weights) {
  with_threads_for(num_experts, [&](auto threads) {
    on.template launch<choose_experts_kernel<A, threads>>(
        static_cast<num>(scores.size()) / num_experts,
        {scores.data(), num_experts, per_token, normalize, experts.data(), weights.data()});
  });
}

/// The gradient of the scores (n, E), from the probabilities that choose_experts left in their place, the experts
/// chosen and `dweights` (n, k), in place of the probabilities. Only weights are differentiable: the choice is not.
/// Rows that chose expert -1 get none. Linear in `dweights`, so that partial sums of them give partial sums here.
template <class A, Launcher L>
void choose_experts_backward(L& on, std::span<A> probabilities, num num_experts, num per_token, bool normalize,
                             std::span<const num> experts, std::span<const A> weights, std::span<const A> dweights) {
  with_threads_for(num_experts, [&](auto threads) {
    on.template launch<choose_experts_backward_kernel<A, threads>>(
        static_cast<num>(probabilities.size()) / num_experts,
        {probabilities.data(), num_experts, per_token, normalize, experts.data(), weights.data(), dweights.data()});
  });
}

/// Expert -1 for all choices (n, k) of tokens that are not `real` (n).
template <Launcher L>
void leave_out_padding(L& on, std::span<num> experts, std::span<const char> real, num per_token) {
  for_each_row(on, static_cast<num>(real.size()), per_token,
               leave_out_padding_body{experts.data(), real.data(), per_token});
}

/// `statistics` (2E + 1) grow by those of the `counted` (n) rows: how often each expert was chosen, the sum of its
/// probabilities, and the number of rows.
template <class A, Launcher L>
void add_balance(L& on, std::span<const num> experts, std::span<const A> probabilities, std::span<const char> counted,
                 num per_token, std::span<A> statistics) {
  add_column_sums<A>(on, static_cast<num>(counted.size()),
                     balance_term<A>{experts.data(), probabilities.data(), counted.data(),
                                     static_cast<num>(statistics.size()) / 2, per_token},
                     statistics);
}

/// dscores (n, E) grow by `scale` times the gradient of the load-balancing loss of the counted rows,
///   E * sum over e of (chosen[e] / rows) * (probability[e] / rows);
/// only probabilities carry it.
template <class A, Launcher L>
void add_balance_gradient(L& on, std::span<A> dscores, std::span<const A> probabilities, std::span<const A> statistics,
                          std::span<const char> counted, A scale) {
  const num num_experts = static_cast<num>(statistics.size()) / 2;
  with_threads_for(num_experts, [&](auto threads) {
    on.template launch<balance_gradient_kernel<A, threads>>(
        static_cast<num>(counted.size()),
        {dscores.data(), probabilities.data(), statistics.data(), counted.data(), num_experts, scale});
  });
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ROUTER_HPP
