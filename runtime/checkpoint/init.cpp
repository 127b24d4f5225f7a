// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/init.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <shardplan/parameters.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/checkpoint/checkpoint_files.hpp"
#include "runtime/error.hpp"

namespace shardplan::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t golden = 0x9e3779b97f4a7c15u;

/// The output function of splitmix64: a bijection whose result looks random for consecutive arguments.
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A tensor as it is stored: experts one by one.
struct fresh_tensor {
  std::string name;
  std::vector<num> shape;
  parameter_kind kind{};

  num size() const {
    num n = 1;
    for (const num extent : shape) n *= extent;
    return n;
  }
};

std::vector<fresh_tensor> fresh_tensors(const model_spec& m) {
  std::vector<fresh_tensor> tensors;
  const num hidden = m.hidden_size, intermediate = m.moe_intermediate_size;
  for_each_parameter(m, [&](const parameter& p) {
    if (p.kind == parameter_kind::experts_down) return;  // stored with gate and up, expert after expert
    if (p.kind != parameter_kind::experts_gate_up) {
      tensors.push_back({std::string(name_of(p).view()), {p.shape.begin(), p.shape.end()}, p.kind});
      return;
    }
    for (num e = 0; e < m.num_experts; ++e) {
      const std::string expert = fmt::format("model.layers.{}.mlp.experts.{}.", p.layer, e);
      tensors.push_back({expert + "gate_proj.weight", {intermediate, hidden}, p.kind});
      tensors.push_back({expert + "up_proj.weight", {intermediate, hidden}, p.kind});
      tensors.push_back({expert + "down_proj.weight", {hidden, intermediate}, parameter_kind::experts_down});
    }
  });
  return tensors;
}

/// What a model takes on disk, before a list of its tensors is made: a configuration may ask for any size.
struct demand {
  num parameters = 0, tensors = 0;  // -1: more than 2^63

  explicit demand(const model_spec& m) {
    const auto sum = [](num a, num b) { return a < 0 || b < 0 || a > INT64_MAX - b ? -1 : a + b; };
    for_each_parameter(m, [&](const parameter& p) {
      num elements = 1;
      for (const num extent : p.shape) elements = checked_product(elements, extent);
      parameters = sum(parameters, elements);
      const bool gate_up = p.kind == parameter_kind::experts_gate_up, down = p.kind == parameter_kind::experts_down;
      tensors += gate_up ? 2 * m.num_experts : down ? m.num_experts : 1;
    });
  }
};

void check_room(const fs::path& directory, const model_spec& m, tensor_dtype dtype) {
  constexpr num max_tensors = 500'000;  // their names fill the header of one file, which the format limits
  const demand d(m);
  if (d.tensors > max_tensors)
    throw input_error(fmt::format("{}: the model has {} tensors (one for each expert), at most {} are written",
                                  directory.string(), d.tensors, max_tensors));
  fs::path existing = fs::absolute(directory);
  while (!fs::exists(existing) && existing.has_relative_path()) existing = existing.parent_path();
  const auto room = static_cast<double>(fs::space(existing).available);
  const double header_bytes = 256.0 * static_cast<double>(d.tensors);
  const num bytes = checked_product(d.parameters, size_of(dtype));
  const double needed = bytes < 0 ? 0x1p63 : static_cast<double>(bytes) + header_bytes;
  if (needed > room)
    throw input_error(fmt::format(
        "{}: the weights need {:.1f} GB ({} parameters in {}), but {:.1f} GB are free", directory.string(),
        needed / 1e9, d.parameters < 0 ? "more than 2^63" : std::to_string(d.parameters), name_of(dtype), room / 1e9));
}

/// The destination: on failure, everything written or created is removed again.
class new_directory {
 public:
  explicit new_directory(const fs::path& path) : path_(path) {
    if (fs::exists(path) && !fs::is_directory(path))
      throw input_error(path.string() + ": is there already, and not a directory");
    if (fs::exists(path) && !fs::is_empty(path)) throw input_error(path.string() + ": the directory is not empty");
  }
  void create() {
    for (fs::path p = fs::absolute(path_).lexically_normal(); !fs::exists(p); p = p.parent_path()) created_ = p;
    fs::create_directories(path_);
  }
  ~new_directory() {
    if (kept_) return;
    std::error_code ignored;
    for (const fs::path& file : files_) fs::remove(file, ignored);
    if (!created_.empty()) fs::remove_all(created_, ignored);
  }
  new_directory(const new_directory&) = delete;
  new_directory& operator=(const new_directory&) = delete;

  /// A file is about to be written.
  void file(const fs::path& path) { files_.push_back(path); }
  void keep() { kept_ = true; }

 private:
  fs::path path_, created_;  // created_: the outermost directory that was not there
  std::vector<fs::path> files_;
  bool kept_ = false;
};

/// Hands over the elements of a tensor piece by piece.
safetensors_writer::producer random_values(const fresh_tensor& tensor, const model_config& config, std::uint64_t seed,
                                           tensor_dtype dtype) {
  const parameter_class kind = class_of(tensor.kind);
  const bool one = kind == parameter_class::norm || kind == parameter_class::head_norm;
  const bool zero = tensor.kind >= parameter_kind::q_bias && tensor.kind <= parameter_kind::o_bias;
  return [=, n = tensor.size(), normal = normal_stream(seed, tensor.name),
          deviation = config.initializer_range](const safetensors_writer::sink& out) {
    constexpr num piece = 65536;
    std::vector<double> values;
    std::vector<std::byte> bytes;
    for (num begin = 0; begin < n; begin += piece) {
      values.resize(static_cast<std::size_t>(std::min(piece, n - begin)));
      num i = begin;
      for (double& value : values) value = one ? 1 : zero ? 0 : normal(i++) * deviation;
      bytes.resize(values.size() * static_cast<std::size_t>(size_of(dtype)));
      encode(std::span<const double>(values), dtype, std::span(bytes));
      out(bytes);
    }
  };
}

void write_files(new_directory& place, const fs::path& directory, const model_config& config, std::uint64_t seed,
                 tensor_dtype dtype, num max_file_bytes, const write_progress& progress) {
  num done_bytes = 0, all_bytes = 0;
  const auto report = [&](std::span<const std::byte> bytes) {
    done_bytes += static_cast<num>(bytes.size());
    if (progress) progress(done_bytes, all_bytes);
  };
  std::vector<tensor_to_write> tensors;
  for (const fresh_tensor& fresh : fresh_tensors(config.spec)) {
    const auto values = random_values(fresh, config, seed, dtype);
    tensors.push_back({fresh.name, dtype, fresh.shape, [&report, values](const safetensors_writer::sink& out) {
                         values([&](std::span<const std::byte> bytes) {
                           out(bytes);
                           report(bytes);
                         });
                       }});
    all_bytes += tensors.back().bytes();
  }
  write_weights(directory, tensors, max_file_bytes, [&](const fs::path& file) { place.file(file); });
  // Last, because without it a directory is no checkpoint.
  place.file(directory / "config.json");
  write_config(directory, config, dtype);
}

}  // namespace

normal_stream::normal_stream(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  key_ = scramble(scramble(seed + golden) ^ hash);
}

double normal_stream::operator()(num i) const {
  // Each uniform number has 2^16 values, hence variance (2^32 - 1) / 12, and twelve of them sum to a deviation of
  // 2^16 (to 1e-10) around a mean of 6 * (2^16 - 1).
  constexpr std::uint64_t low_halves = 0x0000ffff0000ffffu;
  std::uint64_t pairs = 0;  // two sums of 32 bits
  for (std::uint64_t draw = 0; draw < 3; ++draw) {
    const std::uint64_t x = scramble(key_ + (static_cast<std::uint64_t>(i) * 3 + draw + 1) * golden);
    pairs += (x & low_halves) + ((x >> 16) & low_halves);
  }
  const num sum = static_cast<num>((pairs & 0xffffffffu) + (pairs >> 32));
  return static_cast<double>(sum - 6 * 65535) / 65536;
}

void write_random_checkpoint(const fs::path& directory, const model_config& config, std::uint64_t seed,
                             tensor_dtype dtype, num max_file_bytes, const write_progress& progress) {
  if (!is_floating(dtype))
    throw input_error(fmt::format("weights cannot be {}, only F64, F32, F16 or BF16", name_of(dtype)));
  try {
    new_directory place(directory);
    check_room(directory, config.spec, dtype);
    place.create();
    write_files(place, directory, config, seed, dtype, max_file_bytes, progress);
    place.keep();
  } catch (const fs::filesystem_error& e) {
    throw input_error(fmt::format("{}: cannot be written: {}", directory.string(), e.code().message()));
  }
}

}  // namespace shardplan::runtime
