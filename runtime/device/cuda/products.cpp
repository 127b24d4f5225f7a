// SPDX-License-Identifier: Apache-2.0
// Matrix products on a GPU, by cuBLAS. Not by cuBLASLt: what it has beyond this - functions applied to results, a
// choice of algorithms by hand, scaled 8-bit types - no layer here asks for, and each product would need four
// descriptors.
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

template <class T>
inline constexpr cublasComputeType_t computed_in =
    std::is_same_v<accumulated<T>, double> ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;

cublasOperation_t operation(bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

template <class T, class C>
void multiply(const gpu_launcher& on, flips f, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c,
              accumulated<T> alpha, accumulated<T> beta) {
  const column_major_product p(f, a, b, c);
  check(cublasGemmEx_64(on.blas(), operation(p.transpose_first), operation(p.transpose_second), p.m, p.n, p.k, &alpha,
                        b.data, stored_as<T>, p.first_stride, a.data, stored_as<T>, p.second_stride, &beta, c.data,
                        stored_as<C>, p.result_stride, computed_in<T>, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx_64");
}

template <class T, class C>
void multiply_group(const gpu_launcher& on, flips f, std::span<const product_of_group<T, C>> products,
                    accumulated<T> alpha, accumulated<T> beta) {
  if constexpr (std::is_same_v<T, C>)
    if (products.size() > 1 && suits_grouped_call(products)) {
      const column_major_group<T> group(f, products, alpha, beta);
      auto pointers = pointers_on_device(on, group.pointers);
      void* const* first = pointers.data();
      void *const *second = first + products.size(), *const *result = second + products.size();
      const std::vector<cublasOperation_t> of_first(products.size(), operation(f.b)),
          of_second(products.size(), operation(f.a));
      return check(cublasGemmGroupedBatchedEx_64(
                       on.blas(), of_first.data(), of_second.data(), group.m.data(), group.n.data(), group.k.data(),
                       group.alpha.data(), first, stored_as<T>, group.first_stride.data(), second, stored_as<T>,
                       group.second_stride.data(), group.beta.data(), result, stored_as<T>, group.result_stride.data(),
                       static_cast<num>(products.size()), group.size.data(), computed_in<T>),
                   "cublasGemmGroupedBatchedEx_64");
    }
  for (const product_of_group<T, C>& p : products) multiply<T, C>(on, f, p.a, p.b, p.c, alpha, beta);
}

#define SHARDPLAN_INSTANTIATE(T, C)                                                                                    \
  template void multiply<T, C>(const gpu_launcher&, flips, matrix_view<const T>, matrix_view<const T>, matrix_view<C>, \
                               accumulated<T>, accumulated<T>);                                                        \
  template void multiply_group<T, C>(const gpu_launcher&, flips, std::span<const product_of_group<T, C>>,              \
                                     accumulated<T>, accumulated<T>);
SHARDPLAN_INSTANTIATE(float, float)
SHARDPLAN_INSTANTIATE(double, double)
SHARDPLAN_INSTANTIATE(bf16, bf16)
SHARDPLAN_INSTANTIATE(bf16, float)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan::runtime::cuda
