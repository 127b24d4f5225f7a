// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/cuda/launcher.hpp"

#include "runtime/device/cuda/error.hpp"

namespace shardplan::runtime::cuda {
namespace {

/// Partial sums stay in float in either case.
void set_math(cublasHandle_t handle, bool tf32) {
  const int mode =
      (tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH) | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
  check(cublasSetMathMode(handle, static_cast<cublasMath_t>(mode)), "cublasSetMathMode");
}

}  // namespace

// All that cuBLAS allocates it is asked for now: allocating may wait for the device, and a collective that is under way
// there for other ranks.
gpu_launcher::gpu_launcher(int device) : stream_(device) {
  cublasHandle_t handle = nullptr;
  check(cublasCreate(&handle), "cublasCreate");
  blas_ = {handle, [](cublasContext* h) { static_cast<void>(cublasDestroy(h)); }};
  check(cublasSetStream(handle, stream_.get()), "cublasSetStream");
  // Memory given once and for all, so that a product takes the same way, and gives the same bits, in every run.
  workspace_ = allocate<char>(num{32} << 20);
  check(cublasSetWorkspace(handle, workspace_.data(), static_cast<std::size_t>(workspace_.size())),
        "cublasSetWorkspace");
  set_math(handle, false);
}

void gpu_launcher::refuse_what_does_not_fit(const std::type_info& kernel, num blocks, num threads,
                                            num shared_bytes) const {
  const auto refuse = [&](const char* what, num asked, num most) {
    if (asked > most)
      throw engine_error(name_of(kernel) + " asks for " + std::to_string(asked) + " " + what + ", device " +
                         std::to_string(stream_.device()) + " allows " + std::to_string(most));
  };
  refuse("blocks", blocks, stream_.limits().blocks);
  refuse("threads per block", threads, stream_.limits().threads);
  refuse("bytes of shared memory", shared_bytes, stream_.limits().shared_bytes);
}

void gpu_launcher::allow_tf32(bool allowed) { set_math(blas(), allowed); }

}  // namespace shardplan::runtime::cuda
