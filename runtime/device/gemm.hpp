// SPDX-License-Identifier: Apache-2.0
// Matrix multiplication: the one piece that the baseline and the executor share.
#ifndef SHARDPLAN_RUNTIME_DEVICE_GEMM_HPP
#define SHARDPLAN_RUNTIME_DEVICE_GEMM_HPP

#include <shardplan/meta.hpp>
#include <span>
#include <type_traits>  // type_identity_t

namespace shardplan::runtime {

/// A row-major matrix somewhere in memory: `rows` x `cols`, `stride` elements from one row to the next.
template <class T>
struct matrix_view {
  T* data = nullptr;
  num rows = 0, cols = 0, stride = 0;

  matrix_view() = default;
  matrix_view(T* d, num r, num c) : data(d), rows(r), cols(c), stride(c) {}
  matrix_view(T* d, num r, num c, num s) : data(d), rows(r), cols(c), stride(s) {}
  /// A view to write is a view to read.
  operator matrix_view<const T>() const { return {data, rows, cols, stride}; }  // NOLINT
};

/// A matrix to read; T is deduced from the result alone.
template <class T>
using read_view = std::type_identity_t<matrix_view<const T>>;

// c = alpha * op(a) op(b) + beta * c, for T in {float, double}. Shapes must agree (else std::invalid_argument); any of
// them may be 0. With beta 0 what c held before, NaN included, does not matter; an empty sum (k = 0) is 0.
// c overlaps neither a nor b.
// One thread computes each product, so that a rank is a core, and sums are in one order however many ranks run.

/// c (m, n) from a (m, k) and b (k, n)
template <class T>
void gemm_nn(read_view<T> a, read_view<T> b, matrix_view<T> c, std::type_identity_t<T> alpha = 1,
             std::type_identity_t<T> beta = 0);
/// c (m, n) from a (m, k) and b (n, k): the product of a linear layer, weight rows = outputs
template <class T>
void gemm_nt(read_view<T> a, read_view<T> b, matrix_view<T> c, std::type_identity_t<T> alpha = 1,
             std::type_identity_t<T> beta = 0);
/// c (m, n) from a (k, m) and b (k, n): the product of a weight gradient
template <class T>
void gemm_tn(read_view<T> a, read_view<T> b, matrix_view<T> c, std::type_identity_t<T> alpha = 1,
             std::type_identity_t<T> beta = 0);

/// Which operand of a product is read transposed. A weight's gradient flips a, a linear layer flips b; never both.
struct flips {
  bool a = false, b = false;
};

/// One product of a group: an expert's. None of them writes what another reads or writes.
template <class T, class C = T>
struct product_of_group {
  matrix_view<const T> a, b;
  matrix_view<C> c;
};

/// c = alpha * op(a) op(b) + beta * c for each product, as gemm_nn, gemm_nt (flips b) or gemm_tn (flips a) would. An
/// operation of its own, because on a GPU many small products are best asked for at once.
template <class T>
void gemm_group(flips f, std::type_identity_t<std::span<const product_of_group<T>>> products,
                std::type_identity_t<T> alpha = 1, std::type_identity_t<T> beta = 0) {
  for (const product_of_group<T>& p : products) {
    if (f.a)
      gemm_tn<T>(p.a, p.b, p.c, alpha, beta);
    else if (f.b)
      gemm_nt<T>(p.a, p.b, p.c, alpha, beta);
    else
      gemm_nn<T>(p.a, p.b, p.c, alpha, beta);
  }
}

/// Adds up the time that this thread spends in the products above, from construction to destruction. At most one per
/// thread counts: a second one replaces the first until it ends. Without any, a product pays one load for it.
///
///     gemm_stopwatch watch;
///     model.forward(batch);
///     report(watch.seconds());
class gemm_stopwatch {
 public:
  gemm_stopwatch();
  ~gemm_stopwatch();
  gemm_stopwatch(const gemm_stopwatch&) = delete;
  gemm_stopwatch& operator=(const gemm_stopwatch&) = delete;

  double seconds() const { return seconds_; }
  void add(double seconds) { seconds_ += seconds; }

 private:
  double seconds_ = 0;
  gemm_stopwatch* outer_;  // the one it replaces
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_GEMM_HPP
