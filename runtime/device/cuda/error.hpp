// SPDX-License-Identifier: Apache-2.0
// What CUDA and cuBLAS report, as engine_error: the call, what it was asked, and the cause.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ERROR_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ERROR_HPP

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <shardplan/meta.hpp>
#include <string>
#include <string_view>
#include <typeinfo>

#include "runtime/error.hpp"

namespace shardplan::runtime::cuda {

/// Throws engine_error unless the call went well, as in
///   cudaMallocAsync(4096 bytes): out of memory (cudaErrorMemoryAllocation)
void check(cudaError_t code, std::string_view call);
void check(cudaError_t code, std::string_view call, num asked, std::string_view of_what);
void check(cudaError_t code, std::string_view call, const std::type_info& kernel);
void check(cublasStatus_t code, std::string_view call);

/// The name of a kernel as people write it.
std::string name_of(const std::type_info& kernel);

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ERROR_HPP
