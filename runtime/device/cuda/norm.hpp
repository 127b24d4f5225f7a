// SPDX-License-Identifier: Apache-2.0
// RMS norms, of hidden states and of heads: one block per row.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_NORM_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_NORM_HPP

#include "runtime/device/cuda/loops.hpp"

namespace shardplan::runtime::cuda {

template <class T>
struct rms_norm_arguments {
  const T *x, *weight;
  accumulated<T> eps;
  num width;
  T* out;
};

template <class T, int Threads>
struct rms_norm_kernel {
  static constexpr int threads = Threads;
  using A = accumulated<T>;
  using arguments = rms_norm_arguments<T>;
  struct shared {
    block_fold<A, Threads> squares;
  };
  struct state {};
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 3; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state&, shared& shared) {
    const T* x = a.x + at.block * a.width;
    if (s == 0) {
      A sum = 0;
      for (num i = at.thread; i < a.width; i += threads) sum += widen(x[i]) * widen(x[i]);
      shared.squares.put(at.thread, sum);
    } else if (s == 1) {
      shared.squares.fold(at.thread);
    } else {
      const A scale = 1 / std::sqrt(shared.squares.result() / static_cast<A>(a.width) + a.eps);
      T* out = a.out + at.block * a.width;
      for (num i = at.thread; i < a.width; i += threads) out[i] = narrow<T>(widen(x[i]) * scale * widen(a.weight[i]));
    }
  }
};

template <class T>
struct rms_norm_backward_arguments {
  const T *x, *weight, *dy;
  accumulated<T> eps;
  num width;
  T* dx;
  accumulated<T>* scales;  // (n): what the rows were multiplied by
};

template <class T, int Threads>
struct rms_norm_backward_kernel {
  static constexpr int threads = Threads;
  using A = accumulated<T>;
  using arguments = rms_norm_backward_arguments<T>;
  struct shared {
    block_fold<A, Threads> squares, along;
  };
  struct state {};
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 3; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state&, shared& shared) {
    const T *x = a.x + at.block * a.width, *dy = a.dy + at.block * a.width;
    if (s == 0) {
      A squares = 0, along = 0;
      for (num i = at.thread; i < a.width; i += threads) {
        squares += widen(x[i]) * widen(x[i]);
        along += widen(dy[i]) * widen(a.weight[i]) * widen(x[i]);
      }
      shared.squares.put(at.thread, squares);
      shared.along.put(at.thread, along);
    } else if (s == 1) {
      shared.squares.fold(at.thread);
      shared.along.fold(at.thread);
    } else {
      const A width = static_cast<A>(a.width), scale = 1 / std::sqrt(shared.squares.result() / width + a.eps);
      const A along = shared.along.result() / width * scale * scale * scale;  // what the mean of squares passes on
      T* dx = a.dx + at.block * a.width;
      for (num i = at.thread; i < a.width; i += threads)
        dx[i] = narrow<T>(widen(dy[i]) * widen(a.weight[i]) * scale - widen(x[i]) * along);
      if (at.thread == 0) a.scales[at.block] = scale;
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
  with_threads_for(width, [&](auto threads) {
    on.template launch<rms_norm_kernel<T, threads>>(
        static_cast<num>(x.size()) / width,
        {x.data(), weight.data(), static_cast<accumulated<T>>(eps), width, out.data()});
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
  with_threads_for(width, [&](auto threads) {
    on.template launch<rms_norm_backward_kernel<T, threads>>(
        n, {x.data(), weight.data(), dy.data(), static_cast<accumulated<T>>(eps), width, dx.data(), scales.data()});
  });
  add_column_sums<accumulated<T>>(on, n, norm_weight_term<T>{x.data(), dy.data(), scales.data(), width}, dweight);
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_NORM_HPP
