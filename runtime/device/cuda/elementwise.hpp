// SPDX-License-Identifier: Apache-2.0
// Operations on each element alone, as in runtime/device/ops.hpp, and copies. T is what activations are stored in.
// Letters: n tokens, W width, I width of an expert.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ELEMENTWISE_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ELEMENTWISE_HPP

#include "runtime/device/cuda/loops.hpp"

namespace shardplan::runtime::cuda {

template <class T>
struct fill_body {
  static constexpr int at_once = in_16_bytes<T>;
  T* x;
  T value;
  bool is_aligned() const { return are_aligned<at_once>(x); }
  template <class N>
  SHARDPLAN_HOST_DEVICE void operator()(num i, N n) const {
    store(x + i, n, [&](int) { return value; });
  }
};
template <class To, class From>
struct convert_body {
  static constexpr int at_once = in_16_bytes<To>;
  const From* from;
  To* to;
  bool is_aligned() const { return are_aligned<at_once>(from, to); }
  template <class N>
  SHARDPLAN_HOST_DEVICE void operator()(num i, N n) const {
    const auto x = load(from + i, n);
    store(to + i, n, [&](int k) { return narrow<To>(static_cast<accumulated<To>>(widen(x[k]))); });
  }
};
template <class T>
struct copy_body {
  static constexpr int at_once = in_16_bytes<T>;
  const T* from;
  T* to;
  bool is_aligned() const { return are_aligned<at_once>(from, to); }
  template <class N>
  SHARDPLAN_HOST_DEVICE void operator()(num i, N n) const {
    copy_neighbours(from + i, to + i, n);
  }
};
template <class T, class U>
struct add_body {
  static constexpr int at_once = in_16_bytes<T>;
  T* x;
  const U* y;
  bool is_aligned() const { return are_aligned<at_once>(x, y); }
  template <class N>
  SHARDPLAN_HOST_DEVICE void operator()(num i, N n) const {
    const auto a = load(x + i, n);
    const auto b = load(y + i, n);
    store(x + i, n, [&](int k) { return narrow<T>(widen(a[k]) + static_cast<accumulated<T>>(widen(b[k]))); });
  }
};
template <class T>
struct add_bias_body {
  static constexpr int at_once = in_16_bytes<T>;
  T* x;
  const T* bias;
  num width;
  bool is_aligned() const { return are_aligned<at_once>(x, bias) && width % at_once == 0; }
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {
    c.each(constant<at_once>{}, [&](num i, auto n) {
      T* at = x + row * width + i;
      const auto a = load(at, n), b = load(bias + i, n);
      store(at, n, [&](int k) { return narrow<T>(widen(a[k]) + widen(b[k])); });
    });
  }
};
template <class T>
struct stored_term {
  const T* values;  // (rows, width)
  num width;
  SHARDPLAN_HOST_DEVICE accumulated<T> operator()(num row, num column) const {
    return widen(values[row * width + column]);
  }
};

/// Gates and ups lie `stride` apart from row to row: next to each other, or in memory of their own.
template <class T>
struct swiglu_body {
  static constexpr int at_once = in_16_bytes<T>;
  const T *gate, *up;
  T* out;
  num stride, width;
  bool is_aligned() const {
    return are_aligned<at_once>(gate, up, out) && stride % at_once == 0 && width % at_once == 0;
  }
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {
    c.each(constant<at_once>{}, [&](num i, auto n) {
      const auto gates = load(gate + row * stride + i, n), ups = load(up + row * stride + i, n);
      store(out + row * width + i, n, [&](int k) {
        const accumulated<T> g = widen(gates[k]), u = widen(ups[k]);
        return narrow<T>(g / (1 + std::exp(-g)) * u);
      });
    });
  }
};
template <class T>
struct swiglu_backward_body {
  static constexpr int at_once = in_16_bytes<T>;
  T *gate, *up;
  const T* dy;
  num stride, width;
  bool is_aligned() const {
    return are_aligned<at_once>(gate, up, dy) && stride % at_once == 0 && width % at_once == 0;
  }
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {
    c.each(constant<at_once>{}, [&](num i, auto n) {
      T *gates = gate + row * stride + i, *ups = up + row * stride + i;
      const auto here = load(gates, n), dys = load(dy + row * width + i, n);
      auto other = load(ups, n);  // becomes its gradient
      store(gates, n, [&](int k) {
        const accumulated<T> g = widen(here[k]), u = widen(other[k]), d = widen(dys[k]);
        const accumulated<T> sigmoid = 1 / (1 + std::exp(-g));
        other[k] = narrow<T>(d * g * sigmoid);
        return narrow<T>(d * u * sigmoid * std::fma(g, 1 - sigmoid, accumulated<T>{1}));
      });
      store(ups, n, [&](int k) { return other[k]; });
    });
  }
};

/// x = value, everywhere
template <class T, Launcher L>
void fill(L& on, std::span<T> x, std::type_identity_t<T> value) {
  for_each_element(on, static_cast<num>(x.size()), fill_body<T>{x.data(), value});
}

/// to = from, rounded to what `to` is stored in
template <class To, class From, Launcher L>
void convert(L& on, std::span<const From> from, std::span<To> to) {
  for_each_element(on, static_cast<num>(to.size()), convert_body<To, From>{from.data(), to.data()});
}

/// to = from; they do not overlap
template <class T, Launcher L>
void copy(L& on, std::span<const T> from, std::span<std::type_identity_t<T>> to) {
  for_each_element(on, static_cast<num>(to.size()), copy_body<T>{from.data(), to.data()});
}

/// x += y
template <class T, class U = T, Launcher L>
void add(L& on, std::span<T> x, std::span<const std::type_identity_t<U>> y) {
  for_each_element(on, static_cast<num>(x.size()), add_body<T, U>{x.data(), y.data()});
}

/// Adds `bias` (W) to each row of x (n, W).
template <class T, Launcher L>
void add_bias(L& on, std::span<T> x, std::span<const std::type_identity_t<T>> bias) {
  const num width = static_cast<num>(bias.size());
  if (width == 0) return;
  for_each_row(on, static_cast<num>(x.size()) / width, width, add_bias_body<T>{x.data(), bias.data(), width});
}

/// `dbias` (W) grows by the sum of the rows of dy (n, W).
template <class T, Launcher L>
void add_bias_backward(L& on, std::span<const T> dy, std::span<accumulated<T>> dbias) {
  const num width = static_cast<num>(dbias.size());
  if (width == 0) return;
  add_column_sums<accumulated<T>>(on, static_cast<num>(dy.size()) / width, stored_term<T>{dy.data(), width}, dbias);
}

/// out (n, I) = silu(gate) * up, with gate_up (n, 2I) holding gates first.
template <class T, Launcher L>
void swiglu(L& on, std::span<const T> gate_up, num width, std::span<std::type_identity_t<T>> out) {
  if (width == 0) return;
  for_each_row(on, static_cast<num>(out.size()) / width, width,
               swiglu_body<T>{gate_up.data(), gate_up.data() + width, out.data(), 2 * width, width});
}

/// out (n, I) = silu(gate (n, I)) * up (n, I); `out` may be `gate`.
template <class T, Launcher L>
void swiglu(L& on, std::span<const T> gate, std::span<const std::type_identity_t<T>> up,
            std::span<std::type_identity_t<T>> out) {
  const num size = static_cast<num>(out.size());
  for_each_row(on, size > 0 ? 1 : 0, size, swiglu_body<T>{gate.data(), up.data(), out.data(), size, size});
}

/// The gradients of gate and up, from dy (n, I), in place of their values: of gate_up (n, 2I), or of gate and up (n,
/// I).
template <class T, Launcher L>
void swiglu_backward(L& on, std::span<T> gate_up, num width, std::span<const std::type_identity_t<T>> dy) {
  if (width == 0) return;
  for_each_row(on, static_cast<num>(dy.size()) / width, width,
               swiglu_backward_body<T>{gate_up.data(), gate_up.data() + width, dy.data(), 2 * width, width});
}
template <class T, Launcher L>
void swiglu_backward(L& on, std::span<T> gate, std::span<std::type_identity_t<T>> up,
                     std::span<const std::type_identity_t<T>> dy) {
  const num size = static_cast<num>(dy.size());
  for_each_row(on, size > 0 ? 1 : 0, size, swiglu_backward_body<T>{gate.data(), up.data(), dy.data(), size, size});
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ELEMENTWISE_HPP
