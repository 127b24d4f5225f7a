// SPDX-License-Identifier: Apache-2.0
// The kernels of attention's forward, and of places.
#include "runtime/device/cuda/attention_forward.hpp"
#include "runtime/device/cuda/launcher.cuh"

using namespace shardplan::runtime::cuda;

SHARDPLAN_GPU_KERNEL(extent_kernel);
SHARDPLAN_GPU_KERNEL(list_kernel);

#define OF_STORED(T)                           \
  SHARDPLAN_GPU_KERNEL(attend_kernel<T, 64>);  \
  SHARDPLAN_GPU_KERNEL(attend_kernel<T, 128>); \
  SHARDPLAN_GPU_KERNEL(attend_kernel<T, 256>); \
  SHARDPLAN_GPU_KERNEL(finish_kernel<T>)
OF_STORED(float);
OF_STORED(double);
SHARDPLAN_GPU_KERNEL(finish_kernel<bf16>);
