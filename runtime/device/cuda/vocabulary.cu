// SPDX-License-Identifier: Apache-2.0
// The kernels of vocabulary.hpp and embedding.hpp.
#include "runtime/device/cuda/embedding.hpp"
#include "runtime/device/cuda/launcher.cuh"
#include "runtime/device/cuda/vocabulary.hpp"

using namespace shardplan::runtime::cuda;

#define OF_STORED(T)                                    \
  SHARDPLAN_GPU_KERNEL(row_statistic_kernel<T, false>); \
  SHARDPLAN_GPU_KERNEL(row_statistic_kernel<T, true>);  \
  SHARDPLAN_GPU_ELEMENTS(pick_targets_body<T>);         \
  SHARDPLAN_GPU_ROWS(cross_entropy_backward_body<T>);   \
  SHARDPLAN_GPU_ROWS(look_up_body<T>);                  \
  SHARDPLAN_GPU_KERNEL(look_up_backward_kernel<T>)
OF_STORED(float);
OF_STORED(double);
OF_STORED(bf16);

SHARDPLAN_GPU_ELEMENTS(token_losses_body<float>);
SHARDPLAN_GPU_ELEMENTS(token_losses_body<double>);
