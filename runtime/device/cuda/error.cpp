// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/cuda/error.hpp"

#include <cxxabi.h>

#include <cstdlib>  // free
#include <memory>   // unique_ptr

namespace shardplan::runtime::cuda {
namespace {

[[noreturn, gnu::cold, gnu::noinline]] void fail(cudaError_t code, std::string_view call, const std::string& asked) {
  throw engine_error(std::string(call) + "(" + asked + "): " + cudaGetErrorString(code) + " (" +
                     cudaGetErrorName(code) + ")");
}

}  // namespace

void check(cudaError_t code, std::string_view call) {
  if (code != cudaSuccess) fail(code, call, "");
}
void check(cudaError_t code, std::string_view call, num asked, std::string_view of_what) {
  if (code != cudaSuccess) fail(code, call, std::to_string(asked) + " " + std::string(of_what));
}
void check(cudaError_t code, std::string_view call, const std::type_info& kernel) {
  if (code != cudaSuccess) fail(code, call, name_of(kernel));
}
void check(cublasStatus_t code, std::string_view call) {
  if (code != CUBLAS_STATUS_SUCCESS)
    throw engine_error(std::string(call) + "(): " + cublasGetStatusString(code) + " (" + cublasGetStatusName(code) +
                       ")");
}

std::string name_of(const std::type_info& kernel) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(kernel.name(), nullptr, nullptr, &status),
                                                    std::free);
  return status == 0 ? name.get() : kernel.name();
}

}  // namespace shardplan::runtime::cuda
