// SPDX-License-Identifier: Apache-2.0
// The mixture of experts across ranks. Tokens that tp ranks hold in common are split between them by row first, so that
// each (token, choice) pair is computed once; then rows travel to experts, or partial sums travel back. The backward
// takes the same ways in the other direction.
// Letters: n tokens of this context-parallel rank, r of them this rank routes, H hidden, E experts, k per token,
// slots experts of one ep rank, I width of an expert on one etp rank.
#ifndef SHARDPLAN_RUNTIME_SHARDED_EXPERTS_HPP
#define SHARDPLAN_RUNTIME_SHARDED_EXPERTS_HPP

#include <algorithm>
#include <numeric>

#include "runtime/sharded/linear.hpp"

namespace shardplan::runtime {

/// What routing needs to know of the n tokens beside their hidden states.
struct routed_tokens {
  std::vector<char> real;     ///< (n): padding is not routed
  std::vector<char> counted;  ///< (n): part of the auxiliary loss, which leaves out what attention_mask hides
  std::vector<num> forced;    ///< (n, k) experts to choose, -1: as the router says; empty: nowhere
};

/// The choices of r rows: experts (r, k), -1 in rows of padding, their weights (r, k), and all probabilities (r, E).
template <class T>
struct routing {
  num per_token = 0;
  std::vector<num> experts;
  buffer<T> weights, probabilities;
};

template <class T>
routing<T> route(const model_config& config, std::span<const T> x, const parameter_part<T>& router,
                 const routed_tokens& tokens, num first) {
  const model_spec& m = config.spec;
  const num k = m.num_experts_per_tok, n = static_cast<num>(x.size()) / m.hidden_size;
  const auto pairs = static_cast<std::size_t>(n * k);
  routing<T> out{k, std::vector<num>(pairs, -1), buffer<T>(pairs), linear(x, router)};
  if (!tokens.forced.empty()) std::copy_n(tokens.forced.begin() + first * k, n * k, out.experts.begin());
  choose_experts<T>(out.probabilities, m.num_experts, k, config.norm_topk_prob, out.experts, out.weights);
  for (num i = 0; i < n; ++i)
    if (!tokens.real[static_cast<std::size_t>(first + i)]) std::fill_n(out.experts.begin() + i * k, k, -1);
  return out;
}

/// The gradient of the router's scores (r, E) for that of the weights (r, k).
template <class T>
buffer<T> route_backward(const model_config& config, const routing<T>& chosen, std::span<const T> dweights) {
  buffer<T> dscores = chosen.probabilities;
  choose_experts_backward<T>(dscores, config.spec.num_experts, chosen.per_token, config.norm_topk_prob, chosen.experts,
                             chosen.weights, dweights);
  return dscores;
}

/// What the load-balancing loss of a micro-batch is made of, over all rows of all its MoE layers. Sums, so that ranks
/// and stages can add theirs: the loss is a product of means, and means come first.
///   loss = E * sum over e of (chosen[e] / rows) * (probability[e] / rows)
template <class T>
class balance_statistics {
 public:
  explicit balance_statistics(num experts = 0) : values_(static_cast<std::size_t>(2 * experts + 1), T{0}) {}
  buffer<T>& values() { return values_; }
  const buffer<T>& values() const { return values_; }

  /// Adds the counted ones of rows [first, first + r) of the rank's tokens.
  void add_rows(const routing<T>& chosen, const routed_tokens& tokens, num first) {
    const std::size_t E = num_experts(), k = static_cast<std::size_t>(chosen.per_token), r = chosen.experts.size() / k;
    for (std::size_t i = 0; i < r; ++i) {
      if (!tokens.counted[static_cast<std::size_t>(first) + i]) continue;
      for (std::size_t j = 0; j < k; ++j) values_[static_cast<std::size_t>(chosen.experts[i * k + j])] += 1;
      for (std::size_t e = 0; e < E; ++e) values_[E + e] += chosen.probabilities[i * E + e];
      values_.back() += 1;
    }
  }
  T loss() const {
    const std::size_t E = num_experts();
    T sum = 0;
    if (values_.back() == 0) return 0;
    for (std::size_t e = 0; e < E; ++e) sum += values_[e] / values_.back() * (values_[E + e] / values_.back());
    return static_cast<T>(E) * sum;
  }
  /// dscores (r, E) grow by `scale` times the loss's gradient of the counted rows; only probabilities carry it.
  void add_gradient(std::span<T> dscores, const routing<T>& chosen, std::span<const char> counted, T scale) const {
    const std::size_t E = num_experts();
    if (values_.back() == 0) return;
    for (std::size_t i = 0; i < counted.size(); ++i) {
      if (!counted[i]) continue;
      const T* p = chosen.probabilities.data() + i * E;
      const T each = scale * static_cast<T>(E) / (values_.back() * values_.back());
      T along = 0;
      for (std::size_t e = 0; e < E; ++e) along += p[e] * values_[e] * each;
      for (std::size_t e = 0; e < E; ++e) dscores[i * E + e] += p[e] * (values_[e] * each - along);
    }
  }

 private:
  std::size_t num_experts() const { return values_.size() / 2; }
  buffer<T> values_;  // chosen (E), probability (E), rows
};

/// The experts of one rank on rows sorted by expert. What they return is a part of the sum over etp.
template <class T>
class expert_bank {
 public:
  /// y (rows, H) for x (rows, H), of which `counts[slot]` are for each expert here, expert by expert.
  buffer<T> forward(buffer<T> x, std::vector<num> counts, const parameters_in_use<T>& w) {
    x_ = std::move(x), counts_ = std::move(counts);
    const num H = w[parameter_kind::experts_gate_up].shape[2], I = w[parameter_kind::experts_down].shape[2];
    const num n = H == 0 ? 0 : static_cast<num>(x_.size()) / H;
    wide_.resize(static_cast<std::size_t>(n * 2 * I));
    buffer<T> act(static_cast<std::size_t>(n * I)), y(x_.size());
    for_each_expert([&](num slot, num row, num rows) {
      gemm_nt({x_.data() + row * H, rows, H}, gate_up(w, slot),
              matrix_view<T>(wide_.data() + row * 2 * I, rows, 2 * I));
    });
    swiglu<T>(read_only(wide_), I, act);
    for_each_expert([&](num slot, num row, num rows) {
      gemm_nt({act.data() + row * I, rows, I}, down(w, slot), matrix_view<T>(y.data() + row * H, rows, H));
    });
    return y;
  }

  /// dx (rows, H) for dy (rows, H). Uses up what forward left.
  buffer<T> backward(std::span<const T> dy, const parameters_in_use<T>& w, std::span<T> dgate_up, std::span<T> ddown) {
    const num H = w[parameter_kind::experts_gate_up].shape[2], I = w[parameter_kind::experts_down].shape[2];
    buffer<T> act(wide_.size() / 2), dact(act.size()), dx(x_.size());
    swiglu<T>(read_only(wide_), I, act);
    for_each_expert([&](num slot, num row, num rows) {
      const matrix_view<const T> d(dy.data() + row * H, rows, H);
      gemm_nn(d, down(w, slot), matrix_view<T>(dact.data() + row * I, rows, I));
      gemm_tn(d, {act.data() + row * I, rows, I}, matrix_view<T>(ddown.data() + slot * H * I, H, I), T{1}, T{1});
    });
    swiglu_backward<T>(wide_, I, read_only(dact));
    for_each_expert([&](num slot, num row, num rows) {
      const matrix_view<const T> d(wide_.data() + row * 2 * I, rows, 2 * I);
      gemm_nn(d, gate_up(w, slot), matrix_view<T>(dx.data() + row * H, rows, H));
      gemm_tn(d, {x_.data() + row * H, rows, H}, matrix_view<T>(dgate_up.data() + slot * 2 * I * H, 2 * I, H), T{1},
              T{1});
    });
    return dx;
  }

 private:
  static matrix_view<const T> gate_up(const parameters_in_use<T>& w, num slot) {
    const parameter_part<T>& p = w[parameter_kind::experts_gate_up];
    return {p.values.data() + slot * p.shape[1] * p.shape[2], p.shape[1], p.shape[2]};
  }
  static matrix_view<const T> down(const parameters_in_use<T>& w, num slot) {
    const parameter_part<T>& p = w[parameter_kind::experts_down];
    return {p.values.data() + slot * p.shape[1] * p.shape[2], p.shape[1], p.shape[2]};
  }
  template <class F>
  void for_each_expert(F&& f) const {
    num row = 0;
    for (std::size_t slot = 0; slot < counts_.size(); ++slot) {
      if (counts_[slot] == 0) continue;  // also the padding slots, which have no weights
      f(static_cast<num>(slot), row, counts_[slot]);
      row += counts_[slot];
    }
  }

  buffer<T> x_, wide_;  // (rows, H), (rows, 2I)
  std::vector<num> counts_;
};

/// Pairs (token, choice) sorted by expert: `order[j]` is the pair in place j, `counts[e]` how many chose expert e of
/// [first, first + count). Pairs of other experts, and of padding, are left out.
struct pairs_by_expert {
  std::vector<num> order, counts;

  pairs_by_expert() = default;
  pairs_by_expert(std::span<const num> experts, num first, num count) : counts(static_cast<std::size_t>(count)) {
    const auto here = [&](num e) { return e >= first && e < first + count; };
    for (num e : experts)
      if (here(e)) ++counts[static_cast<std::size_t>(e - first)];
    std::vector<num> next(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), next.begin(), num{0});
    order.resize(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), num{0})));
    for (std::size_t pair = 0; pair < experts.size(); ++pair)
      if (here(experts[pair]))
        order[static_cast<std::size_t>(next[static_cast<std::size_t>(experts[pair] - first)]++)] =
            static_cast<num>(pair);
  }
};

/// The rows of x (r, H) that the pairs name: (pairs, H).
template <class T>
buffer<T> rows_of_pairs(std::span<const T> x, const pairs_by_expert& pairs, num per_token, num H) {
  buffer<T> out(pairs.order.size() * static_cast<std::size_t>(H));
  auto to = out.begin();
  for (num pair : pairs.order) to = std::copy_n(x.begin() + pair / per_token * H, H, to);
  return out;
}

/// y (r, H): the sum of weight * row over the pairs of each token, in the order of its choices, so that it does not
/// depend on where experts live.
template <class T>
buffer<T> combine_pairs(std::span<const T> rows, const pairs_by_expert& pairs, const routing<T>& chosen, num r, num H) {
  std::vector<num> place(chosen.experts.size(), -1);
  for (std::size_t j = 0; j < pairs.order.size(); ++j)
    place[static_cast<std::size_t>(pairs.order[j])] = static_cast<num>(j);
  buffer<T> y(static_cast<std::size_t>(r * H), T{0});
  for (std::size_t pair = 0; pair < place.size(); ++pair) {
    if (place[pair] < 0) continue;
    const T weight = chosen.weights[pair];
    const T* from = rows.data() + place[pair] * H;
    T* to = y.data() + static_cast<num>(pair) / chosen.per_token * H;
    for (num h = 0; h < H; ++h) to[h] += weight * from[h];
  }
  return y;
}

/// From dy (r, H) to drows (pairs, H); `dweights` (r, k) of the pairs here, 0 elsewhere.
template <class T>
buffer<T> combine_pairs_backward(std::span<const T> dy, std::span<const T> rows, const pairs_by_expert& pairs,
                                 const routing<T>& chosen, num H, buffer<T>& dweights) {
  buffer<T> drows(rows.size());
  dweights.assign(chosen.weights.size(), T{0});
  for (std::size_t j = 0; j < pairs.order.size(); ++j) {
    const auto pair = static_cast<std::size_t>(pairs.order[j]);
    const T* d = dy.data() + pairs.order[j] / chosen.per_token * H;
    const T* row = rows.data() + static_cast<num>(j) * H;
    T* to = drows.data() + static_cast<num>(j) * H;
    T along = 0;
    for (num h = 0; h < H; ++h) along += d[h] * row[h], to[h] = chosen.weights[pair] * d[h];
    dweights[pair] = along;
  }
  return drows;
}

/// x (r, H) grows by the rows of its pairs: the backward of rows_of_pairs.
template <class T>
void add_rows_of_pairs(std::span<T> x, std::span<const T> rows, const pairs_by_expert& pairs, num per_token, num H) {
  for (std::size_t j = 0; j < pairs.order.size(); ++j)
    add<T>(x.subspan(static_cast<std::size_t>(pairs.order[j] / per_token * H), static_cast<std::size_t>(H)),
           rows.subspan(j * static_cast<std::size_t>(H), static_cast<std::size_t>(H)));
}

/// What the experts of one rank contribute to given rows: y (r, H), partial over the ep x etp group.
template <class T>
class contribution {
 public:
  template <Communicator C>
  buffer<T> forward(const rank_view<C>& view, std::span<const T> x, const routing<T>& chosen,
                    const parameters_in_use<T>& w) {
    const num H = view.model().hidden_size, slots = expert_slots(view.plan, view.model());
    pairs_ = pairs_by_expert(chosen.experts, view.at(axis::ep) * slots, slots);
    results_ = bank_.forward(rows_of_pairs(x, pairs_, chosen.per_token, H), pairs_.counts, w);
    return combine_pairs<T>(results_, pairs_, chosen, static_cast<num>(x.size()) / H, H);
  }
  /// dx (r, H) without the router's share, and `dweights` (r, k); both partial over the ep x etp group.
  template <Communicator C>
  buffer<T> backward(const rank_view<C>& view, std::span<const T> dy, const routing<T>& chosen,
                     const parameters_in_use<T>& w, std::span<T> dgate_up, std::span<T> ddown, buffer<T>& dweights) {
    const num H = view.model().hidden_size;
    const buffer<T> drows = combine_pairs_backward<T>(dy, results_, pairs_, chosen, H, dweights);
    buffer<T> dx(dy.size(), T{0});
    add_rows_of_pairs<T>(dx, bank_.backward(drows, w, dgate_up, ddown), pairs_, chosen.per_token, H);
    return dx;
  }

 private:
  pairs_by_expert pairs_;
  expert_bank<T> bank_;
  buffer<T> results_;  // (pairs, H)
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_EXPERTS_HPP
