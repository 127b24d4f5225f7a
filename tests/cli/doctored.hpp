// SPDX-License-Identifier: Apache-2.0
// Files of results with a mistake put into them.
#ifndef SHARDPLAN_TESTS_CLI_DOCTORED_HPP
#define SHARDPLAN_TESTS_CLI_DOCTORED_HPP

#include <map>
#include <vector>

#include "command.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/checkpoint/safetensors_writer.hpp"

namespace command_test {

using shardplan::num;
using shardplan::runtime::safetensors_file;
using shardplan::runtime::safetensors_writer;
using shardplan::runtime::tensor_dtype;

/// shardplan(), where that is the name of a namespace too.
inline result command(const std::string& arguments) { return shardplan(arguments); }

struct plain_tensor {
  std::vector<num> shape;
  std::vector<double> values;
  tensor_dtype dtype = tensor_dtype::f32;
};
using plain_tensors = std::map<std::string, plain_tensor>;

/// What of a file is real numbers: results, without ids and masks.
inline plain_tensors results_of(const fs::path& path) {
  plain_tensors out;
  const safetensors_file file = safetensors_file::open(path);
  for (const auto& t : file.entries())
    if (shardplan::runtime::is_floating(t.dtype))
      out[t.name] = {t.shape, shardplan::runtime::read_as<double>(t), t.dtype};
  return out;
}

inline void write_tensors(const plain_tensors& tensors, const fs::path& path) {
  safetensors_writer writer;
  for (const auto& [name, t] : tensors) writer.add(name, t.dtype, t.shape, t.values);
  writer.write(path);
}

/// `verify --against` of the results of a fixture that `change` has spoilt; more arguments may follow.
template <class Change>
result against(const std::string& fixture, Change change, const std::string& more = "") {
  const temporary_directory folder;
  const std::string expected = (data / fixture / "expected.safetensors").string();
  plain_tensors tensors = results_of(expected);
  change(tensors);
  write_tensors(tensors, folder / "theirs.safetensors");
  return command("verify --checkpoint " + (data / fixture).string() + " --inputs " + expected + " --against " +
                 (folder / "theirs.safetensors") + " " + more);
}

/// The row of a tensor in the list of one JSON document.
inline json row_of(const json& tensors, const std::string& name) {
  for (const json& t : tensors)
    if (t["name"] == name) return t;
  FAIL("no row " << name);
  return {};
}

}  // namespace command_test
#endif  // SHARDPLAN_TESTS_CLI_DOCTORED_HPP
