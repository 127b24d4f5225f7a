// SPDX-License-Identifier: Apache-2.0
// A checkpoint of random weights, as a fresh model would have: for tests, examples and measurements.
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_INIT_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_INIT_HPP

#include <cstdint>
#include <filesystem>
#include <functional>
#include <shardplan/meta.hpp>
#include <span>
#include <string_view>

#include "runtime/checkpoint/checkpoint_files.hpp"
#include "runtime/checkpoint/model_config.hpp"

namespace shardplan::runtime {

/// Standard normal numbers of one tensor: which ones depends on seed and name, not on shape, files or order. Each is
/// the sum of twelve uniform numbers of 16 bits, less its mean: integers and one division by a power of two, hence
/// the same bits on every machine, which logarithms and cosines of a library would not be. At most 6 in magnitude.
class normal_stream {
 public:
  normal_stream(std::uint64_t seed, std::string_view name);
  /// Element `i` of the stream.
  double operator()(num i) const;

 private:
  std::uint64_t key_;
};

/// Called while weights are written, with bytes done and bytes in all. What it throws ends the writing, and passes to
/// the caller after everything written is removed: the way to interrupt it.
using write_progress = std::function<void(num done, num total)>;

/// Writes a checkpoint that `transformers` loads: config.json, and weights per expert in files of at most
/// `max_file_bytes` (one tensor may exceed it), with an index when there are several. Matrices are normal with
/// deviation `initializer_range`, norms 1, biases 0. The model is never in memory as a whole.
/// Throws input_error, and leaves nothing behind, when `directory` exists and is not empty, cannot be written to, or
/// has less room than the weights need.
void write_random_checkpoint(const std::filesystem::path& directory, const model_config& config, std::uint64_t seed = 0,
                             tensor_dtype dtype = tensor_dtype::bf16, num max_file_bytes = max_weights_file_bytes,
                             const write_progress& progress = {});

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_INIT_HPP
