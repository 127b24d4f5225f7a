// SPDX-License-Identifier: Apache-2.0
// Linear layers on a rank's part of the weight, and the collectives that tensor parallelism owes before and after.
#ifndef SHARDPLAN_RUNTIME_SHARDED_LINEAR_HPP
#define SHARDPLAN_RUNTIME_SHARDED_LINEAR_HPP

#include <shardplan/sequence.hpp>

#include "runtime/device/gemm.hpp"
#include "runtime/device/ops.hpp"
#include "runtime/sharded/parameter_store.hpp"

namespace shardplan::runtime {

/// Tokens of layout L, `width` values each.
template <class T, class L>
using hidden = sequence<hidden_states, L, buffer<T>>;

/// y (n, out) = x (n, in) w (out, in)^T
template <class T>
buffer<T> linear(std::span<const T> x, const parameter_part<T>& w) {
  const num in = w.shape[1], out = w.shape[0];
  const num n = in == 0 ? 0 : static_cast<num>(x.size()) / in;
  buffer<T> y(static_cast<std::size_t>(n * out));
  gemm_nt({x.data(), n, in}, {w.values.data(), out, in}, matrix_view<T>(y.data(), n, out));
  return y;
}

/// dx (n, in) for dy (n, out); `dw` (out, in) grows by dy^T x.
template <class T>
buffer<T> linear_backward(std::span<const T> x, const parameter_part<T>& w, std::span<const T> dy,
                          std::span<std::type_identity_t<T>> dw) {
  const num in = w.shape[1], out = w.shape[0];
  const num n = in == 0 ? 0 : static_cast<num>(x.size()) / in;
  buffer<T> dx(x.size());
  gemm_nn({dy.data(), n, out}, {w.values.data(), out, in}, matrix_view<T>(dx.data(), n, in));
  gemm_tn({dy.data(), n, out}, {x.data(), n, in}, matrix_view<T>(dw.data(), out, in), T{1}, T{1});
  return dx;
}

// ---- tokens cut over tp (sequence parallelism) and not. Each of the two operations is the other's backward: what
// every tp rank needs in one direction, every tp rank owes in the other.

/// The tokens of all tp ranks: what a column-parallel layer needs.
template <class T, Layout L, Communicator C>
hidden<T, L> gather_tokens(const rank_view<C>& view, const hidden<T, tensor_split<L>>& x) {
  const auto tp = view.group(axis::tp);
  hidden<T, L> all(x.length() * tp.size(), x.rows(), x.width(), {});
  view.comm.all_gather(tp, read_only(x.data()), std::span<T>(all.data()));
  return all;
}
template <class T, Layout L, Communicator C>
const hidden<T, L>& gather_tokens(const rank_view<C>&, const hidden<T, L>& x) {
  return x;  // nothing is cut: every tp rank has the tokens
}
template <class T, Layout L, Communicator C>
void gather_tokens(const rank_view<C>&, hidden<T, L>&&) = delete;  // the result would outlive its tokens

/// The sum over tp ranks of what a row-parallel layer left on each; every rank keeps its own tokens of it (split), or
/// all of them (whole).
template <class Residual>
struct sum_over_tp {  // Residual is a layout: whole
  template <class T, Communicator C>
  static hidden<T, Residual> of(const rank_view<C>& view, hidden<T, Residual>&& partial) {
    view.comm.all_reduce(view.group(axis::tp), std::span<T>(partial.data()), reduce_op::sum);
    return std::move(partial);
  }
};
template <Layout L>
struct sum_over_tp<tensor_split<L>> {
  template <class T, Communicator C>
  static hidden<T, tensor_split<L>> of(const rank_view<C>& view, hidden<T, L>&& partial) {
    const auto tp = view.group(axis::tp);
    hidden<T, tensor_split<L>> mine(partial.length() / tp.size(), partial.rows(), partial.width(), {});
    view.comm.reduce_scatter(tp, read_only(partial.data()), std::span<T>(mine.data()));
    return mine;
  }
};
/// What every tp rank computed alike, because its modules are whole on each: of split tokens a rank keeps its own.
template <class Residual>
struct own_of_tp {
  template <class T, Communicator C>
  static hidden<T, Residual> of(const rank_view<C>&, hidden<T, Residual>&& alike) {
    return std::move(alike);
  }
};
template <Layout L>
struct own_of_tp<tensor_split<L>> {
  template <class T, Communicator C>
  static hidden<T, tensor_split<L>> of(const rank_view<C>& view, hidden<T, L>&& alike) {
    hidden<T, tensor_split<L>> mine(alike.length() / view.plan.tp, alike.rows(), alike.width(), {});
    std::copy_n(alike.data().begin() + view.at(axis::tp) * static_cast<num>(mine.data().size()), mine.data().size(),
                mine.data().begin());
    return mine;
  }
};
/// After modules that hold parameters of that kind: the sum that cut ones owe, or what whole ones made.
template <class Residual, class T, class L, Communicator C>
hidden<T, Residual> after_modules(const rank_view<C>& view, hidden<T, L>&& x, parameter_kind kind,
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
