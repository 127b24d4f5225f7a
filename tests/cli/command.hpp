// SPDX-License-Identifier: Apache-2.0
// Runs the built command as a user would, and tells its exit status and what it wrote to where.
#ifndef SHARDPLAN_TESTS_CLI_COMMAND_HPP
#define SHARDPLAN_TESTS_CLI_COMMAND_HPP

#include <doctest/doctest.h>
#include <stdlib.h>    // mkdtemp
#include <sys/wait.h>  // WEXITSTATUS

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace command_test {

namespace fs = std::filesystem;
using json = nlohmann::json;

inline const fs::path data = SHARDPLAN_TEST_DATA;
inline const std::string tiny = (data / "tiny").string();

struct temporary_directory {
  fs::path path;
  temporary_directory() {
    std::string name = (fs::temp_directory_path() / "shardplan_command_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path = name;
  }
  ~temporary_directory() { fs::remove_all(path); }
  temporary_directory(const temporary_directory&) = delete;
  temporary_directory& operator=(const temporary_directory&) = delete;
  std::string operator/(const char* name) const { return (path / name).string(); }
};

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_file(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

struct result {
  int exit_code = -1;
  std::string out, err;
};

/// `arguments` as for a shell.
inline result shardplan(const std::string& arguments) {
  const temporary_directory folder;
  const std::string line =
      std::string(SHARDPLAN_COMMAND) + " " + arguments + " >" + (folder / "out") + " 2>" + (folder / "err");
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "out"), read_file(folder / "err")};
}

/// The one JSON document on standard output.
inline json document(const result& r) {
  const json parsed = json::parse(r.out, nullptr, false);
  if (parsed.is_discarded()) FAIL_CHECK("not one JSON document: '" << r.out << "'");
  return parsed;
}

inline bool says(const std::string& text, std::initializer_list<std::string> words) {
  for (const std::string& word : words)
    if (text.find(word) == std::string::npos) {
      MESSAGE("'" << text << "' does not say '" << word << "'");
      return false;
    }
  return true;
}

/// Fails with that status, in text and with --json, and says these words in both; nothing else is on standard output.
inline void check_failure(const std::string& arguments, int exit_code, std::initializer_list<std::string> words) {
  CAPTURE(arguments);
  const result text = shardplan(arguments);
  CHECK(text.exit_code == exit_code);
  CHECK(text.out == "");
  CHECK(says(text.err, words));
  const result with_json = shardplan(arguments + " --json");
  CHECK(with_json.exit_code == exit_code);
  const json d = document(with_json);
  REQUIRE(d.contains("error"));
  CHECK(says(d.dump(), words));
}

/// A checkpoint like tests/data/tiny, in a new directory, for tests that spoil it.
inline std::string copy_of_tiny(const temporary_directory& folder) {
  fs::create_directory(folder.path / "model");
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(data / "tiny" / name, folder.path / "model" / name);
  return folder / "model";
}

}  // namespace command_test
#endif  // SHARDPLAN_TESTS_CLI_COMMAND_HPP
