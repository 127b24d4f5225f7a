// SPDX-License-Identifier: Apache-2.0
// The kernels of attention in bf16 that multiply by warps.
#include "runtime/device/cuda/attention_backward_bf16.hpp"
#include "runtime/device/cuda/attention_forward_bf16.hpp"
#include "runtime/device/cuda/launcher.cuh"

using namespace shardplan::runtime::cuda;

#define OF_WIDTH(Width)                                        \
  SHARDPLAN_GPU_KERNEL(attend_bf16_kernel<Width>);             \
  SHARDPLAN_GPU_KERNEL(query_gradient_bf16_kernel<Width>);     \
  SHARDPLAN_GPU_KERNEL(key_gradient_bf16_kernel<bf16, Width>); \
  SHARDPLAN_GPU_KERNEL(key_gradient_bf16_kernel<float, Width>)
OF_WIDTH(64);
OF_WIDTH(128);
OF_WIDTH(256);
