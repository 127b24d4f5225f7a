// SPDX-License-Identifier: Apache-2.0
// Matrix products on a CPU, by OpenBLAS: it picks the kernels of the processor it runs on, whatever this file was
// compiled for. Its own threads stay idle, because the ranks are the threads here.
#include "runtime/device/gemm.hpp"

#include <cblas.h>
#include <time.h>  // clock_gettime

#include <algorithm>  // fill_n, max, transform
#include <climits>    // INT_MAX
#include <stdexcept>  // invalid_argument
#include <string>     // to_string

namespace shardplan::runtime {
namespace {

/// Set before main, since it must not change while products run.
[[maybe_unused]] const bool one_thread_per_product = [] {
  openblas_set_num_threads(1);
  return true;
}();

thread_local gemm_stopwatch* running = nullptr;

/// Adds the time from here to the end of the scope to this thread's stopwatch, if there is one.
class lap {
 public:
  lap() {
    if (running != nullptr) start_ = thread_seconds();
  }
  ~lap() {
    if (running != nullptr) running->add(thread_seconds() - start_);
  }
  lap(const lap&) = delete;
  lap& operator=(const lap&) = delete;

 private:
  /// Processor time, so that what other threads do to the machine does not count.
  static double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
  double start_ = 0;
};

// One name for both types; matrices are row-major everywhere.
void multiply(CBLAS_TRANSPOSE op_a, CBLAS_TRANSPOSE op_b, int m, int n, int k, float alpha, const float* a, int lda,
              const float* b, int ldb, float beta, float* c, int ldc) {
  cblas_sgemm(CblasRowMajor, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void multiply(CBLAS_TRANSPOSE op_a, CBLAS_TRANSPOSE op_b, int m, int n, int k, double alpha, const double* a, int lda,
              const double* b, int ldb, double beta, double* c, int ldc) {
  cblas_dgemm(CblasRowMajor, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void multiply(CBLAS_TRANSPOSE op, int rows, int cols, float alpha, const float* matrix, int stride, const float* x,
              int step, float beta, float* y) {
  cblas_sgemv(CblasRowMajor, op, rows, cols, alpha, matrix, stride, x, step, beta, y, 1);
}
void multiply(CBLAS_TRANSPOSE op, int rows, int cols, double alpha, const double* matrix, int stride, const double* x,
              int step, double beta, double* y) {
  cblas_dgemv(CblasRowMajor, op, rows, cols, alpha, matrix, stride, x, step, beta, y, 1);
}

template <class T>
bool is_sound(matrix_view<const T> v) {
  return v.rows >= 0 && v.cols >= 0 && v.rows <= INT_MAX && v.cols <= INT_MAX && v.stride <= INT_MAX &&
         (v.rows <= 1 || v.stride >= v.cols);
}

/// The stride that BLAS wants to see: at least 1, and the length of a row even when there is a single one.
template <class T>
int stride_of(matrix_view<const T> v) {
  return static_cast<int>(std::max({v.stride, v.cols, num{1}}));
}

/// Apart from the product and never inlined, so that the usual path stays short.
template <class T>
[[noreturn, gnu::noinline, gnu::cold]] void refuse(matrix_view<const T> a, bool flip_a, matrix_view<const T> b,
                                                   bool flip_b, matrix_view<const T> c) {
  const auto text = [](matrix_view<const T> v, bool flip) {
    return " (" + std::to_string(v.rows) + ", " + std::to_string(v.cols) + ") stride " + std::to_string(v.stride) +
           (flip ? " transposed" : "");
  };
  throw std::invalid_argument("gemm: shapes do not agree: a" + text(a, flip_a) + ", b" + text(b, flip_b) + ", c" +
                              text(c, false));
}

template <class T>
void scale(matrix_view<T> c, T beta) {
  for (num i = 0; i < c.rows; ++i) {
    T* row = c.data + i * c.stride;
    if (beta == T(0)) std::fill_n(row, c.cols, T(0));  // not a product: 0 * NaN is NaN
    if (beta != T(0) && beta != T(1)) std::transform(row, row + c.cols, row, [&](T x) { return beta * x; });
  }
}

template <class T>
void gemm(CBLAS_TRANSPOSE op_a, CBLAS_TRANSPOSE op_b, matrix_view<const T> a, matrix_view<const T> b, matrix_view<T> c,
          T alpha, T beta) {
  const bool flip_a = op_a == CblasTrans, flip_b = op_b == CblasTrans;
  const num m = c.rows, n = c.cols, k = flip_a ? a.rows : a.cols;
  if (!is_sound<T>(a) || !is_sound<T>(b) || !is_sound<T>(c) || (flip_a ? a.cols : a.rows) != m ||
      (flip_b ? b.rows : b.cols) != n || (flip_b ? b.cols : b.rows) != k)
    refuse<T>(a, flip_a, b, flip_b, c);
  const lap time;
  if (m == 0 || n == 0) return;
  if (k == 0) return scale(c, beta);
  if (m == 1) {
    // A single row reads each weight once. The general routine would first copy them all: up to 6 times slower.
    if (beta == T(0)) scale(c, beta);
    const CBLAS_TRANSPOSE op = flip_b ? CblasNoTrans : CblasTrans;
    return multiply(op, static_cast<int>(b.rows), static_cast<int>(b.cols), alpha, b.data, stride_of<T>(b), a.data,
                    flip_a ? stride_of<T>(a) : 1, beta, c.data);
  }
  multiply(op_a, op_b, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), alpha, a.data, stride_of<T>(a),
           b.data, stride_of<T>(b), beta, c.data, stride_of<T>(c));
}

}  // namespace

gemm_stopwatch::gemm_stopwatch() : outer_(running) { running = this; }
gemm_stopwatch::~gemm_stopwatch() { running = outer_; }

template <class T>
void gemm_nn(read_view<T> a, read_view<T> b, matrix_view<T> c, std::type_identity_t<T> alpha,
             std::type_identity_t<T> beta) {
  gemm<T>(CblasNoTrans, CblasNoTrans, a, b, c, alpha, beta);
}
template <class T>
void gemm_nt(read_view<T> a, read_view<T> b, matrix_view<T> c, std::type_identity_t<T> alpha,
             std::type_identity_t<T> beta) {
  gemm<T>(CblasNoTrans, CblasTrans, a, b, c, alpha, beta);
}
template <class T>
void gemm_tn(read_view<T> a, read_view<T> b, matrix_view<T> c, std::type_identity_t<T> alpha,
             std::type_identity_t<T> beta) {
  gemm<T>(CblasTrans, CblasNoTrans, a, b, c, alpha, beta);
}

template void gemm_nn<float>(read_view<float>, read_view<float>, matrix_view<float>, float, float);
template void gemm_nt<float>(read_view<float>, read_view<float>, matrix_view<float>, float, float);
template void gemm_tn<float>(read_view<float>, read_view<float>, matrix_view<float>, float, float);
template void gemm_nn<double>(read_view<double>, read_view<double>, matrix_view<double>, double, double);
template void gemm_nt<double>(read_view<double>, read_view<double>, matrix_view<double>, double, double);
template void gemm_tn<double>(read_view<double>, read_view<double>, matrix_view<double>, double, double);

}  // namespace shardplan::runtime
