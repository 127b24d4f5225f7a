// SPDX-License-Identifier: Apache-2.0
// Neighbouring values in memory that a thread moves at once: 16 bytes are one instruction, as one value is, and a GPU
// reaches its bandwidth only where threads ask for that much.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_NEIGHBOURS_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_NEIGHBOURS_HPP

#include <cstdint>  // uintptr_t
#include <cstring>  // memcpy
#include <stdexcept>

#include "runtime/device/cuda/real.hpp"

namespace shardplan::runtime::cuda {

/// How many values of T are 16 bytes.
template <class T>
inline constexpr int in_16_bytes = static_cast<int>(16 / sizeof(T));

/// A number that is known when a kernel is compiled, to be given as an argument.
template <int N>
using constant = std::integral_constant<int, N>;

/// f(k) for each k of [0, N)
template <int N, class F>
SHARDPLAN_HOST_DEVICE void for_each_of(constant<N>, F&& f) {
  SHARDPLAN_UNROLL
  for (int k = 0; k < N; ++k) f(k);
}

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) neighbours {
  T values[N];
  SHARDPLAN_HOST_DEVICE T& operator[](int i) { return values[i]; }
  SHARDPLAN_HOST_DEVICE T operator[](int i) const { return values[i]; }
};

/// May N neighbours be moved at once to and from each of these, and so each N after them? Asked by the host.
template <int N, class... T>
bool are_aligned(const T*... begins) {
  return (... && (reinterpret_cast<std::uintptr_t>(begins) % alignof(neighbours<T, N>) == 0));
}

/// As a GPU does, the host refuses what an instruction that moves neighbours cannot reach.
template <class T, int N>
void refuse_misaligned(const T* begin) {
  if (N > 1 && !are_aligned<N>(begin)) throw std::logic_error("misaligned address");
}

#ifdef __CUDA_ARCH__
/// What one instruction moves of an object whose address is a multiple of `Alignment`.
template <std::size_t Alignment>
using word_of = std::conditional_t<
    Alignment == 16, uint4,
    std::conditional_t<Alignment == 8, uint2, std::conditional_t<Alignment == 4, unsigned, unsigned short>>>;
#endif

/// The N values at `from`. Unless N is 1, are_aligned<N> must hold of it.
template <class T, int N>
SHARDPLAN_HOST_DEVICE neighbours<T, N> load(const T* from, constant<N>) {
  neighbours<T, N> all;
#ifdef __CUDA_ARCH__  // where memcpy goes byte by byte
  using word = word_of<alignof(neighbours<T, N>)>;
  SHARDPLAN_UNROLL
  for (unsigned i = 0; i < sizeof(all) / sizeof(word); ++i)
    reinterpret_cast<word*>(&all)[i] = reinterpret_cast<const word*>(from)[i];
#else
  refuse_misaligned<T, N>(from);
  std::memcpy(&all, from, sizeof(all));
#endif
  return all;
}
/// The N values at `to`, memory of the device, become value(0), value(1), ...
template <class T, int N, class F>
SHARDPLAN_HOST_DEVICE void store(T* to, constant<N> n, F&& value) {
  neighbours<T, N> all;
  for_each_of(n, [&](int k) { all[k] = value(k); });
#ifdef __CUDA_ARCH__  // an assignment may be taken apart again
  using word = word_of<alignof(neighbours<T, N>)>;
  SHARDPLAN_UNROLL
  for (unsigned i = 0; i < sizeof(all) / sizeof(word); ++i)
    __stwb(reinterpret_cast<word*>(to) + i, reinterpret_cast<const word*>(&all)[i]);
#else
  refuse_misaligned<T, N>(to);
  std::memcpy(to, &all, sizeof(all));
#endif
}
/// The same of what was loaded elsewhere.
template <class T, int N>
SHARDPLAN_HOST_DEVICE void copy_neighbours(const T* from, T* to, constant<N> n) {
  const auto all = load(from, n);
  store(to, n, [&](int k) { return all[k]; });
}

/// Values of a row, or of all there are, that one thread has: those at `begin`, and on by `step` up to `end`.
/// Neighbours in memory belong to neighbouring threads.
struct columns {
  num begin, end, step;
  bool at_once;  ///< a turn is not of one value but of several

  /// f(i, n) for each turn: it has the n values from i on, n a constant that is `N` or 1.
  template <int N, class F>
  SHARDPLAN_HOST_DEVICE void each(constant<N>, F&& f) const {
    for (num i = begin; i < end; i += step)
      if (!at_once)
        f(i, constant<1>{});
      else if (i + N <= end)
        f(i, constant<N>{});
      else
        for (num j = i; j < end; ++j) f(j, constant<1>{});
  }
};

/// f(i, n) for the neighbours of a row of `width` that a lane of `Lanes` has: groups of N, and what is left of one. At
/// once or not, they are the same and in the same order, so that a sum of them does not depend on where rows lie. (Nor
/// may a compiler choose what it rounds once: sums of products are of std::fma.)
template <int Lanes, int N, class F>
SHARDPLAN_HOST_DEVICE void each_group(constant<N>, int lane, num width, bool at_once, F&& f) {
  for (num i = num{lane} * N; i < width; i += num{Lanes} * N)
    if (at_once && i + N <= width)
      f(i, constant<N>{});
    else
      for (num j = i; j < i + N && j < width; ++j) f(j, constant<1>{});
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_NEIGHBOURS_HPP
