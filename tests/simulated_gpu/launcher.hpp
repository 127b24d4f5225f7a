// SPDX-License-Identifier: Apache-2.0
// What a .cu file finds in the place of launcher.cuh: kernels that the stream of a simulated GPU runs on the host. The
// build includes it first; what nvcc would read is hidden by its include guard.
#ifndef SHARDPLAN_TESTS_SIMULATED_GPU_LAUNCHER_HPP
#define SHARDPLAN_TESTS_SIMULATED_GPU_LAUNCHER_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_LAUNCHER_CUH

#include <functional>
#include <span>
#include <type_traits>

#include "runtime/device/cuda/error.hpp"
#include "runtime/device/cuda/kernel_names.hpp"
#include "runtime/device/cuda/launcher.hpp"

namespace simulated {

/// Puts a kernel on the stream. `arguments`: what it is given, without what lies between its members.
cudaError_t launch(CUstream_st* stream, const std::type_info& kernel, std::span<const std::byte> arguments,
                   std::function<void(bool reversed)> run);

}  // namespace simulated

namespace shardplan::runtime::cuda {

template <class Kernel>
void gpu_launcher::launch(num blocks, const typename Kernel::arguments& arguments) const {
  using shared = typename Kernel::shared;
  static_assert(std::is_trivially_copyable_v<typename Kernel::arguments> && alignof(shared) <= 16);
  if (blocks == 0) return;
  constexpr num shared_bytes = std::is_empty_v<shared> ? 0 : static_cast<num>(sizeof(shared));
  refuse_what_does_not_fit(typeid(Kernel), blocks, Kernel::threads, shared_bytes);
  auto bare = arguments;
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&bare);
#endif
  check(simulated::launch(
            stream_.get(), typeid(Kernel), std::as_bytes(std::span(&bare, 1)),
            [blocks, arguments](bool reversed) { host_launcher(reversed).launch<Kernel>(blocks, arguments); }),
        "launch", typeid(Kernel));
}

}  // namespace shardplan::runtime::cuda

#endif  // SHARDPLAN_TESTS_SIMULATED_GPU_LAUNCHER_HPP
