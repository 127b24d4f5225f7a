// SPDX-License-Identifier: Apache-2.0
// The state of a training run on disk, in pieces: every tensor is cut into regions, which lie in the files of the ranks
// that kept them. An index in global coordinates says where, so that any plan can read what any other plan wrote.
//
//   state/latest                          names the directory of the newest whole state
//   state/step-00000002/index.json        {"step", "tensors": {name: {"shape", "pieces": [{"file", "region"}]}}}
//   state/step-00000002/rank-00003.safetensors
//
// A state becomes visible when `latest` is renamed over the old one, after all of it is on disk.
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_SHARDED_STATE_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_SHARDED_STATE_HPP

#include <filesystem>
#include <map>
#include <memory>
#include <shardplan/region.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan::runtime {

/// Where the regions of each tensor lie.
struct state_index {
  struct piece {
    num rank = 0;  ///< whose file
    region part;
  };
  struct tensor {
    std::vector<num> shape;
    std::vector<piece> pieces;
  };
  num step = 0;
  std::map<std::string, tensor> tensors;
};

/// Directory of a step below `root`: `attempt` counts those that are there already, from a run that was repeated or
/// that died while it wrote. And a rank's file in it.
std::filesystem::path state_directory(const std::filesystem::path& root, num step, num attempt);
/// Makes a directory for a step that was not there before, and says which attempt it is. Throws input_error.
num make_state_directory(const std::filesystem::path& root, num step);
std::filesystem::path state_file(const std::filesystem::path& directory, num rank);

/// Writes the index and makes the state the newest; every rank's file must be on disk. Throws input_error.
void publish_state(const std::filesystem::path& root, num attempt, const state_index& index);

/// An opened state: reads any region of any tensor from the pieces that hold parts of it.
class sharded_state {
 public:
  /// Opens the newest state below `root`. Throws input_error naming file and field of what is missing or wrong; pieces
  /// must cover each tensor, every value once.
  static sharded_state open(const std::filesystem::path& root);

  num step() const;
  /// Fills `out` (r.size() values, row-major) with the region; T is float or double, the type that was written or not.
  template <class T>
  void read(std::string_view tensor, const std::vector<num>& shape, const region& r, std::span<T> out) const;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_SHARDED_STATE_HPP
