// SPDX-License-Identifier: Apache-2.0
// A Hugging Face checkpoint directory, opened for reading: any part of any parameter, whatever the files' layout.
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_CHECKPOINT_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_CHECKPOINT_HPP

#include <filesystem>
#include <memory>
#include <shardplan/parameters.hpp>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/model_config.hpp"

namespace shardplan::runtime {

/// A tensor of the files, which holds consecutive values of a parameter: all of it, or what is one expert's.
struct stored_tensor {
  std::string name;
  tensor_dtype dtype{};
  std::vector<num> shape;
  num begin = 0;  ///< the first value, counted in the parameter as it is in memory, row-major

  /// Number of values.
  num size() const {
    num n = 1;
    for (const num extent : shape) n *= extent;
    return n;
  }
};

/// Files are mapped, not read; copies share the mapping, and reading from several threads is safe.
class checkpoint {
 public:
  /// Opens `directory`: config.json, and model.safetensors or model.safetensors.index.json with its shards. Every
  /// parameter of the model must be there with its shape, as one tensor per expert or as fused tensors, in F32, F16
  /// or BF16 (F64 too). Throws input_error naming file, tensor and what is wrong with it.
  static checkpoint open(const std::filesystem::path& directory);

  const model_config& config() const;
  const std::filesystem::path& directory() const;

  /// Copies the part `r` of parameter `p` to `out` (row-major, `r.size()` elements), converted to T: float,
  /// double or bf16.
  template <class T>
  void read(const parameter& p, const region& r, std::span<T> out) const;

  /// The tensors that hold parameter `p`, in the order of its values; together they are all of it.
  std::vector<stored_tensor> stored(const parameter& p) const;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_CHECKPOINT_HPP
