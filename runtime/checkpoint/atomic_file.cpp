// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "runtime/error.hpp"

namespace shardplan::runtime {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

}  // namespace

atomic_file::atomic_file(std::filesystem::path path) : path_(std::move(path)) {
  // Renaming would replace what is no file, a device for example.
  std::error_code error;
  if (const auto there = std::filesystem::status(path_, error);
      std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
    throw input_error(path_.string() + ": cannot be written: not a regular file");
  // The name differs between processes and threads; O_EXCL leaves alone what a killed process may have left.
  static std::atomic<unsigned> counter = 0;
  do {
    temporary_ = path_.parent_path() / fmt::format(".{}.{}-{}.tmp", path_.filename().string(), ::getpid(), counter++);
    file_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (file_ < 0 && errno == EEXIST);
  if (file_ < 0) fail("cannot be created");
}

atomic_file::~atomic_file() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

void atomic_file::fail(std::string_view what) const {
  throw input_error(fmt::format("{}: {}: {}", path_.string(), what, std::system_category().message(errno)));
}

void atomic_file::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), buffer_bytes - buffer_.size()));
    buffer_.append(reinterpret_cast<const char*>(part.data()), part.size());
    bytes = bytes.subspan(part.size());
    if (buffer_.size() == buffer_bytes) flush_buffer();
  }
}

void atomic_file::flush_buffer() {
  for (std::size_t done = 0; done < buffer_.size();) {
    const ::ssize_t n = ::write(file_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno != EINTR) fail("cannot be written");
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  buffer_.clear();
}

void atomic_file::commit() {
  flush_buffer();
  if (::fsync(file_) != 0) fail("cannot be written");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be put in place");
  // From here on the file is complete; the errors of closing and of flushing the directory change nothing of that.
  ::close(std::exchange(file_, -1));
  const auto parent = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  if (const int directory = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); directory >= 0) {
    ::fsync(directory);
    ::close(directory);
  }
}

}  // namespace shardplan::runtime
