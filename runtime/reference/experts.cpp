// SPDX-License-Identifier: Apache-2.0
// The second half of a layer, once tokens know where to go: experts, or one dense network.
#include <algorithm>  // fill, max
#include <numeric>    // partial_sum

#include "runtime/reference/ops.hpp"
#include "runtime/reference/rows.hpp"

namespace shardplan::runtime::reference {
namespace {

/// out = silu(gate) * up, with silu(x) = x / (1 + exp(-x)). `out` may be `gate`.
template <class T>
void swiglu(const T* gate, const T* up, num size, T* out) {
  const auto g = array_of(gate, size);
  array_of(out, size) = g / (1 + (-g).exp()) * array_of(up, size);
}

/// Gradients with respect to gate and up, given that with respect to the result.
template <class T>
void swiglu_backward(const T* gate, const T* up, const T* d_out, num size, T* d_gate, T* d_up) {
  const auto g = array_of(gate, size), u = array_of(up, size);
  const auto d = array_of(d_out, size);
  const auto s = 1 / (1 + (-g).exp());  // silu(g) = g s, and its derivative is s (1 + g (1 - s))
  array_of(d_gate, size) = d * u * s * (1 + g * (1 - s));
  array_of(d_up, size) = d * g * s;
}

/// Choices sorted by expert, then by token: those of expert e are order[first[e]] to order[first[e + 1]], each one a
/// number token * k + rank.
struct choices_by_expert {
  std::vector<num> first, order;

  choices_by_expert(const std::vector<num>& experts, num num_experts) : first(num_experts + 1), order(experts.size()) {
    for (num e : experts) ++first[e + 1];
    std::partial_sum(first.begin(), first.end(), first.begin());
    std::vector<num> next(first.begin(), first.end() - 1);
    for (std::size_t i = 0; i < experts.size(); ++i) order[next[experts[i]]++] = static_cast<num>(i);
  }
  std::span<const num> of(num expert) const {
    return std::span(order).subspan(first[expert], first[expert + 1] - first[expert]);
  }
  num largest() const {
    num most = 0;
    for (std::size_t e = 0; e + 1 < first.size(); ++e) most = std::max(most, first[e + 1] - first[e]);
    return most;
  }
};

}  // namespace

template <class T>
void experts(const routing<T>& routes, const tensor<T>& x, const tensor<T>& gate_up, const tensor<T>& down,
             tensor<T>& y) {
  const num H = x.cols(), I = down.cols(), E = down.rows() / H;
  const choices_by_expert choices(routes.experts, E);
  const num most = choices.largest();
  tensor<T> rows(most, H), both(most, 2 * I), inner(most, I), outputs(most, H);

  std::fill(y.all().begin(), y.all().end(), T(0));
  for (num e = 0; e < E; ++e) {
    const std::span<const num> chosen = choices.of(e);
    const num n = static_cast<num>(chosen.size());
    for (num i = 0; i < n; ++i) array_of(rows.row(i), H) = array_of(x.row(chosen[i] / routes.top_k), H);
    gemm_nt(rows.view(0, n), gate_up.view(e * 2 * I, 2 * I), both.view(0, n));  // (n, 2I)
    for (num i = 0; i < n; ++i) swiglu(both.row(i), both.row(i) + I, I, inner.row(i));
    gemm_nt(inner.view(0, n), down.view(e * H, H), outputs.view(0, n));  // (n, H)
    for (num i = 0; i < n; ++i)
      array_of(y.row(chosen[i] / routes.top_k), H) += routes.weights[chosen[i]] * array_of(outputs.row(i), H);
  }
}

template <class T>
void experts_backward(const routing<T>& routes, const tensor<T>& x, const tensor<T>& gate_up, const tensor<T>& down,
                      const tensor<T>& d_y, std::span<T> d_weights, tensor<T>& d_x, tensor<T>& d_gate_up,
                      tensor<T>& d_down) {
  const num H = x.cols(), I = down.cols(), E = down.rows() / H;
  const choices_by_expert choices(routes.experts, E);
  const num most = choices.largest();
  tensor<T> rows(most, H), both(most, 2 * I), inner(most, I), outputs(most, H);
  tensor<T> d_outputs(most, H), d_inner(most, I), d_both(most, 2 * I), d_rows(most, H);

  for (num e = 0; e < E; ++e) {
    const std::span<const num> chosen = choices.of(e);
    const num n = static_cast<num>(chosen.size());
    // ---- once more what the forward did
    for (num i = 0; i < n; ++i) array_of(rows.row(i), H) = array_of(x.row(chosen[i] / routes.top_k), H);
    gemm_nt(rows.view(0, n), gate_up.view(e * 2 * I, 2 * I), both.view(0, n));  // (n, 2I)
    for (num i = 0; i < n; ++i) swiglu(both.row(i), both.row(i) + I, I, inner.row(i));
    gemm_nt(inner.view(0, n), down.view(e * H, H), outputs.view(0, n));  // (n, H)

    for (num i = 0; i < n; ++i) {
      const auto d = array_of(d_y.row(chosen[i] / routes.top_k), H);
      d_weights[chosen[i]] += (d * array_of(outputs.row(i), H)).sum();
      array_of(d_outputs.row(i), H) = routes.weights[chosen[i]] * d;
    }
    gemm_nn(d_outputs.view(0, n), down.view(e * H, H), d_inner.view(0, n));        // (n, I)
    gemm_tn(d_outputs.view(0, n), inner.view(0, n), d_down.view(e * H, H), 1, 1);  // (H, I)
    for (num i = 0; i < n; ++i)                                                    // (n, 2I)
      swiglu_backward(both.row(i), both.row(i) + I, d_inner.row(i), I, d_both.row(i), d_both.row(i) + I);
    gemm_nn(d_both.view(0, n), gate_up.view(e * 2 * I, 2 * I), d_rows.view(0, n));        // (n, H)
    gemm_tn(d_both.view(0, n), rows.view(0, n), d_gate_up.view(e * 2 * I, 2 * I), 1, 1);  // (2I, H)
    for (num i = 0; i < n; ++i) array_of(d_x.row(chosen[i] / routes.top_k), H) += array_of(d_rows.row(i), H);
  }
}

template <class T>
void mlp(const tensor<T>& x, const tensor<T>& gate, const tensor<T>& up, const tensor<T>& down, tensor<T>& y) {
  tensor<T> gates(x.rows(), gate.rows()), ups(x.rows(), up.rows());
  gemm_nt(x.view(), gate.view(), gates.view());                                                     // (N, I)
  gemm_nt(x.view(), up.view(), ups.view());                                                         // (N, I)
  for (num i = 0; i < x.rows(); ++i) swiglu(gates.row(i), ups.row(i), gates.cols(), gates.row(i));  // (N, I)
  gemm_nt(gates.view(), down.view(), y.view());                                                     // (N, H)
}

template <class T>
void mlp_backward(const tensor<T>& x, const tensor<T>& gate, const tensor<T>& up, const tensor<T>& down,
                  const tensor<T>& d_y, tensor<T>& d_x, tensor<T>& d_gate, tensor<T>& d_up, tensor<T>& d_down) {
  const num N = x.rows(), I = gate.rows();
  tensor<T> gates(N, I), ups(N, I), inner(N, I), d_inner(N, I), d_gates(N, I), d_ups(N, I);
  gemm_nt(x.view(), gate.view(), gates.view());
  gemm_nt(x.view(), up.view(), ups.view());
  for (num i = 0; i < N; ++i) swiglu(gates.row(i), ups.row(i), I, inner.row(i));

  linear_backward(inner.view(), down.view(), d_y.view(), d_inner.view(), d_down.view());
  for (num i = 0; i < N; ++i)
    swiglu_backward(gates.row(i), ups.row(i), d_inner.row(i), I, d_gates.row(i), d_ups.row(i));
  linear_backward(x.view(), gate.view(), d_gates.view(), d_x.view(), d_gate.view());
  linear_backward(x.view(), up.view(), d_ups.view(), d_x.view(), d_up.view());
}

template void experts<float>(const routing<float>&, const tensor<float>&, const tensor<float>&, const tensor<float>&,
                             tensor<float>&);
template void experts<double>(const routing<double>&, const tensor<double>&, const tensor<double>&,
                              const tensor<double>&, tensor<double>&);
template void mlp<float>(const tensor<float>&, const tensor<float>&, const tensor<float>&, const tensor<float>&,
                         tensor<float>&);
template void mlp<double>(const tensor<double>&, const tensor<double>&, const tensor<double>&, const tensor<double>&,
                          tensor<double>&);
template void experts_backward<float>(const routing<float>&, const tensor<float>&, const tensor<float>&,
                                      const tensor<float>&, const tensor<float>&, std::span<float>, tensor<float>&,
                                      tensor<float>&, tensor<float>&);
template void experts_backward<double>(const routing<double>&, const tensor<double>&, const tensor<double>&,
                                       const tensor<double>&, const tensor<double>&, std::span<double>, tensor<double>&,
                                       tensor<double>&, tensor<double>&);
template void mlp_backward<float>(const tensor<float>&, const tensor<float>&, const tensor<float>&,
                                  const tensor<float>&, const tensor<float>&, tensor<float>&, tensor<float>&,
                                  tensor<float>&, tensor<float>&);
template void mlp_backward<double>(const tensor<double>&, const tensor<double>&, const tensor<double>&,
                                   const tensor<double>&, const tensor<double>&, tensor<double>&, tensor<double>&,
                                   tensor<double>&, tensor<double>&);

}  // namespace shardplan::runtime::reference
