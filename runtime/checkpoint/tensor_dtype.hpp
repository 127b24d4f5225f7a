// SPDX-License-Identifier: Apache-2.0
// Element types of tensors in files.
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_TENSOR_DTYPE_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_TENSOR_DTYPE_HPP

#include <optional>
#include <shardplan/meta.hpp>
#include <string_view>

namespace shardplan::runtime {

/// Element type of a tensor in a file. The 8-bit floating types are recognised but cannot be converted.
enum class tensor_dtype : unsigned char {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  f8_e4m3,
  f8_e5m2,
};

/// The spelling of safetensors: "F64", "BF16", "I64", "BOOL" ...
std::string_view name_of(tensor_dtype dtype);
std::optional<tensor_dtype> find_dtype(std::string_view name);
/// Bytes of one element.
num size_of(tensor_dtype dtype);
/// F64, F32, F16 and BF16: what weights may be.
constexpr bool is_floating(tensor_dtype dtype) { return dtype <= tensor_dtype::bf16; }

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_TENSOR_DTYPE_HPP
