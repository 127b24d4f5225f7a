// SPDX-License-Identifier: Apache-2.0
// A checkpoint directory like one that was read, with the parameters of a run: what `transformers` and
// checkpoint::open load.
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_WRITE_CHECKPOINT_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_WRITE_CHECKPOINT_HPP

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/checkpoint_files.hpp"

namespace shardplan::runtime {

/// Writes `parameters` (whole, row-major, by name; T is float or double) as the tensors that `like` has them in, with
/// their names and shapes: one per expert where it has one per expert, no head where it is tied. Beside them stands the
/// config.json of `like`. Elements are of `dtype`, or without one of the type that each tensor has in `like`; but never
/// wider than T. The directory appears when all of it is on the disk.
/// Throws input_error when something is at `directory` already or it cannot be written; std::logic_error when a
/// parameter is missing or has another size.
template <class T>
void write_checkpoint(const std::filesystem::path& directory, const checkpoint& like,
                      const std::map<std::string, std::vector<T>>& parameters, std::optional<tensor_dtype> dtype = {},
                      num max_file_bytes = max_weights_file_bytes);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_WRITE_CHECKPOINT_HPP
