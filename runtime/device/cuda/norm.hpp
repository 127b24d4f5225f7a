// SPDX-License-Identifier: Apache-2.0
// RMS norms, of hidden states and of heads: a row by the threads of a block, or by one of its warps.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_NORM_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_NORM_HPP

#include "runtime/device/cuda/loops.hpp"

namespace shardplan::runtime::cuda {

template <class T>
struct rms_norm_arguments {
  const T *x, *weight;
  accumulated<T> eps;
  num rows, width;
  T* out;
  bool at_once;  // neighbours are moved so
};

template <class T, int Lanes>
struct rms_norm_kernel {
  static constexpr int threads = threads_of_rows;
  using A = accumulated<T>;
  using arguments = rms_norm_arguments<T>;
  struct shared {
    block_fold<A, Lanes> squares[row_of_block<Lanes>::rows];
  };
  struct state {};
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 3; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state&, shared& shared) {
    const row_of_block<Lanes> my(at.block, at.thread);
    if (my.row >= a.rows) return;
    constexpr constant<in_16_bytes<T>> group;
    const T* x = a.x + my.row * a.width;
    auto& squares = shared.squares[my.within];
    if (s == 0) {
      A sum = 0;
      each_group<Lanes>(group, my.lane, a.width, a.at_once, [&](num i, auto n) {
        const auto values = load(x + i, n);
        for_each_of(n, [&](int k) { sum = std::fma(widen(values[k]), widen(values[k]), sum); });
      });
      squares.put(my.lane, sum);
    } else if (s == 1) {
      squares.fold(my.lane);
    } else {
      const A scale = 1 / std::sqrt(squares.result() / static_cast<A>(a.width) + a.eps);
      T* out = a.out + my.row * a.width;
      each_group<Lanes>(group, my.lane, a.width, a.at_once, [&](num i, auto n) {
        const auto values = load(x + i, n), weights = load(a.weight + i, n);
        store(out + i, n, [&](int k) { return narrow<T>(widen(values[k]) * scale * widen(weights[k])); });
      });
    }
  }
};

template <class T>
struct rms_norm_backward_arguments {
  const T *x, *weight, *dy;
  accumulated<T> eps;
  num rows, width;
  T* dx;
  accumulated<T>* scales;  // (n): what the rows were multiplied by
  bool at_once;
};

template <class T, int Lanes>
struct rms_norm_backward_kernel {
  static constexpr int threads = threads_of_rows;
  using A = accumulated<T>;
  using arguments = rms_norm_backward_arguments<T>;
  struct shared {
    block_fold<A, Lanes> squares[row_of_block<Lanes>::rows], along[row_of_block<Lanes>::rows];
  };
  struct state {};
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 3; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state&, shared& shared) {
    const row_of_block<Lanes> my(at.block, at.thread);
    if (my.row >= a.rows) return;
    constexpr constant<in_16_bytes<T>> group;
    const T *x = a.x + my.row * a.width, *dy = a.dy + my.row * a.width;
    auto &all_squares = shared.squares[my.within], &all_along = shared.along[my.within];
    if (s == 0) {
      A squares = 0, along = 0;
      each_group<Lanes>(group, my.lane, a.width, a.at_once, [&](num i, auto n) {
        const auto values = load(x + i, n), gradients = load(dy + i, n), weights = load(a.weight + i, n);
        for_each_of(n, [&](int k) {
          squares = std::fma(widen(values[k]), widen(values[k]), squares);
          along = std::fma(widen(gradients[k]) * widen(weights[k]), widen(values[k]), along);
        });
      });
      all_squares.put(my.lane, squares);
      all_along.put(my.lane, along);
    } else if (s == 1) {
      all_squares.fold(my.lane);
      all_along.fold(my.lane);
    } else {
      const A width = static_cast<A>(a.width), scale = 1 / std::sqrt(all_squares.result() / width + a.eps);
      const A along = all_along.result() / width * scale * scale * scale;  // what the mean of squares passes on
      T* dx = a.dx + my.row * a.width;
      each_group<Lanes>(group, my.lane, a.width, a.at_once, [&](num i, auto n) {
        const auto values = load(x + i, n), gradients = load(dy + i, n), weights = load(a.weight + i, n);
        store(dx + i, n, [&](int k) {
          return narrow<T>(std::fma(-widen(values[k]), along, widen(gradients[k]) * widen(weights[k]) * scale));
        });
      });
      if (my.lane == 0) a.scales[my.row] = scale;
    }
  }
};

/// What a row gives to the gradient of the weight.
template <class T>
struct norm_weight_term {
  const T *x, *dy;
  const accumulated<T>* scales;
  num width;
  SHARDPLAN_HOST_DEVICE accumulated<T> operator()(num row, num column) const {
    return widen(dy[row * width + column]) * widen(x[row * width + column]) * scales[row];
  }
};

/// out(i) = x(i) * rsqrt(mean(x(i)^2) + eps) * weight, for each of n rows of `weight.size()` values.
/// `out` may be `x`.
template <class T, Launcher L>
void rms_norm(L& on, std::span<const T> x, std::span<const std::type_identity_t<T>> weight, double eps,
              std::span<std::type_identity_t<T>> out) {
  const num width = static_cast<num>(weight.size());
  if (width == 0) return;
  constexpr int group = in_16_bytes<T>;
  const num n = static_cast<num>(x.size()) / width;
  const bool at_once = width % group == 0 && are_aligned<group>(x.data(), weight.data(), out.data());
  with_threads_for(ceil_div(width, num{group}), [&](auto lanes) {
    on.template launch<rms_norm_kernel<T, lanes>>(
        row_of_block<lanes>::blocks(n),
        {x.data(), weight.data(), static_cast<accumulated<T>>(eps), n, width, out.data(), at_once});
  });
}

/// Given dy, the gradient of out: dx (n, W) is that of x, and `dweight` (W) grows by that of weight. dx is memory of
/// its own.
template <class T, Launcher L>
void rms_norm_backward(L& on, std::span<const T> x, std::span<const std::type_identity_t<T>> weight, double eps,
                       std::span<const std::type_identity_t<T>> dy, std::span<std::type_identity_t<T>> dx,
                       std::span<accumulated<T>> dweight) {
  const num width = static_cast<num>(weight.size());
  if (width == 0) return;
  const num n = static_cast<num>(x.size()) / width;
  auto scales = on.template allocate<accumulated<T>>(n);
  constexpr int group = in_16_bytes<T>;
  const bool at_once = width % group == 0 && are_aligned<group>(x.data(), weight.data(), dy.data(), dx.data());
  with_threads_for(ceil_div(width, num{group}), [&](auto lanes) {
    on.template launch<rms_norm_backward_kernel<T, lanes>>(
        row_of_block<lanes>::blocks(n), {x.data(), weight.data(), dy.data(), static_cast<accumulated<T>>(eps), n, width,
                                         dx.data(), scales.data(), at_once});
  });
  add_column_sums<accumulated<T>>(on, n, norm_weight_term<T>{x.data(), dy.data(), scales.data(), width}, dweight);
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_NORM_HPP
