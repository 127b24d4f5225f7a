// SPDX-License-Identifier: Apache-2.0
// Random weights, made where they are needed.
#ifndef SHARDPLAN_TESTS_BENCH_RANDOM_VALUES_HPP
#define SHARDPLAN_TESTS_BENCH_RANDOM_VALUES_HPP

#include <cstdint>

#include "runtime/device/cuda/loops.hpp"

namespace shardplan::runtime::cuda {

/// Uniform in [-bound, bound), of a hash of seed and place (splitmix64): the same whatever runs first.
template <class T>
struct random_body {
  T* x;
  std::uint64_t seed;
  float bound;
  SHARDPLAN_HOST_DEVICE void operator()(num i) const {
    std::uint64_t z = seed + (static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const float unit = static_cast<float>(z >> 40) * 0x1p-23f - 1;  // [-1, 1)
    x[i] = narrow<T>(static_cast<accumulated<T>>(unit * bound));
  }
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_TESTS_BENCH_RANDOM_VALUES_HPP
