// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/atomic_directory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <system_error>

#include "runtime/error.hpp"

namespace shardplan::runtime {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, std::string_view what) {
  throw input_error(fmt::format("{}: {}", path.string(), what));
}

/// Puts the names in a directory on the disk. Where a file system cannot, the names are still there.
void flush(const fs::path& path) {
  if (const int directory = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); directory >= 0) {
    ::fsync(directory);
    ::close(directory);
  }
}

}  // namespace

atomic_directory::atomic_directory(const fs::path& path) {
  std::error_code error;
  // Without a slash at its end a path has a last name, in the place of which the temporary one is made.
  path_ = fs::absolute(path).lexically_normal();
  if (!path_.has_filename()) path_ = path_.parent_path();
  if (fs::symlink_status(path_, error).type() != fs::file_type::not_found)
    fail(path, "is there already; a new directory is needed");
  static std::atomic<unsigned> counter = 0;
  do {
    temporary_ = path_.parent_path() / fmt::format(".{}.{}-{}.tmp", path_.filename().string(), ::getpid(), counter++);
    error.clear();
  } while (!fs::create_directory(temporary_, error) && !error);  // one that a killed process left is not touched
  if (error) fail(path, fmt::format("cannot be created: {}", error.message()));
}

atomic_directory::~atomic_directory() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void atomic_directory::commit() {
  flush(temporary_);
  // Over an empty directory that appeared meanwhile, but over nothing else.
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail(path_, fmt::format("cannot be put in place: {}", std::system_category().message(errno)));
  temporary_.clear();
  flush(path_.parent_path());
}

}  // namespace shardplan::runtime
