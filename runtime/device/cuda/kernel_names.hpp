// SPDX-License-Identifier: Apache-2.0
// How a .cu file names the kernels that a GPU can be asked for, whatever launches them.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_KERNEL_NAMES_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_KERNEL_NAMES_HPP

#include "runtime/device/cuda/launcher.hpp"

/// Makes gpu_launcher able to launch a kernel.
#define SHARDPLAN_GPU_KERNEL(...)                                            \
  template void shardplan::runtime::cuda::gpu_launcher::launch<__VA_ARGS__>( \
      shardplan::num, const typename __VA_ARGS__::arguments&) const
/// The same for the kernels of an operation, which are of a type and a number of threads: with_threads_for's.
#define SHARDPLAN_GPU_BY_WIDTH(kernel, ...)      \
  SHARDPLAN_GPU_KERNEL(kernel<__VA_ARGS__, 32>); \
  SHARDPLAN_GPU_KERNEL(kernel<__VA_ARGS__, 256>)
#define SHARDPLAN_GPU_ROWS(...) SHARDPLAN_GPU_BY_WIDTH(rows_kernel, __VA_ARGS__)
#define SHARDPLAN_GPU_ELEMENTS(...) SHARDPLAN_GPU_KERNEL(elements_kernel<__VA_ARGS__>)
#define SHARDPLAN_GPU_SUMS(A, ...) SHARDPLAN_GPU_KERNEL(column_sums_kernel<__VA_ARGS__, A>)

#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_KERNEL_NAMES_HPP
