// SPDX-License-Identifier: Apache-2.0
// Sums over all elements of a tensor, formed in double and handed to the host.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_TOTALS_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_TOTALS_HPP

#include "runtime/device/cuda/elementwise.hpp"

namespace shardplan::runtime::cuda {

/// The element, or its square, in column i % columns of row i / columns; 0 after the last one.
template <class T, bool Squared>
struct total_term {
  static constexpr num columns = 256;
  const T* values;
  num size;
  SHARDPLAN_HOST_DEVICE double operator()(num row, num column) const {
    const num i = row * columns + column;
    const double x = i < size ? static_cast<double>(widen(values[i])) : 0;
    return Squared ? x * x : x;
  }
};

template <class T, bool Squared, Launcher L>
double total(L& on, std::span<const T> values, double sum) {
  using term = total_term<T, Squared>;
  const num size = static_cast<num>(values.size());
  auto sums = on.template allocate<double>(term::columns);
  fill<double>(on, sums.span(), 0);
  add_column_sums<double>(on, ceil_div(size, term::columns), term{values.data(), size}, sums.span());
  std::vector<double> of_columns(static_cast<std::size_t>(term::columns));
  on.download(std::span<const double>(sums.span()), std::span<double>(of_columns));
  for (double x : of_columns) sum += x;
  return sum;
}

/// `sum` and all of `values`
template <class T, Launcher L>
double add_up(L& on, std::span<const T> values, double sum) {
  return total<T, false>(on, values, sum);
}
/// `sum` and the squares of all of `values`
template <class T, Launcher L>
double add_up_squares(L& on, std::span<const T> values, double sum) {
  return total<T, true>(on, values, sum);
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_TOTALS_HPP
