// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all: written under another name beside its place, flushed to the disk, renamed.
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_ATOMIC_FILE_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_ATOMIC_FILE_HPP

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace shardplan::runtime {

/// Until `commit`, the destination is untouched; without it, the destructor removes what was written.
class atomic_file {
 public:
  /// Throws input_error when the directory cannot be written to, or `path` is a directory or a device.
  explicit atomic_file(std::filesystem::path path);
  ~atomic_file();
  atomic_file(const atomic_file&) = delete;
  atomic_file& operator=(const atomic_file&) = delete;

  /// Throws input_error, for example when the disk is full.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Flushes, and moves the file to its place, over one that is there.
  void commit();

 private:
  void flush_buffer();
  [[noreturn]] void fail(std::string_view what) const;

  std::filesystem::path path_, temporary_;
  std::string buffer_;  // small pieces are collected
  int file_ = -1;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_ATOMIC_FILE_HPP
