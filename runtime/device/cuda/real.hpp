// SPDX-License-Identifier: Apache-2.0
// The types that tensors are stored in, and those that sums of them are formed in: both the same on host and device.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_REAL_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_REAL_HPP

#include <cmath>  // INFINITY
#include <cstdint>

#include "runtime/device/cuda/kernel.hpp"
#include "runtime/half.hpp"

namespace shardplan::runtime::cuda {

/// Half the memory of a float, with its exponent. A value to store: nothing is computed in it.
struct bf16 {
  std::uint16_t bits;
};

template <class T>
struct accumulation {
  using type = T;
};
template <>
struct accumulation<bf16> {
  using type = float;
};
/// What sums over T are formed and kept in: float for float and bf16, double for double. Statistics of rows, router
/// weights and gradients of parameters are of this type whatever the activations are stored in.
template <class T>
using accumulated = typename accumulation<T>::type;

SHARDPLAN_HOST_DEVICE constexpr double widen(double x) { return x; }
SHARDPLAN_HOST_DEVICE constexpr float widen(float x) { return x; }
SHARDPLAN_HOST_DEVICE constexpr float widen(bf16 x) { return float_from_bf16(x.bits); }

/// To storage: exact, or rounded to the nearest bf16, ties to even.
template <class T>
SHARDPLAN_HOST_DEVICE constexpr T narrow(accumulated<T> x) {
  return x;
}
template <>
SHARDPLAN_HOST_DEVICE constexpr bf16 narrow<bf16>(float x) {
  return {bf16_from_float(x)};
}

struct sum_of final {
  template <class A>
  SHARDPLAN_HOST_DEVICE A operator()(A a, A b) const {
    return a + b;
  }
};
struct largest_of final {
  template <class A>
  SHARDPLAN_HOST_DEVICE A operator()(A a, A b) const {
    return a > b ? a : b;
  }
  /// What any value replaces.
  template <class A>
  SHARDPLAN_HOST_DEVICE static constexpr A none() {
    return -static_cast<A>(INFINITY);
  }
};

/// Part of a kernel's shared memory: one value per thread becomes one of the block, in an order that only the number of
/// threads decides, so that results repeat to the last bit. Three steps: put, fold, result (by any thread, and in any
/// later step until the next put and fold).
template <class A, int Threads>
struct block_fold {
  static constexpr int groups = Threads / 16;  // of 16 threads each
  static_assert(Threads % 16 == 0);
  A of_thread[Threads];
  A of_group[groups];

  SHARDPLAN_HOST_DEVICE void put(int thread, A value) { of_thread[thread] = value; }
  template <class Fold = sum_of>
  SHARDPLAN_HOST_DEVICE void fold(int thread, Fold f = {}) {
    if (thread >= groups) return;
    A all = of_thread[thread];  // neighbours read neighbours: no two of the same bank
    for (int i = thread + groups; i < Threads; i += groups) all = f(all, of_thread[i]);
    of_group[thread] = all;
  }
  template <class Fold = sum_of>
  SHARDPLAN_HOST_DEVICE A result(Fold f = {}) const {
    A all = of_group[0];
    for (int i = 1; i < groups; ++i) all = f(all, of_group[i]);
    return all;
  }
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_REAL_HPP
