// SPDX-License-Identifier: Apache-2.0
// Writes a safetensors file. Data is asked for while the file is written, so that it need not be in memory at once.
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_SAFETENSORS_WRITER_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_SAFETENSORS_WRITER_HPP

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <shardplan/meta.hpp>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/tensor_dtype.hpp"

namespace shardplan::runtime {

/// Converts `values` to `dtype`: floating types to floating types, rounded to nearest even, and integers to integer
/// types and BOOL that hold them; `out` has size_of(dtype) bytes for each. Throws std::logic_error otherwise.
template <class T>
void encode(std::span<const T> values, tensor_dtype dtype, std::span<std::byte> out);

/// Takes the next bytes of a tensor.
using byte_sink = std::function<void(std::span<const std::byte>)>;
/// Hands all bytes of a tensor, encoded, to the sink, in as many calls as it likes.
using byte_producer = std::function<void(const byte_sink&)>;

/// Hands over `values`, which must live until then, converted as by `encode`, without a copy of all of them.
template <class T>
byte_producer encoded(std::span<const T> values, tensor_dtype dtype);

/// The tensors of a file to be.
///
///     safetensors_writer writer;
///     writer.add("logits", tensor_dtype::f32, {2, 5, 96}, std::move(logits));  // std::vector<float> or <double>
///     writer.write("out.safetensors");
class safetensors_writer {
 public:
  using sink = byte_sink;
  using producer = byte_producer;

  /// Adds a tensor. Throws std::logic_error when the name is there already, or is "__metadata__", or the shape is
  /// negative.
  void add(std::string name, tensor_dtype dtype, std::vector<num> shape, producer produce);
  /// Adds a tensor with its values (float, double, std::int64_t, std::int32_t or std::uint8_t), converted as by
  /// `encode`. Throws std::logic_error when their number is not that of the shape.
  template <class T>
  void add(std::string name, tensor_dtype dtype, std::vector<num> shape, std::vector<T> values);
  /// The same, without a copy: the values must live until `write`.
  template <class T>
  void add_view(std::string name, tensor_dtype dtype, std::vector<num> shape, std::span<const T> values);

  /// Bytes of all tensors added, without the header.
  num data_bytes() const { return data_bytes_; }

  /// Writes the file, over one that is there; on failure, nothing is left behind and an old file stays as it was.
  /// Throws input_error naming the file, std::logic_error when a producer hands over too few or too many bytes, and
  /// whatever a producer throws.
  void write(const std::filesystem::path& path) const;

 private:
  struct tensor {
    std::string name;
    tensor_dtype dtype;
    std::vector<num> shape;
    num bytes;
    producer produce;
  };
  std::vector<tensor> tensors_;
  std::set<std::string> names_;
  num data_bytes_ = 0;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_SAFETENSORS_WRITER_HPP
