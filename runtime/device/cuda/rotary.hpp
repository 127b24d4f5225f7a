// SPDX-License-Identifier: Apache-2.0
// Rotary embedding. Tables are kept in what T is accumulated in: a cosine in bf16 would turn far positions visibly.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ROTARY_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ROTARY_HPP

#include "runtime/device/cuda/loops.hpp"

namespace shardplan::runtime::cuda {

template <class A>
struct rotary_table_body {
  const double* inverse;
  const num* positions;
  A scale;
  A* table;
  num half;
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {
    const A position = static_cast<A>(positions[row]);
    for (num j = c.begin; j < c.end; j += c.step) {
      // The angle is formed in A: the model's own arithmetic, whose rounding grows with the position.
      const A angle = position * static_cast<A>(inverse[j]);
      table[row * 2 * half + j] = std::cos(angle) * scale;
      table[row * 2 * half + half + j] = std::sin(angle) * scale;
    }
  }
};

template <class T>
struct rotate_body {
  T* x;  // (n, heads, D)
  const accumulated<T>* table;
  num heads, half;
  accumulated<T> direction;
  static constexpr int at_once = in_16_bytes<T>;
  bool is_aligned() const { return are_aligned<at_once>(x, table) && half % at_once == 0; }
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {  // a row is a head of a token
    const accumulated<T>*cosines = table + row / heads * 2 * half, *sines = cosines + half;
    T *first = x + row * 2 * half, *second = first + half;
    c.each(constant<at_once>{}, [&](num j, auto n) {
      const auto a = load(first + j, n), b = load(second + j, n);
      const auto cosine = load(cosines + j, n), sine = load(sines + j, n);
      store(first + j, n,
            [&](int k) { return narrow<T>(std::fma(widen(a[k]), cosine[k], -widen(b[k]) * (sine[k] * direction))); });
      store(second + j, n,
            [&](int k) { return narrow<T>(std::fma(widen(b[k]), cosine[k], widen(a[k]) * (sine[k] * direction))); });
    });
  }
};

/// Cosines and sines of `positions` (n): table (n, D), the D/2 cosines first, of frequencies `inverse` (D/2).
template <class A, Launcher L>
void rotary_table(L& on, std::span<const double> inverse, double scale, std::span<const num> positions,
                  std::span<A> table) {
  const num half = static_cast<num>(inverse.size());
  for_each_row(on, static_cast<num>(positions.size()), half,
               rotary_table_body<A>{inverse.data(), positions.data(), static_cast<A>(scale), table.data(), half});
}

/// `direction` 1 rotates by the table's angles, -1 back.
template <class T, Launcher L>
void rotate_by(L& on, std::span<T> x, std::span<const accumulated<T>> table, num head_dim, accumulated<T> direction) {
  const num half = head_dim / 2, n = static_cast<num>(table.size()) / head_dim;
  if (n == 0) return;
  const num rows = static_cast<num>(x.size()) / head_dim;
  for_each_row(on, rows, half, rotate_body<T>{x.data(), table.data(), rows / n, half, direction});
}

/// Rotates the two halves of each head of x (n, heads, D) by the table (n, D).
template <class T, Launcher L>
void rotate(L& on, std::span<T> x, std::span<const accumulated<T>> table, num head_dim) {
  rotate_by<T>(on, x, table, head_dim, 1);
}
/// The gradient of a rotation is rotated back.
template <class T, Launcher L>
void rotate_backward(L& on, std::span<T> dx, std::span<const accumulated<T>> table, num head_dim) {
  rotate_by<T>(on, dx, table, head_dim, -1);
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ROTARY_HPP
