// SPDX-License-Identifier: Apache-2.0
// The kernels of norm.hpp, rotary.hpp, elementwise.hpp, totals.hpp and optimizer.hpp, and of what products are made of
// beside cuBLAS.
#include "runtime/device/cuda/elementwise.hpp"
#include "runtime/device/cuda/launcher.cuh"
#include "runtime/device/cuda/norm.hpp"
#include "runtime/device/cuda/optimizer.hpp"
#include "runtime/device/cuda/products.hpp"
#include "runtime/device/cuda/rotary.hpp"
#include "runtime/device/cuda/totals.hpp"

using namespace shardplan::runtime::cuda;

#define OF_STORED(T)                                       \
  SHARDPLAN_GPU_BY_WIDTH(rms_norm_kernel, T);              \
  SHARDPLAN_GPU_BY_WIDTH(rms_norm_backward_kernel, T);     \
  SHARDPLAN_GPU_SUMS(accumulated<T>, norm_weight_term<T>); \
  SHARDPLAN_GPU_SUMS(accumulated<T>, stored_term<T>);      \
  SHARDPLAN_GPU_SUMS(double, total_term<T, false>);        \
  SHARDPLAN_GPU_SUMS(double, total_term<T, true>);         \
  SHARDPLAN_GPU_ROWS(add_bias_body<T>);                    \
  SHARDPLAN_GPU_ROWS(swiglu_body<T>);                      \
  SHARDPLAN_GPU_ROWS(swiglu_backward_body<T>);             \
  SHARDPLAN_GPU_ROWS(rotate_body<T>);                      \
  SHARDPLAN_GPU_ROWS(scale_body<T>);                       \
  SHARDPLAN_GPU_ELEMENTS(fill_body<T>);                    \
  SHARDPLAN_GPU_ELEMENTS(copy_body<T>);                    \
  SHARDPLAN_GPU_ELEMENTS(add_body<T, T>);                  \
  SHARDPLAN_GPU_ELEMENTS(convert_body<T, float>);          \
  SHARDPLAN_GPU_ELEMENTS(convert_body<T, double>);         \
  SHARDPLAN_GPU_ELEMENTS(convert_body<T, bf16>)
OF_STORED(float);
OF_STORED(double);
OF_STORED(bf16);

#define OF_ACCUMULATED(A)                   \
  SHARDPLAN_GPU_ELEMENTS(adamw_body<A>);    \
  SHARDPLAN_GPU_ROWS(rotary_table_body<A>); \
  SHARDPLAN_GPU_SUMS(A, partial_sums<A>)
OF_ACCUMULATED(float);
OF_ACCUMULATED(double);

SHARDPLAN_GPU_ELEMENTS(add_body<float, bf16>);
SHARDPLAN_GPU_ELEMENTS(fill_body<shardplan::num>);
SHARDPLAN_GPU_ELEMENTS(copy_body<shardplan::num>);
