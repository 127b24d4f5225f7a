// SPDX-License-Identifier: Apache-2.0
// The types that tensors are stored in, and those that sums of them are formed in.
#ifndef SHARDPLAN_RUNTIME_REAL_HPP
#define SHARDPLAN_RUNTIME_REAL_HPP

#include <type_traits>

#include "runtime/half.hpp"

namespace shardplan::runtime {

/// Half the memory of a float, with its exponent. A value to store: nothing is computed in it.
struct bf16 {
  std::uint16_t bits;
  friend constexpr bool operator==(bf16, bf16) = default;  ///< the same bits
};

template <class T>
struct accumulation {
  using type = T;
};
template <>
struct accumulation<bf16> {
  using type = float;
};
/// What sums over T are formed and kept in: float for float and bf16, double for double. Statistics of rows, the
/// router's weights, losses and gradients of parameters are of this type whatever the activations are stored in.
template <class T>
using accumulated = typename accumulation<T>::type;

/// Not an integer.
template <class T>
inline constexpr bool is_real = std::is_floating_point_v<T> || std::is_same_v<T, bf16>;

constexpr double widen(double x) { return x; }
constexpr float widen(float x) { return x; }
constexpr float widen(bf16 x) { return float_from_bf16(x.bits); }

/// To storage: exact, or rounded to the nearest bf16, ties to even.
template <class T>
constexpr T narrow(accumulated<T> x) {
  return x;
}
template <>
constexpr bf16 narrow<bf16>(float x) {
  return {bf16_from_float(x)};
}
/// The same of any number, rounded once.
template <class T>
constexpr T nearest(double x) {
  if constexpr (std::is_same_v<T, bf16>)
    return {bf16_from_float(round_to_odd(x))};
  else
    return static_cast<T>(x);
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_REAL_HPP
