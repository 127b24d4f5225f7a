// SPDX-License-Identifier: Apache-2.0
// A directory that appears whole or not at all: filled under another name beside its place, renamed at the end.
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_ATOMIC_DIRECTORY_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_ATOMIC_DIRECTORY_HPP

#include <filesystem>

namespace shardplan::runtime {

/// Until `commit`, nothing is at the destination; without it, the destructor removes what was written. A process that
/// is killed leaves a directory `.NAME.PID-N.tmp` behind.
class atomic_directory {
 public:
  /// Throws input_error when something is at `path` already, or its parent is not there or cannot be written to.
  explicit atomic_directory(const std::filesystem::path& path);
  ~atomic_directory();
  atomic_directory(const atomic_directory&) = delete;
  atomic_directory& operator=(const atomic_directory&) = delete;

  /// Where to write the files, each of which must be on the disk before `commit`.
  const std::filesystem::path& temporary() const { return temporary_; }
  /// Moves the directory to its place. Throws input_error.
  void commit();

 private:
  std::filesystem::path path_, temporary_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_ATOMIC_DIRECTORY_HPP
