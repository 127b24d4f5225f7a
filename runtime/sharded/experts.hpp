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
template <class D = cpu_device>
struct routed_tokens {
  std::span<const char> real;     ///< (n): padding is not routed
  std::span<const char> counted;  ///< (n): part of the auxiliary loss, which leaves out what attention_mask hides
  std::span<const num> forced;    ///< (n, k) experts to choose, -1: as the router says; empty: nowhere
};

/// The choices of r rows: experts (r, k), -1 in rows of padding, their weights (r, k), and all probabilities (r, E).
template <class T, class D = cpu_device>
struct routing {
  num per_token = 0;
  buffer_on<D, num> experts;
  buffer_on<D, accumulated<T>> weights, probabilities;
};

template <class T, Communicator C, Device D>
routing<T, D> route(const rank_view<C, D>& view, std::span<const T> x, const parameter_part<T>& router,
                    const routed_tokens<D>& tokens, num first) {
  using A = accumulated<T>;
  const model_spec& m = view.model();
  const num k = m.num_experts_per_tok, n = static_cast<num>(x.size()) / m.hidden_size;
  const auto rows = static_cast<std::size_t>(n), pairs = static_cast<std::size_t>(n * k);
  routing<T, D> out{k,
                    tokens.forced.empty()
                        ? filled<num>(view.on, pairs, num{-1})
                        : copied<num>(view.on, tokens.forced.subspan(static_cast<std::size_t>(first * k), pairs)),
                    allocate<A>(view.on, pairs), linear<T, A>(view.on, x, router)};
  choose_experts<A>(view.on, out.probabilities, m.num_experts, k, view.config.norm_topk_prob, out.experts, out.weights);
  leave_out_padding(view.on, out.experts, tokens.real.subspan(static_cast<std::size_t>(first), rows), k);
  return out;
}

/// The gradient of the router's scores (r, E) for that of the weights (r, k).
template <class T, Communicator C, Device D>
buffer_on<D, accumulated<T>> route_backward(const rank_view<C, D>& view, const routing<T, D>& chosen,
                                            std::span<const accumulated<T>> dweights) {
  using A = accumulated<T>;
  buffer_on<D, A> dscores = copied<A>(view.on, chosen.probabilities);
  choose_experts_backward<A>(view.on, dscores, view.model().num_experts, chosen.per_token, view.config.norm_topk_prob,
                             chosen.experts, chosen.weights, dweights);
  return dscores;
}

/// What the load-balancing loss of a micro-batch is made of, over all rows of all its MoE layers. Sums, so that ranks
/// and stages can add theirs: the loss is a product of means, and means come first.
///   loss = E * sum over e of (chosen[e] / rows) * (probability[e] / rows)
template <class T, class D = cpu_device>
class balance_statistics {
  using A = accumulated<T>;

 public:
  balance_statistics() = default;
  balance_statistics(const D& on, num experts)
      : values_(filled<A>(on, static_cast<std::size_t>(2 * experts + 1), A{0})) {}
  buffer_on<D, A>& values() { return values_; }
  const buffer_on<D, A>& values() const { return values_; }

  /// Adds the counted ones of rows (r).
  void add_rows(const D& on, const routing<T, D>& chosen, std::span<const char> counted) {
    add_balance<A>(on, chosen.experts, chosen.probabilities, counted, chosen.per_token, values_);
  }
  A loss(const D& on) const {
    const auto& values = to_host(on, values_);
    const std::size_t E = values.size() / 2;
    A sum = 0;
    if (values.back() == 0) return 0;
    for (std::size_t e = 0; e < E; ++e) sum += values[e] / values.back() * (values[E + e] / values.back());
    return static_cast<A>(E) * sum;
  }
  /// dscores (r, E) grow by `scale` times the loss's gradient of the counted rows; only probabilities carry it.
  void add_gradient(const D& on, std::span<A> dscores, const routing<T, D>& chosen, std::span<const char> counted,
                    A scale) const {
    add_balance_gradient<A>(on, dscores, chosen.probabilities, values_, counted, scale);
  }

 private:
  buffer_on<D, A> values_;  // chosen (E), probability (E), rows
};

/// The experts of one rank on rows sorted by expert. What they return is a part of the sum over etp.
template <class T, class D = cpu_device>
class expert_bank {
 public:
  /// y (rows, H) for x (rows, H), of which `counts[slot]` are for each expert here, expert by expert.
  buffer_on<D, T> forward(const D& on, buffer_on<D, T> x, std::vector<num> counts, const parameters_in_use<T, D>& w) {
    x_ = std::move(x), counts_ = std::move(counts);
    const num H = w[parameter_kind::experts_gate_up].shape[2], I = w[parameter_kind::experts_down].shape[2];
    const num n = H == 0 ? 0 : static_cast<num>(x_.size()) / H;
    wide_ = allocate<T>(on, static_cast<std::size_t>(n * 2 * I));
    auto act = allocate<T>(on, static_cast<std::size_t>(n * I)), y = allocate<T>(on, x_.size());
    multiply(on, {.b = true}, by_row(x_.data(), H), of(w, parameter_kind::experts_gate_up),
             by_row(wide_.data(), 2 * I));
    swiglu<T>(on, wide_, I, act);
    multiply(on, {.b = true}, by_row(act.data(), I), of(w, parameter_kind::experts_down), by_row(y.data(), H));
    return y;
  }

  /// dx (rows, H) for dy (rows, H). Uses up what forward left.
  buffer_on<D, T> backward(const D& on, std::span<const T> dy, const parameters_in_use<T, D>& w,
                           std::span<accumulated<T>> dgate_up, std::span<accumulated<T>> ddown) {
    const num H = w[parameter_kind::experts_gate_up].shape[2], I = w[parameter_kind::experts_down].shape[2];
    auto act = allocate<T>(on, wide_.size() / 2), dact = allocate<T>(on, act.size()), dx = allocate<T>(on, x_.size());
    swiglu<T>(on, wide_, I, act);
    multiply(on, {}, by_row(dy.data(), H), of(w, parameter_kind::experts_down), by_row(dact.data(), I));
    multiply(on, {.a = true}, by_row(dy.data(), H), by_row(act.data(), I), by_expert(ddown.data(), H, I), 1);
    swiglu_backward<T>(on, wide_, I, dact);
    multiply(on, {}, by_row(wide_.data(), 2 * I), of(w, parameter_kind::experts_gate_up), by_row(dx.data(), H));
    multiply(on, {.a = true}, by_row(wide_.data(), 2 * I), by_row(x_.data(), H), by_expert(dgate_up.data(), 2 * I, H),
             1);
    return dx;
  }

 private:
  // What gives an expert's matrix for (slot, first row, rows): its rows of (rows, width), or its own of
  // (slots, height, width).
  template <class V>
  static auto by_row(V* data, num width) {
    return [=](num, num row, num rows) { return matrix_view<V>(data + row * width, rows, width); };
  }
  template <class V>
  static auto by_expert(V* data, num height, num width) {
    return [=](num slot, num, num) { return matrix_view<V>(data + slot * height * width, height, width); };
  }
  static auto of(const parameters_in_use<T, D>& w, parameter_kind kind) {
    return by_expert(w[kind].values.data(), w[kind].shape[1], w[kind].shape[2]);
  }

  /// c = op(a) op(b) + beta * c for every expert that has rows, in one operation.
  template <class A, class B, class C>
  void multiply(const D& on, flips f, A a, B b, C c, accumulated<T> beta = 0) const {
    using stored = std::remove_pointer_t<decltype(c(0, 0, 0).data)>;  // gradients of weights are stored wide
    std::vector<product_of_group<T, stored>> products;
    num row = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) continue;  // also the padding slots, which have no weights
      const num slot = static_cast<num>(i);
      products.push_back({a(slot, row, counts_[i]), b(slot, row, counts_[i]), c(slot, row, counts_[i])});
      row += counts_[i];
    }
    gemm_group<T, stored>(on, f, products, accumulated<T>{1}, beta);
  }

  buffer_on<D, T> x_, wide_;  // (rows, H), (rows, 2I)
  std::vector<num> counts_;
};

/// What the experts of one rank contribute to given rows: y (r, H), partial over the ep x etp group.
template <class T, class D = cpu_device>
class contribution {
 public:
  template <Communicator C>
  buffer_on<D, T> forward(const rank_view<C, D>& view, std::span<const T> x, const routing<T, D>& chosen,
                          const parameters_in_use<T, D>& w) {
    const num H = view.model().hidden_size, slots = expert_slots(view.plan, view.model());
    pairs_ = sort_pairs(view.on, chosen.experts, view.at(axis::ep) * slots, slots);
    results_ = bank_.forward(view.on, rows_of_pairs<T>(view.on, x, pairs_, chosen.per_token, H), pairs_.counts, w);
    return combine_pairs<T>(view.on, results_, pairs_, chosen.weights, chosen.per_token, H);
  }
  /// dx (r, H) without the router's share, and `dweights` (r, k); both partial over the ep x etp group.
  template <Communicator C>
  buffer_on<D, T> backward(const rank_view<C, D>& view, std::span<const T> dy, const routing<T, D>& chosen,
                           const parameters_in_use<T, D>& w, std::span<accumulated<T>> dgate_up,
                           std::span<accumulated<T>> ddown, buffer_on<D, accumulated<T>>& dweights) {
    const num H = view.model().hidden_size, k = chosen.per_token;
    const auto drows = combine_pairs_backward<T>(view.on, dy, results_, pairs_, chosen.weights, k, H, dweights);
    auto dx = filled<T>(view.on, dy.size(), T{0});
    add_rows_of_pairs<T>(view.on, dx, bank_.backward(view.on, drows, w, dgate_up, ddown), pairs_, k, H);
    return dx;
  }

 private:
  typename D::pairs pairs_;
  expert_bank<T, D> bank_;
  buffer_on<D, T> results_;  // (pairs, H)
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_EXPERTS_HPP
