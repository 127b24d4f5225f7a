// SPDX-License-Identifier: Apache-2.0
// Linear layers on a rank's part of the weight, and the collectives that tensor parallelism owes before and after.
#ifndef SHARDPLAN_RUNTIME_SHARDED_LINEAR_HPP
#define SHARDPLAN_RUNTIME_SHARDED_LINEAR_HPP

#include <shardplan/sequence.hpp>

#include "runtime/sharded/parameter_store.hpp"

namespace shardplan::runtime {

/// Tokens of layout L, `width` values each, in memory B.
template <class B, class L>
using hidden_in = sequence<hidden_states, L, B>;
template <class T, class L, class D = cpu_device>
using hidden = hidden_in<buffer_on<D, T>, L>;

/// As many tokens as `like` has, of the same layout, their `width` values not yet written.
template <class T, Device D, class What, class L, class B>
hidden<T, L, D> unwritten(const D& on, const sequence<What, L, B>& like, num width) {
  return {like, width, allocate<T>(on, static_cast<std::size_t>(like.tokens() * width))};
}
/// The same, zeros.
template <class T, Device D, class What, class L, class B>
hidden<T, L, D> zeros(const D& on, const sequence<What, L, B>& like, num width) {
  return {like, width, filled<T>(on, static_cast<std::size_t>(like.tokens() * width), T{0})};
}
/// Other tokens than anyone has yet: `length` of each of `rows`, not yet written.
template <class T, class L, Device D>
hidden<T, L, D> unwritten(const D& on, num length, num rows, num width) {
  return {length, rows, width, allocate<T>(on, static_cast<std::size_t>(length * rows * width)), {}};
}

/// y (n, out) = x (n, in) w (out, in)^T, stored as Y: T, or what it was summed in.
template <class T, class Y = T, Device D>
buffer_on<D, Y> linear(const D& on, std::span<const T> x, const parameter_part<T>& w) {
  const num in = w.shape[1], out = w.shape[0];
  const num n = in == 0 ? 0 : static_cast<num>(x.size()) / in;
  buffer_on<D, Y> y = allocate<Y>(on, static_cast<std::size_t>(n * out));
  gemm_nt<T>(on, {x.data(), n, in}, {w.values.data(), out, in}, matrix_view<Y>(y.data(), n, out));
  return y;
}

/// What was formed in a wider type, as it is stored.
template <class T, Device D>
buffer_on<D, T> stored(const D& on, buffer_on<D, accumulated<T>>&& wide) {
  if constexpr (std::is_same_v<T, accumulated<T>>) {
    return std::move(wide);
  } else {
    buffer_on<D, T> out = allocate<T>(on, wide.size());
    convert<T, accumulated<T>>(on, wide, out);
    return out;
  }
}

/// dx (n, in) for dy (n, out); `dw` (out, in) grows by dy^T x.
template <class T, Device D>
buffer_on<D, T> linear_backward(const D& on, std::span<const T> x, const parameter_part<T>& w, std::span<const T> dy,
                                std::span<accumulated<T>> dw) {
  using A = accumulated<T>;
  const num in = w.shape[1], out = w.shape[0];
  const num n = in == 0 ? 0 : static_cast<num>(x.size()) / in;
  buffer_on<D, T> dx = allocate<T>(on, x.size());
  gemm_nn<T>(on, {dy.data(), n, out}, {w.values.data(), out, in}, matrix_view<T>(dx.data(), n, in));
  gemm_tn<T>(on, {dy.data(), n, out}, {x.data(), n, in}, matrix_view<A>(dw.data(), out, in), A{1}, A{1});
  return dx;
}

// ---- tokens cut over tp (sequence parallelism) and not. Each of the two operations is the other's backward: what
// every tp rank needs in one direction, every tp rank owes in the other.

/// The tokens of all tp ranks: what a column-parallel layer needs.
template <Layout L, class B, Communicator C, Device D>
hidden_in<B, L> gather_tokens(const rank_view<C, D>& view, const hidden_in<B, tensor_split<L>>& x) {
  using T = typename B::value_type;
  const auto tp = view.group(axis::tp);
  auto all = unwritten<T, L>(view.on, x.length() * tp.size(), x.rows(), x.width());
  view.comm.all_gather(tp, read_only(x.data()), std::span<T>(all.data()));
  return all;
}
template <Layout L, class B, Communicator C, Device D>
const hidden_in<B, L>& gather_tokens(const rank_view<C, D>&, const hidden_in<B, L>& x) {
  return x;  // nothing is cut: every tp rank has the tokens
}
template <Layout L, class B, Communicator C, Device D>
void gather_tokens(const rank_view<C, D>&, hidden_in<B, L>&&) = delete;  // the result would outlive its tokens

/// The same, to keep.
template <Layout L, class B, Communicator C, Device D>
hidden_in<B, L> copy_of_tokens(const rank_view<C, D>& view, const hidden_in<B, tensor_split<L>>& x) {
  return gather_tokens(view, x);
}
template <Layout L, class B, Communicator C, Device D>
hidden_in<B, L> copy_of_tokens(const rank_view<C, D>& view, const hidden_in<B, L>& x) {
  return {x, x.width(), copied<typename B::value_type>(view.on, x.data())};
}

/// The sum over tp ranks of what a row-parallel layer left on each; every rank keeps its own tokens of it (split), or
/// all of them (whole).
template <class Residual>
struct sum_over_tp {  // Residual is a layout: whole
  template <class B, Communicator C, Device D>
  static hidden_in<B, Residual> of(const rank_view<C, D>& view, hidden_in<B, Residual>&& partial) {
    using T = typename B::value_type;
    view.comm.all_reduce(view.group(axis::tp), std::span<T>(partial.data()), reduce_op::sum);
    return std::move(partial);
  }
};
template <Layout L>
struct sum_over_tp<tensor_split<L>> {
  template <class B, Communicator C, Device D>
  static hidden_in<B, tensor_split<L>> of(const rank_view<C, D>& view, hidden_in<B, L>&& partial) {
    using T = typename B::value_type;
    const auto tp = view.group(axis::tp);
    auto mine = unwritten<T, tensor_split<L>>(view.on, partial.length() / tp.size(), partial.rows(), partial.width());
    view.comm.reduce_scatter(tp, read_only(partial.data()), std::span<T>(mine.data()));
    return mine;
  }
};
/// What every tp rank computed alike, because its modules are whole on each: of split tokens a rank keeps its own.
template <class Residual>
struct own_of_tp {
  template <class B, Communicator C, Device D>
  static hidden_in<B, Residual> of(const rank_view<C, D>&, hidden_in<B, Residual>&& alike) {
    return std::move(alike);
  }
};
template <Layout L>
struct own_of_tp<tensor_split<L>> {
  template <class B, Communicator C, Device D>
  static hidden_in<B, tensor_split<L>> of(const rank_view<C, D>& view, hidden_in<B, L>&& alike) {
    using T = typename B::value_type;
    auto mine = unwritten<T, tensor_split<L>>(view.on, alike.length() / view.plan.tp, alike.rows(), alike.width());
    const std::size_t size = mine.data().size(), first = static_cast<std::size_t>(view.at(axis::tp)) * size;
    copy_values<T>(view.on, read_only(alike.data()).subspan(first, size), mine.data());
    return mine;
  }
};
/// After modules that hold parameters of that kind: the sum that cut ones owe, or what whole ones made.
template <class Residual, class B, class L, Communicator C, Device D>
hidden_in<B, Residual> after_modules(const rank_view<C, D>& view, hidden_in<B, L>&& x, parameter_kind kind,
                                     num layer = parameter::no_layer) {
  return is_cut(view.plan, kind, layer) ? sum_over_tp<Residual>::of(view, std::move(x))
                                        : own_of_tp<Residual>::of(view, std::move(x));
}

/// The tokens a residual stream of this layout holds: all the rank has, or this tp rank's share of them.
template <class Residual>
struct residual_traits {
  using tokens = Residual;
  static constexpr bool split = false;
};
template <Layout L>
struct residual_traits<tensor_split<L>> {
  using tokens = L;
  static constexpr bool split = true;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_LINEAR_HPP
