// SPDX-License-Identifier: Apache-2.0
// The weights of a checkpoint directory: one safetensors file, or several and an index that says what is where.
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_CHECKPOINT_FILES_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_CHECKPOINT_FILES_HPP

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/checkpoint/safetensors_writer.hpp"

namespace shardplan::runtime {

/// A tensor of a file to be, and who hands over its values.
struct tensor_to_write {
  std::string name;
  tensor_dtype dtype{};
  std::vector<num> shape;
  safetensors_writer::producer values;

  num bytes() const {
    num n = size_of(dtype);
    for (const num extent : shape) n *= extent;
    return n;
  }
};

/// Files hold at most so many bytes of weights, unless one tensor alone has more.
inline constexpr num max_weights_file_bytes = 5'000'000'000;

/// Writes the tensors, in their order, as model.safetensors into `directory`; or, when they exceed `max_file_bytes`, as
/// model-00001-of-0000N.safetensors and model.safetensors.index.json. `before_file` is told every path about to be
/// written. Throws input_error, and whatever values throw.
void write_weights(const std::filesystem::path& directory, const std::vector<tensor_to_write>& tensors,
                   num max_file_bytes = max_weights_file_bytes,
                   const std::function<void(const std::filesystem::path&)>& before_file = {});

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_CHECKPOINT_FILES_HPP
