// SPDX-License-Identifier: Apache-2.0
// The kernels of attention's backward.
#include "runtime/device/cuda/attention_backward.hpp"
#include "runtime/device/cuda/launcher.cuh"

using namespace shardplan::runtime::cuda;

#define OF_STORED(T)                                   \
  SHARDPLAN_GPU_KERNEL(query_gradient_kernel<T, 64>);  \
  SHARDPLAN_GPU_KERNEL(query_gradient_kernel<T, 128>); \
  SHARDPLAN_GPU_KERNEL(query_gradient_kernel<T, 256>); \
  SHARDPLAN_GPU_KERNEL(along_kernel<T>)
OF_STORED(float);
OF_STORED(double);
SHARDPLAN_GPU_KERNEL(along_kernel<bf16>);

#define OF_GRADIENT(T, G)                               \
  SHARDPLAN_GPU_KERNEL(key_gradient_kernel<T, G, 64>);  \
  SHARDPLAN_GPU_KERNEL(key_gradient_kernel<T, G, 128>); \
  SHARDPLAN_GPU_KERNEL(key_gradient_kernel<T, G, 256>)
OF_GRADIENT(float, float);
OF_GRADIENT(double, double);
