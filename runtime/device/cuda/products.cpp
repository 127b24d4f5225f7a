// SPDX-License-Identifier: Apache-2.0
// Matrix products on a GPU, by cuBLAS.
#include "runtime/device/cuda/products.hpp"

#include "runtime/device/cuda/error.hpp"
#include "runtime/device/cuda/launcher.hpp"

namespace shardplan::runtime::cuda {
namespace {

template <class T>
inline constexpr cudaDataType_t stored_as = CUDA_R_16BF;
template <>
inline constexpr cudaDataType_t stored_as<float> = CUDA_R_32F;
template <>
inline constexpr cudaDataType_t stored_as<double> = CUDA_R_64F;

}  // namespace

template <class T, class C>
void multiply(const gpu_launcher& on, flips f, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c,
              accumulated<T> alpha, accumulated<T> beta) {
  const column_major_product p(f, a, b, c);
  const auto operation = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
  constexpr cublasComputeType_t computed_in =
      std::is_same_v<accumulated<T>, double> ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;
  check(cublasGemmEx_64(on.blas(), operation(p.transpose_first), operation(p.transpose_second), p.m, p.n, p.k, &alpha,
                        b.data, stored_as<T>, p.first_stride, a.data, stored_as<T>, p.second_stride, &beta, c.data,
                        stored_as<C>, p.result_stride, computed_in, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx_64");
}

#define SHARDPLAN_INSTANTIATE(T, C)                                                                                    \
  template void multiply<T, C>(const gpu_launcher&, flips, matrix_view<const T>, matrix_view<const T>, matrix_view<C>, \
                               accumulated<T>, accumulated<T>);
SHARDPLAN_INSTANTIATE(float, float)
SHARDPLAN_INSTANTIATE(double, double)
SHARDPLAN_INSTANTIATE(bf16, bf16)
SHARDPLAN_INSTANTIATE(bf16, float)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan::runtime::cuda
