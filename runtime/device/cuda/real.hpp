// SPDX-License-Identifier: Apache-2.0
// What kernels make of the types of runtime/real.hpp: sums and largest values over the threads of a block.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_REAL_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_REAL_HPP

#include <cmath>  // INFINITY

#include "runtime/device/cuda/kernel.hpp"
#include "runtime/real.hpp"

namespace shardplan::runtime::cuda {

using runtime::accumulated;
using runtime::bf16;
using runtime::narrow;
using runtime::widen;

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
