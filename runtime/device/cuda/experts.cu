// SPDX-License-Identifier: Apache-2.0
// The kernels of router.hpp, pairs.hpp and exchange.hpp, and of products.hpp for groups.
#include "runtime/device/cuda/exchange.hpp"
#include "runtime/device/cuda/launcher.cuh"
#include "runtime/device/cuda/pairs.hpp"
#include "runtime/device/cuda/products.hpp"
#include "runtime/device/cuda/router.hpp"

using namespace shardplan::runtime::cuda;

#define OF_STORED(T)                                        \
  SHARDPLAN_GPU_ROWS(rows_of_pairs_body<T>);                \
  SHARDPLAN_GPU_ROWS(combine_pairs_body<T>);                \
  SHARDPLAN_GPU_BY_WIDTH(combine_pairs_backward_kernel, T); \
  SHARDPLAN_GPU_ROWS(copy_blocks_body<T>);                  \
  SHARDPLAN_GPU_ROWS(pack_heads_body<T>);                   \
  SHARDPLAN_GPU_ROWS(sum_heads_body<T>)
OF_STORED(float);
OF_STORED(double);
OF_STORED(bf16);

#define OF_ACCUMULATED(A)                                    \
  SHARDPLAN_GPU_BY_WIDTH(choose_experts_kernel, A);          \
  SHARDPLAN_GPU_BY_WIDTH(choose_experts_backward_kernel, A); \
  SHARDPLAN_GPU_BY_WIDTH(balance_gradient_kernel, A);        \
  SHARDPLAN_GPU_SUMS(A, balance_term<A>)
OF_ACCUMULATED(float);
OF_ACCUMULATED(double);

SHARDPLAN_GPU_ROWS(leave_out_padding_body);
SHARDPLAN_GPU_ELEMENTS(pointers_body);
SHARDPLAN_GPU_KERNEL(count_pairs_kernel);
SHARDPLAN_GPU_KERNEL(place_tiles_kernel);
SHARDPLAN_GPU_KERNEL(order_pairs_kernel);
