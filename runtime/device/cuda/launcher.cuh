// SPDX-License-Identifier: Apache-2.0
// How a GPU takes the steps of a kernel. Only .cu files include this: they name the kernels that a GPU can be asked
// for, and everything else, compiled by the host's compiler, calls operations with a gpu_launcher.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_LAUNCHER_CUH
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_LAUNCHER_CUH

#include <cuda_runtime.h>

#include <typeinfo>

#include "runtime/device/cuda/error.hpp"
#include "runtime/device/cuda/kernel_names.hpp"
#include "runtime/device/cuda/launcher.hpp"

namespace shardplan::runtime::cuda {

/// How many blocks of a kernel should fit on a multiprocessor at once, which limits the registers of a thread.
template <class Kernel>
constexpr int blocks_at_once() {
  if constexpr (requires { Kernel::blocks_at_once; })
    return Kernel::blocks_at_once;
  else
    return 1;
}

/// Takes the steps of a kernel, all threads of a block together.
template <class Kernel>
__global__ void __launch_bounds__(Kernel::threads, blocks_at_once<Kernel>())
    take_steps(const typename Kernel::arguments arguments) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<typename Kernel::shared*>(memory);
  typename Kernel::state state;
  const place at{blockIdx.x, gridDim.x, static_cast<int>(threadIdx.x)};
  const num steps = Kernel::steps(arguments, at.block);
  for (num s = 0; s < steps; ++s) {
    if (s > 0) __syncthreads();
    Kernel::step(arguments, s, at, state, shared);
  }
}

template <class Kernel>
void gpu_launcher::launch(num blocks, const typename Kernel::arguments& arguments) const {
  using shared = typename Kernel::shared;
  static_assert(std::is_trivially_copyable_v<shared> && std::is_trivially_copyable_v<typename Kernel::state>);
  static_assert(std::is_trivially_copyable_v<typename Kernel::arguments> && alignof(shared) <= 16);
  if (blocks == 0) return;
  constexpr num shared_bytes = std::is_empty_v<shared> ? 0 : static_cast<num>(sizeof(shared));
  refuse_what_does_not_fit(typeid(Kernel), blocks, Kernel::threads, shared_bytes);
  // More than what every block may have must be asked for.
  if constexpr (shared_bytes > 48 * 1024)
    check(cudaFuncSetAttribute(take_steps<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shared_bytes)),
          "cudaFuncSetAttribute");
  // Not <<<...>>> and cudaGetLastError, which would report what a call before this one has failed with.
  void* given[] = {const_cast<typename Kernel::arguments*>(&arguments)};
  check(cudaLaunchKernel(take_steps<Kernel>, dim3(static_cast<unsigned>(blocks)), dim3(Kernel::threads), given,
                         static_cast<std::size_t>(shared_bytes), stream_.get()),
        "launch", typeid(Kernel));
}

}  // namespace shardplan::runtime::cuda

#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_LAUNCHER_CUH
