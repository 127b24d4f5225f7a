// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/checkpoint_files.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "runtime/checkpoint/atomic_file.hpp"

namespace shardplan::runtime {
namespace {

/// Consecutive tensors in files of at most `max_file_bytes`: indices at which files begin, and the end.
std::vector<std::size_t> file_borders(const std::vector<tensor_to_write>& tensors, num max_file_bytes) {
  std::vector<std::size_t> borders = {0};
  num bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const num more = tensors[i].bytes();
    if (i > borders.back() && bytes + more > max_file_bytes) {
      borders.push_back(i);
      bytes = 0;
    }
    bytes += more;
  }
  borders.push_back(tensors.size());
  return borders;
}

}  // namespace

void write_weights(const std::filesystem::path& directory, const std::vector<tensor_to_write>& tensors,
                   num max_file_bytes, const std::function<void(const std::filesystem::path&)>& before_file) {
  const auto place = [&](const std::string& name) {
    if (before_file) before_file(directory / name);
    return directory / name;
  };
  const std::vector<std::size_t> borders = file_borders(tensors, max_file_bytes);
  const std::size_t num_files = borders.size() - 1;
  nlohmann::json weight_map = nlohmann::json::object();
  num all_bytes = 0;
  for (std::size_t f = 0; f < num_files; ++f) {
    const std::string name =
        num_files == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, num_files);
    safetensors_writer writer;
    for (std::size_t i = borders[f]; i < borders[f + 1]; ++i) {
      const tensor_to_write& t = tensors[i];
      writer.add(t.name, t.dtype, t.shape, t.values);
      weight_map[t.name] = name;
    }
    all_bytes += writer.data_bytes();
    writer.write(place(name));
  }
  if (num_files == 1) return;
  atomic_file index(place("model.safetensors.index.json"));
  index.write(nlohmann::json{{"metadata", {{"total_size", all_bytes}}}, {"weight_map", weight_map}}.dump(2) + "\n");
  index.commit();
}

}  // namespace shardplan::runtime
