// SPDX-License-Identifier: Apache-2.0
// Where tokens go: probabilities of all experts, the most probable of which are chosen.
#include <algorithm>  // min, partial_sort
#include <limits>     // numeric_limits
#include <numeric>    // iota

#include "runtime/reference/ops.hpp"
#include "runtime/reference/rows.hpp"

namespace shardplan::runtime::reference {
namespace {

template <class T>
void softmax(matrix_view<T> x) {
  for (num i = 0; i < x.rows; ++i) {
    auto row = array_of(x.data + i * x.stride, x.cols);
    row = (row - row.maxCoeff()).exp();
    row /= row.sum();
  }
}

}  // namespace

template <class T>
routing<T> route(num top_k, bool normalize, const tensor<T>& x, const tensor<T>& router) {
  const num N = x.rows(), E = router.rows();
  routing<T> r{top_k, std::vector<num>(N * top_k), std::vector<T>(N * top_k), std::vector<T>(N), tensor<T>(N, E)};
  gemm_nt(x.view(), router.view(), r.probabilities.view());
  softmax(r.probabilities.view());

  std::vector<num> ranked(E);
  for (num i = 0; i < N; ++i) {
    const T* p = r.probabilities.row(i);
    std::iota(ranked.begin(), ranked.end(), 0);
    // One more than is chosen, for the margin.
    std::partial_sort(ranked.begin(), ranked.begin() + std::min(top_k + 1, E), ranked.end(),
                      [p](num a, num b) { return p[a] > p[b] || (p[a] == p[b] && a < b); });
    r.margins[i] = top_k < E ? p[ranked[top_k - 1]] - p[ranked[top_k]] : std::numeric_limits<T>::infinity();
    T sum = 0;
    for (num j = 0; j < top_k; ++j) sum += p[ranked[j]];
    for (num j = 0; j < top_k; ++j) {
      r.experts[i * top_k + j] = ranked[j];
      r.weights[i * top_k + j] = normalize ? p[ranked[j]] / sum : p[ranked[j]];
    }
  }
  return r;
}

template <class T>
void route_backward(bool normalize, const routing<T>& routes, const tensor<T>& x, const tensor<T>& router,
                    std::span<const T> d_weights, tensor<T> d_probabilities, tensor<T>& d_x, tensor<T>& d_router) {
  const num N = x.rows(), E = router.rows(), k = routes.top_k;
  for (num i = 0; i < N; ++i) {
    const T *p = routes.probabilities.row(i), *w = &routes.weights[i * k], *d_w = &d_weights[i * k];
    const num* chosen = &routes.experts[i * k];
    T* d_p = d_probabilities.row(i);
    if (normalize) {  // w = p / sum of the chosen p
      T sum = 0, mean = 0;
      for (num j = 0; j < k; ++j) sum += p[chosen[j]], mean += w[j] * d_w[j];
      for (num j = 0; j < k; ++j) d_p[chosen[j]] += (d_w[j] - mean) / sum;
    } else {
      for (num j = 0; j < k; ++j) d_p[chosen[j]] += d_w[j];
    }
    softmax_backward(p, d_p, E);
  }
  const tensor<T>& d_logits = d_probabilities;
  gemm_nn(d_logits.view(), router.view(), d_x.view(), 1, 1);
  gemm_tn(d_logits.view(), x.view(), d_router.view(), 1, 1);
}

template routing<float> route<float>(num, bool, const tensor<float>&, const tensor<float>&);
template routing<double> route<double>(num, bool, const tensor<double>&, const tensor<double>&);
template void route_backward<float>(bool, const routing<float>&, const tensor<float>&, const tensor<float>&,
                                    std::span<const float>, tensor<float>, tensor<float>&, tensor<float>&);
template void route_backward<double>(bool, const routing<double>&, const tensor<double>&, const tensor<double>&,
                                     std::span<const double>, tensor<double>, tensor<double>&, tensor<double>&);

}  // namespace shardplan::runtime::reference
