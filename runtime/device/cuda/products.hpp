// SPDX-License-Identifier: Apache-2.0
// Matrix products as in runtime/device/gemm.hpp, by what a launcher runs on: cuBLAS on a GPU, runtime/device/gemm.hpp
// on the host. Sums are formed in accumulated<T>; what they give is stored in T or in accumulated<T>.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_PRODUCTS_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_PRODUCTS_HPP

#include <algorithm>    // max, min
#include <cstdint>      // uintptr_t
#include <stdexcept>    // invalid_argument
#include <type_traits>  // is_same_v

#include "runtime/device/cuda/loops.hpp"
#include "runtime/device/gemm.hpp"

namespace shardplan::runtime::cuda {

class gpu_launcher;

using runtime::flips;

/// A row-major product as a column-major library is asked for it: a matrix read the other way is its transpose, so the
/// transposed result is asked for, from the operands in the other order.
struct column_major_product {
  bool transpose_first, transpose_second;  // first is b, second is a
  num m, n, k;
  num first_stride, second_stride, result_stride;

  template <class T, class C>
  column_major_product(flips f, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c)
      : transpose_first(f.b),
        transpose_second(f.a),
        m(c.cols),
        n(c.rows),
        k(f.a ? a.rows : a.cols),
        first_stride(std::max(b.stride, b.cols)),
        second_stride(std::max(a.stride, a.cols)),
        result_stride(std::max(c.stride, c.cols)) {}
};

/// Whether one grouped call of cuBLAS takes these products. It asks for one type of operands and results, so that
/// gradients of weights which are summed in float from bf16 are multiplied one by one; and reads by 16 bytes at a time.
template <class T, class C>
bool suits_grouped_call(std::span<const product_of_group<T, C>> products) {
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return std::is_same_v<T, C> && std::all_of(products.begin(), products.end(), [&](const auto& p) {
           return aligned(p.a.data) && aligned(p.b.data) && aligned(p.c.data);
         });
}

/// Products as a grouped call is asked for them: each a group of its own, shapes and factors on the host.
template <class T>
struct column_major_group {
  std::vector<num> m, n, k, first_stride, second_stride, result_stride, size;
  std::vector<accumulated<T>> alpha, beta;
  std::vector<void*> pointers;  // to all first operands, then to all second ones, then to all results

  column_major_group(flips f, std::span<const product_of_group<T>> products, accumulated<T> by, accumulated<T> keep)
      : size(products.size(), 1), alpha(products.size(), by), beta(products.size(), keep) {
    for (const product_of_group<T>& of_group : products) {
      const column_major_product p(f, of_group.a, of_group.b, of_group.c);
      m.push_back(p.m), n.push_back(p.n), k.push_back(p.k);
      first_stride.push_back(p.first_stride), second_stride.push_back(p.second_stride);
      result_stride.push_back(p.result_stride);
    }
    for (const auto& p : products) pointers.push_back(const_cast<T*>(p.b.data));
    for (const auto& p : products) pointers.push_back(const_cast<T*>(p.a.data));
    for (const auto& p : products) pointers.push_back(p.c.data);
  }
};

/// Some pointers from a kernel's arguments to memory of the device.
struct pointers_body {
  static constexpr num most = 384;  // 3 KiB of the 4 that arguments may have
  void* from[most];
  void** to;
  SHARDPLAN_HOST_DEVICE void operator()(num i) const { to[i] = from[i]; }
};

/// `pointers` in memory of the device. The host has nothing to wait for: a copy would read `pointers` later.
template <Launcher L>
auto pointers_on_device(L& on, std::span<void* const> pointers) {
  const num size = static_cast<num>(pointers.size());
  auto there = on.template allocate<void*>(size);
  for (num first = 0; first < size; first += pointers_body::most) {
    const num count = std::min(size - first, pointers_body::most);
    pointers_body body{{}, there.data() + first};
    std::copy_n(pointers.begin() + first, count, body.from);
    for_each_element(on, count, body);
  }
  return there;
}

template <class T>
struct scale_body {
  T* c;
  num stride;
  accumulated<T> by;
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns at) const {
    for (num i = at.begin; i < at.end; i += at.step) {
      T& x = c[row * stride + i];
      x = narrow<T>(by == 0 ? 0 : by * widen(x));  // not a product: 0 * NaN is NaN
    }
  }
};

// ---- the two who multiply; no size is 0

template <class T, class C>
void multiply(const host_launcher&, flips f, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c,
              accumulated<T> alpha, accumulated<T> beta) {
  using A = accumulated<T>;
  const auto wide = [](auto m) {  // what a CPU computes with
    std::vector<A> values;
    for (num i = 0; i < m.rows; ++i)
      for (num j = 0; j < m.cols; ++j) values.push_back(static_cast<A>(widen(m.data[i * m.stride + j])));
    return values;
  };
  const std::vector<A> wide_a = wide(a), wide_b = wide(b);
  std::vector<A> wide_c = wide(c);
  const matrix_view<const A> x(wide_a.data(), a.rows, a.cols), y(wide_b.data(), b.rows, b.cols);
  const matrix_view<A> z(wide_c.data(), c.rows, c.cols);
  if (f.a)
    runtime::gemm_tn(x, y, z, alpha, beta);
  else if (f.b)
    runtime::gemm_nt(x, y, z, alpha, beta);
  else
    runtime::gemm_nn(x, y, z, alpha, beta);
  for (num i = 0; i < c.rows; ++i)
    for (num j = 0; j < c.cols; ++j) c.data[i * c.stride + j] = narrow<C>(z.data[i * c.cols + j]);
}

/// For T in {float, double, bf16} and C in {T, accumulated<T>}. Floats are multiplied as floats, unless
/// gpu_launcher::allow_tf32 says otherwise.
template <class T, class C>
void multiply(const gpu_launcher& on, flips f, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c,
              accumulated<T> alpha, accumulated<T> beta);

/// The products of a group, one after another.
template <class T, class C>
void multiply_group(const host_launcher& on, flips f, std::span<const product_of_group<T, C>> products,
                    accumulated<T> alpha, accumulated<T> beta) {
  for (const product_of_group<T, C>& p : products) multiply<T, C>(on, f, p.a, p.b, p.c, alpha, beta);
}
/// By one call where suits_grouped_call says so.
template <class T, class C>
void multiply_group(const gpu_launcher& on, flips f, std::span<const product_of_group<T, C>> products,
                    accumulated<T> alpha, accumulated<T> beta);

/// Checks shapes, and carries out what is no product because a size is 0. Is there a product left to compute?
template <class T, class C, Launcher L>
bool must_multiply(L& on, flips f, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c,
                   accumulated<T> beta) {
  const num m = c.rows, n = c.cols, k = f.a ? a.rows : a.cols;
  if ((f.a ? a.cols : a.rows) != m || (f.b ? b.rows : b.cols) != n || (f.b ? b.cols : b.rows) != k)
    throw std::invalid_argument("gemm: shapes do not agree");
  if (m > 0 && n > 0 && k == 0) for_each_row(on, m, n, scale_body<C>{c.data, std::max(c.stride, n), beta});
  return m > 0 && n > 0 && k > 0;
}

template <class T, class C, Launcher L>
void product(L& on, flips f, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c, accumulated<T> alpha,
             accumulated<T> beta) {
  if (must_multiply<T, C>(on, f, a, b, c, beta)) multiply<T, C>(on, f, a, b, c, alpha, beta);
}

// c = alpha * op(a) op(b) + beta * c. Shapes must agree (else std::invalid_argument); any of them may be 0. With beta 0
// what c held before, NaN included, does not matter; an empty sum (k = 0) is 0. c overlaps neither a nor b.

/// c (m, n) from a (m, k) and b (k, n)
template <class T, class C = T, Launcher L>
void gemm_nn(L& on, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c, accumulated<T> alpha = 1,
             accumulated<T> beta = 0) {
  product<T, C>(on, {false, false}, a, b, c, alpha, beta);
}
/// c (m, n) from a (m, k) and b (n, k): the product of a linear layer, weight rows = outputs
template <class T, class C = T, Launcher L>
void gemm_nt(L& on, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c, accumulated<T> alpha = 1,
             accumulated<T> beta = 0) {
  product<T, C>(on, {false, true}, a, b, c, alpha, beta);
}
/// c (m, n) from a (k, m) and b (k, n): the product of a weight gradient
template <class T, class C = T, Launcher L>
void gemm_tn(L& on, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c, accumulated<T> alpha = 1,
             accumulated<T> beta = 0) {
  product<T, C>(on, {true, false}, a, b, c, alpha, beta);
}

/// The same for each product of a group, in one call where that can be.
template <class T, class C = T, Launcher L>
void gemm_group(L& on, flips f, std::type_identity_t<std::span<const product_of_group<T, C>>> products,
                accumulated<T> alpha = 1, accumulated<T> beta = 0) {
  std::vector<product_of_group<T, C>> some;  // with no size 0
  for (const product_of_group<T, C>& p : products)
    if (must_multiply<T, C>(on, f, p.a, p.b, p.c, beta)) some.push_back(p);
  multiply_group<T, C>(on, f, some, alpha, beta);
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_PRODUCTS_HPP
