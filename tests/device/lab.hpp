// SPDX-License-Identifier: Apache-2.0
// What tests of device operations share: an operation runs twice, its results must be of equal bits, and are compared
// with those of the CPU. Without SHARDPLAN_TEST_GPU kernels run on the host, their threads in either order; with it on
// a GPU.
#ifndef SHARDPLAN_TESTS_DEVICE_LAB_HPP
#define SHARDPLAN_TESTS_DEVICE_LAB_HPP

#include <doctest/doctest.h>

#include <algorithm>  // max
#include <cmath>      // abs
#include <cstring>    // memcmp
#include <random>
#include <tuple>
#include <utility>  // forward, as_const
#include <vector>

#include "runtime/device/buffer.hpp"
#include "runtime/device/cuda/real.hpp"
#ifdef SHARDPLAN_TEST_GPU
#include "runtime/device/cuda/launcher.hpp"
#endif

namespace shardplan::runtime::lab {

using cuda::accumulated;
using cuda::bf16;

#ifdef SHARDPLAN_TEST_GPU
/// One for all tests; it outlives main, because CUDA may be gone by the time that statics are destroyed.
inline const cuda::gpu_launcher& gpu() {
  static const auto& on = *new cuda::gpu_launcher;
  return on;
}
#endif

/// How many values late the memory begins that give and poisoned return: 0 is where anything may be moved.
inline num late = 0;

/// f(launcher) twice; its result, a tuple of vectors. The second time all memory it is given begins `late_then` late.
template <class F>
auto everywhere(F&& f, num late_then = 0) {
#ifdef SHARDPLAN_TEST_GPU
  const auto &forward = gpu(), &backward = gpu();
#else
  const cuda::host_launcher forward, backward(true);
#endif
  const auto first = f(forward);
  late = late_then;
  const auto second = f(backward);
  late = 0;
  std::apply(
      [&](const auto&... a) {
        std::apply(
            [&](const auto&... b) {
              CHECK(((a.size() == b.size() &&
                      (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0)) &&
                     ...));
            },
            second);
      },
      first);
  return first;
}
/// The same where neighbours are moved at once if memory begins where they may: the second time it does not, and
/// results are of equal bits.
template <class F>
auto everywhere_and_late(F&& f) {
  return everywhere(std::forward<F>(f), 1);
}

/// Memory of a launcher that holds something else at first.
template <class Memory>
struct part_of_memory {
  Memory all;
  num first;
  num size() const { return all.size() - first; }
  auto data() { return all.data() + first; }
  auto span() { return all.span().subspan(static_cast<std::size_t>(first)); }
  auto span() const { return all.span().subspan(static_cast<std::size_t>(first)); }
};

/// Copies for a launcher to work on, and back.
template <class L, class T, class Allocator>
auto give(L& on, const std::vector<T, Allocator>& values) {
  std::vector<T> all(static_cast<std::size_t>(late));
  all.insert(all.end(), values.begin(), values.end());
  return part_of_memory<decltype(on.upload(std::span<const T>(all)))>{on.upload(std::span<const T>(all)), late};
}
template <class L, class Memory>
auto take(L& on, Memory& memory) {
  using T = std::remove_reference_t<decltype(memory.span()[0])>;
  std::vector<T> values(static_cast<std::size_t>(memory.size()));
  on.download(std::span<const T>(memory.span()), std::span<T>(values));
  return values;
}
/// Memory for a result: what is never written shows.
template <class T, class L>
auto poisoned(L& on, num size) {
  std::vector<T> values(static_cast<std::size_t>(size));
  if (size > 0)
    std::memset(static_cast<void*>(values.data()), std::is_integral_v<T> ? 0x5a : 0xff, values.size() * sizeof(T));
  return give(on, values);
}
/// What an operation reads is passed as such.
template <class Memory>
auto read(Memory& memory) {
  return std::as_const(memory).span();
}

/// Random values that a T holds exactly.
template <class T, class Random>
std::vector<T> random_values(Random& random, num size, double low = -1, double high = 1) {
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<T> values;
  for (num i = 0; i < size; ++i) values.push_back(cuda::narrow<T>(static_cast<accumulated<T>>(uniform(random))));
  return values;
}
/// The same values for the CPU's operations, which are asked in double.
template <class T>
buffer<double> exact(const std::vector<T>& values) {
  buffer<double> out;
  for (T x : values) out.push_back(static_cast<double>(cuda::widen(x)));
  return out;
}

/// Largest error, relative to the largest value; infinite where the result is not a number.
template <class T, class U>
double error_of(const std::vector<T>& result, const U& expected) {
  if (result.size() != expected.size()) return INFINITY;
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double a = static_cast<double>(cuda::widen(result[i])), b = static_cast<double>(expected[i]);
    if (a == b) continue;  // infinities among them
    worst = std::isfinite(a) ? std::max(worst, std::abs(a - b)) : INFINITY;
    if (std::isinf(worst)) return worst;
  }
  for (std::size_t i = 0; i < result.size(); ++i)
    if (std::isfinite(expected[i])) largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  return worst == 0 ? 0 : worst / largest;
}
/// How far a result stored in T may be off, per value of the largest one; bf16 has 8 bits.
template <class T>
inline constexpr double limit = 0x1p-8;
template <>
inline constexpr double limit<float> = 1e-5;
template <>
inline constexpr double limit<double> = 1e-12;

/// Sizes about those of a block and of a piece of it.
inline constexpr num widths[] = {1, 2, 31, 64, 128, 256, 257, 1000, 2049};

}  // namespace shardplan::runtime::lab
#endif  // SHARDPLAN_TESTS_DEVICE_LAB_HPP
