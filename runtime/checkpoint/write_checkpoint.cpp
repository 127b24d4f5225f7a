// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/write_checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <type_traits>

#include "runtime/checkpoint/atomic_directory.hpp"
#include "runtime/checkpoint/atomic_file.hpp"
#include "runtime/error.hpp"

namespace shardplan::runtime {
namespace {

/// The configuration as it was, byte for byte; but where all weights now have another type, that is said.
std::string config_text(const std::filesystem::path& path, std::optional<tensor_dtype> dtype) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw input_error(fmt::format("{}: cannot be read", path.string()));
  if (!dtype) return text;
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(text);
  const char* field = config.contains("dtype") ? "dtype" : "torch_dtype";  // the new name of the field, and the old
  if (config.value(field, "") == torch_name(*dtype)) return text;
  config[field] = torch_name(*dtype);
  return config.dump(2) + "\n";
}

}  // namespace

template <class T>
void write_checkpoint(const std::filesystem::path& directory, const checkpoint& like,
                      const std::map<std::string, std::vector<T>>& parameters, std::optional<tensor_dtype> dtype,
                      num max_file_bytes) {
  constexpr tensor_dtype widest = std::is_same_v<T, double> ? tensor_dtype::f64 : tensor_dtype::f32;
  std::vector<tensor_to_write> tensors;
  bool narrowed = false;
  for_each_parameter(like.config().spec, [&](const parameter& p) {
    const auto found = parameters.find(std::string(name_of(p).view()));
    if (found == parameters.end() || static_cast<num>(found->second.size()) != p.size())
      throw std::logic_error(fmt::format("a checkpoint needs {} values of {}", p.size(), name_of(p).view()));
    for (const stored_tensor& stored : like.stored(p)) {
      const tensor_dtype wanted = dtype.value_or(stored.dtype), type = std::max(wanted, widest);  // widest first
      narrowed = narrowed || type != wanted;
      const auto values = std::span<const T>(found->second)
                              .subspan(static_cast<std::size_t>(stored.begin), static_cast<std::size_t>(stored.size()));
      tensors.push_back({stored.name, type, stored.shape, encoded(values, type)});
    }
  });
  if (narrowed) dtype = widest;

  atomic_directory place(directory);
  write_weights(place.temporary(), tensors, max_file_bytes);
  atomic_file config(place.temporary() / "config.json");
  config.write(config_text(like.directory() / "config.json", dtype));
  config.commit();
  place.commit();
}

template void write_checkpoint(const std::filesystem::path&, const checkpoint&,
                               const std::map<std::string, std::vector<float>>&, std::optional<tensor_dtype>, num);
template void write_checkpoint(const std::filesystem::path&, const checkpoint&,
                               const std::map<std::string, std::vector<double>>&, std::optional<tensor_dtype>, num);

}  // namespace shardplan::runtime
