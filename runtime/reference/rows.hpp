// SPDX-License-Identifier: Apache-2.0
// A run of numbers as an Eigen array, so that loops over it are vector code. Included by .cpp files only: Eigen
// takes seconds to compile.
#ifndef SHARDPLAN_RUNTIME_REFERENCE_ROWS_HPP
#define SHARDPLAN_RUNTIME_REFERENCE_ROWS_HPP

#include <Eigen/Core>

#include "runtime/device/gemm.hpp"

namespace shardplan::runtime::reference {

template <class T>
using row_array = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
template <class T>
using const_row_array = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;

template <class T>
row_array<T> array_of(T* data, num size) {
  return {data, size};
}
template <class T>
const_row_array<T> array_of(const T* data, num size) {
  return {data, size};
}

/// Of one row p = softmax(x): turns the gradient with respect to p, in place, into that with respect to x,
/// p * (d_p - sum(p * d_p)).
template <class T>
void softmax_backward(const T* probabilities, T* d, num size) {
  const auto p = array_of(probabilities, size);
  auto d_p = array_of(d, size);
  const T mean = (p * d_p).sum();
  d_p = p * (d_p - mean);
}

}  // namespace shardplan::runtime::reference
#endif  // SHARDPLAN_RUNTIME_REFERENCE_ROWS_HPP
