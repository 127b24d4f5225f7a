// SPDX-License-Identifier: Apache-2.0
// A safetensors file, mapped for reading. The whole file is validated when it is opened; every defect is an
// input_error that names the file, the tensor and the value.
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_SAFETENSORS_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_SAFETENSORS_HPP

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <shardplan/region.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/tensor_dtype.hpp"

namespace shardplan::runtime {

/// One tensor of an open file; valid as long as the file (or a copy of its handle) lives.
struct tensor_entry {
  std::string name;
  tensor_dtype dtype{};
  std::vector<num> shape;            ///< empty: a scalar
  std::span<const std::byte> bytes;  ///< row-major, little endian, not necessarily aligned
  std::string_view file;             ///< path, for messages

  /// Number of elements; 1 for a scalar.
  num size() const;
};

/// An open file; copies share the mapping, and reading from several threads is safe. The file must not be truncated
/// while it is open.
class safetensors_file {
 public:
  /// Throws input_error: cannot be opened or mapped, length of the header, header not JSON, a dtype not known, a
  /// shape negative or too large, offsets outside of the file, overlapping or leaving holes, bytes that do not match
  /// shape and dtype, duplicate names.
  static safetensors_file open(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  /// Names of all tensors, sorted.
  std::vector<std::string> names() const;
  /// All tensors, sorted by name.
  std::span<const tensor_entry> entries() const;
  /// The tensor of that name, or nullptr.
  const tensor_entry* find(std::string_view name) const;
  /// The tensor of that name; throws input_error when the file has none.
  const tensor_entry& at(std::string_view name) const;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};

/// All elements, converted to T: float, double, std::int64_t, std::int32_t or std::uint8_t. Floating types convert
/// to floating types (rounded to nearest), integer types and BOOL (0 or 1) to integer types that hold every value;
/// anything else throws input_error.
///
///     const safetensors_file file = safetensors_file::open("inputs.safetensors");
///     const std::vector<std::int64_t> ids = read_as<std::int64_t>(file.at("input_ids"));
template <class T>
std::vector<T> read_as(const tensor_entry& tensor);

/// Copies the part `r` of a tensor of one to three dims to `out` (row-major, `r.size()` elements), converted to T
/// (float, double, bf16). Throws input_error when the dtype is not floating, std::logic_error when `r` is not a part of
/// the tensor or `out` has another size.
template <class T>
void read_part(const tensor_entry& tensor, const region& r, std::span<T> out);

/// "[3, 4]", for messages.
std::string to_text(std::span<const num> shape);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_SAFETENSORS_HPP
