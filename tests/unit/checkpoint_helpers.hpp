// SPDX-License-Identifier: Apache-2.0
// For tests of files: a directory that goes away with the test, and what an input_error says.
#ifndef SHARDPLAN_TESTS_UNIT_CHECKPOINT_HELPERS_HPP
#define SHARDPLAN_TESTS_UNIT_CHECKPOINT_HELPERS_HPP

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "runtime/error.hpp"

namespace shardplan::tests {

/// A new, empty directory, removed with the object.
class temporary_directory {
 public:
  temporary_directory() {
    static int counter = 0;
    path = std::filesystem::temp_directory_path() /
           ("shardplan-test-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
    std::filesystem::create_directory(path);
  }
  ~temporary_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  temporary_directory(const temporary_directory&) = delete;
  temporary_directory& operator=(const temporary_directory&) = delete;

  std::filesystem::path path;
};

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::size_t num_files(const std::filesystem::path& directory) {
  const std::filesystem::directory_iterator begin(directory);
  return static_cast<std::size_t>(std::distance(begin, {}));
}

/// Text of the input_error that `f` throws; "no error" when it throws none.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const runtime::input_error& e) {
    return e.what();
  }
  return "no error";
}

/// Numbers that look random and are the same everywhere: splitmix64.
struct random_numbers {
  std::uint64_t state = 1;

  std::uint64_t operator()() {
    std::uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  /// A number from 0 to n - 1.
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>((*this)() % static_cast<std::uint64_t>(n)); }
};

}  // namespace shardplan::tests
#endif  // SHARDPLAN_TESTS_UNIT_CHECKPOINT_HELPERS_HPP
