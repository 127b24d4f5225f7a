// SPDX-License-Identifier: Apache-2.0
// The kernels of attention in bf16 that multiply by warps.
#include "runtime/device/cuda/attention_forward_bf16.hpp"
#include "runtime/device/cuda/launcher.cuh"

using namespace shardplan::runtime::cuda;

SHARDPLAN_GPU_KERNEL(attend_bf16_kernel<64>);
SHARDPLAN_GPU_KERNEL(attend_bf16_kernel<128>);
SHARDPLAN_GPU_KERNEL(attend_bf16_kernel<256>);
