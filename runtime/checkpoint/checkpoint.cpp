// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/checkpoint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/checkpoint/json_file.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/error.hpp"
#include "runtime/real.hpp"

namespace shardplan::runtime {
namespace {

/// The tensors that hold one parameter: itself; or of each expert, in order: gate and up, or down.
struct source {
  std::vector<const tensor_entry*> tensors;
  bool per_expert = false;
};

/// Names with one defect, of which a message lists the first few.
struct defect {
  std::string_view what;
  std::vector<std::string> examples;
  num count = 0;

  void add(std::string example) {
    if (examples.size() < 3) examples.push_back(std::move(example));
    ++count;
  }
  std::string text() const {
    return fmt::format("{} {}: {}{}", count, what, fmt::join(examples, ", "),
                       count > static_cast<num>(examples.size()) ? ", ..." : "");
  }
};

/// All defects in one error, so that one run tells everything.
void throw_if_any(const std::string& where, std::initializer_list<const defect*> defects) {
  std::vector<std::string> texts;
  for (const defect* d : defects)
    if (d->count > 0) texts.push_back(d->text());
  if (!texts.empty()) throw input_error(fmt::format("{}: {}", where, fmt::join(texts, "; ")));
}

/// Buffers that some releases store beside the parameters and nobody reads.
bool is_ignored(std::string_view name, const model_spec& m) {
  return name.ends_with("rotary_emb.inv_freq") || (m.tie_word_embeddings && name == "lm_head.weight");
}

/// The files of a checkpoint, and each tensor by its name.
struct tensor_files {
  std::vector<safetensors_file> files;
  std::map<std::string, const tensor_entry*, std::less<>> tensors;
  std::string where;  // the file that a missing tensor is missing from

  const tensor_entry* find(std::string_view name) const {
    const auto found = tensors.find(name);
    return found == tensors.end() ? nullptr : found->second;
  }
};

tensor_files open_single(const std::filesystem::path& path) {
  tensor_files result;
  result.where = path.string();
  result.files.push_back(safetensors_file::open(path));
  for (const tensor_entry& e : result.files.front().entries()) result.tensors.emplace(e.name, &e);
  return result;
}

/// Shards by file name, each with the tensors that the index puts there.
std::map<std::string, std::vector<std::string>> read_index(const std::filesystem::path& path) {
  const json_object index = json_object::read(path);
  const std::optional<json_object> weight_map = index.object("weight_map");
  if (!weight_map) index.refuse("weight_map", "an object");
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [name, shard] : weight_map->value().items()) {
    // A directory in the name would let an index reach files outside of the checkpoint.
    if (!shard.is_string() || shard.get<std::string>().empty() ||
        shard.get<std::string>().find_first_of(std::string_view("/\\\0", 3)) != std::string::npos)
      weight_map->refuse(name, "the name of a file in the same directory");
    shards[shard.get<std::string>()].push_back(name);
  }
  return shards;
}

tensor_files open_sharded(const std::filesystem::path& directory, const std::filesystem::path& index,
                          const model_spec& m) {
  const auto shards = read_index(index);
  tensor_files result;
  result.where = index.string();
  defect no_file{"shards are missing", {}}, no_tensor{"tensors are not in the shard that the index names", {}},
      not_listed{"tensors of shards are not in the index", {}};
  for (const auto& [shard, names] : shards)
    if (std::error_code error; !std::filesystem::exists(directory / shard, error)) no_file.add(excerpt(shard));
  throw_if_any(result.where, {&no_file});
  for (const auto& [shard, names] : shards) {
    const safetensors_file& file = result.files.emplace_back(safetensors_file::open(directory / shard));
    for (const std::string& name : names) {
      const tensor_entry* entry = file.find(name);
      if (entry != nullptr)
        result.tensors.emplace(name, entry);
      else
        no_tensor.add(fmt::format("{} of {}", excerpt(name), excerpt(shard)));
    }
    for (const tensor_entry& e : file.entries())
      if (!std::binary_search(names.begin(), names.end(), e.name) && !is_ignored(e.name, m))
        not_listed.add(fmt::format("{} of {}", excerpt(e.name), excerpt(shard)));
  }
  throw_if_any(result.where, {&no_tensor, &not_listed});
  return result;
}

/// Finds the tensors of every parameter, and collects what is wrong with them.
class matcher {
 public:
  explicit matcher(const tensor_files& files) : files_(files) {}

  source match(const parameter& p) {
    const std::string name(name_of(p).view());
    const bool gate_up = p.kind == parameter_kind::experts_gate_up, down = p.kind == parameter_kind::experts_down;
    if ((!gate_up && !down) || files_.find(name) != nullptr) return {{take(name, p.shape)}, false};
    // Per expert; where nothing is found at all, the fused name alone is reported as missing.
    const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", p.layer);
    if (!has_prefix(prefix)) return {{take(name, p.shape)}, false};
    source found{{}, true};
    const num hidden = gate_up ? p.shape[2] : p.shape[1], intermediate = gate_up ? p.shape[1] / 2 : p.shape[2];
    fixed_vector<num, 3> narrow, wide;
    narrow.push_back(intermediate), narrow.push_back(hidden);  // gate and up (I, H)
    wide.push_back(hidden), wide.push_back(intermediate);      // down        (H, I)
    // A wrong number of experts may be huge, and millions of missing names are no better than thousands.
    for (num e = 0; e < p.shape[0] && missing_.count < 10000; ++e) {
      const std::string expert = prefix + std::to_string(e);
      if (gate_up) {
        found.tensors.push_back(take(expert + ".gate_proj.weight", narrow));
        found.tensors.push_back(take(expert + ".up_proj.weight", narrow));
      } else {
        found.tensors.push_back(take(expert + ".down_proj.weight", wide));
      }
    }
    return found;
  }

  void throw_if_defect(const model_spec& m) {
    defect unexpected{"unexpected tensors", {}};
    for (const auto& [name, entry] : files_.tensors)
      if (!std::binary_search(taken_.begin(), taken_.end(), name) && !is_ignored(name, m))
        unexpected.add(excerpt(name));
    throw_if_any(files_.where, {&missing_, &shapes_, &dtypes_, &unexpected});
  }

  void sort_taken() { std::sort(taken_.begin(), taken_.end()); }

 private:
  const tensor_entry* take(const std::string& name, const fixed_vector<num, 3>& shape) {
    const tensor_entry* entry = files_.find(name);
    if (entry == nullptr) {
      missing_.add(name);
      return nullptr;
    }
    taken_.push_back(name);
    const std::span<const num> wanted(shape.begin(), shape.size());
    if (!std::equal(entry->shape.begin(), entry->shape.end(), wanted.begin(), wanted.end()))
      shapes_.add(fmt::format("{} is {}, must be {}", name, to_text(entry->shape), to_text(wanted)));
    else if (!is_floating(entry->dtype))
      dtypes_.add(fmt::format("{} is {}", name, name_of(entry->dtype)));
    return entry;
  }
  bool has_prefix(const std::string& prefix) const {
    const auto first = files_.tensors.lower_bound(prefix);
    return first != files_.tensors.end() && first->first.starts_with(prefix);
  }

  const tensor_files& files_;
  std::vector<std::string> taken_;
  defect missing_{"parameters are missing", {}}, shapes_{"tensors have another shape than config.json says", {}},
      dtypes_{"tensors are not F64, F32, F16 or BF16", {}};
};

}  // namespace

struct checkpoint::state {
  std::filesystem::path directory;
  model_config config;
  tensor_files files;
  std::vector<source> sources;  // by layer (none first), then kind

  static std::size_t index(const parameter& p) {
    return static_cast<std::size_t>(p.layer + 1) * num_parameter_kinds + static_cast<std::size_t>(p.kind);
  }
  const source& of(const parameter& p) const {
    if (p.layer < parameter::no_layer || index(p) >= sources.size() || sources[index(p)].tensors.empty())
      throw std::logic_error(fmt::format("the model has no parameter {}", name_of(p).view()));
    return sources[index(p)];
  }
};

checkpoint checkpoint::open(const std::filesystem::path& directory) {
  if (std::error_code error; !std::filesystem::is_directory(directory, error))
    throw input_error(fmt::format("{}: not a directory", directory.string()));
  const auto opened = std::make_shared<state>();
  opened->directory = directory;
  opened->config = read_config(directory);
  const model_spec& m = opened->config.spec;

  const auto single = directory / "model.safetensors", index = directory / "model.safetensors.index.json";
  std::error_code error;
  if (std::filesystem::exists(single, error))
    opened->files = open_single(single);
  else if (std::filesystem::exists(index, error))
    opened->files = open_sharded(directory, index, m);
  else
    throw input_error(
        fmt::format("{}: holds neither model.safetensors nor model.safetensors.index.json", directory.string()));

  matcher tensors(opened->files);
  opened->sources.resize(static_cast<std::size_t>(m.num_hidden_layers + 1) * num_parameter_kinds);
  for_each_parameter(m, [&](const parameter& p) { opened->sources[state::index(p)] = tensors.match(p); });
  tensors.sort_taken();
  tensors.throw_if_defect(m);
  checkpoint result;
  result.state_ = opened;
  return result;
}

const model_config& checkpoint::config() const { return state_->config; }

const std::filesystem::path& checkpoint::directory() const { return state_->directory; }

template <class T>
void checkpoint::read(const parameter& p, const region& r, std::span<T> out) const {
  const source& from = state_->of(p);
  if (!from.per_expert) return read_part(*from.tensors.front(), r, out);

  const auto fail = [&](std::string_view what) {
    throw std::logic_error(fmt::format("part of parameter {}: {}", name_of(p).view(), what));
  };
  if (r.dims.size() != 3) fail("must have 3 dims");
  if (static_cast<num>(out.size()) != r.size()) fail("has another size than its destination");
  const bool gate_up = p.kind == parameter_kind::experts_gate_up;
  const num per_expert = gate_up ? 2 : 1, num_experts = static_cast<num>(from.tensors.size()) / per_expert;
  std::size_t done = 0;
  const auto copy = [&](num tensor, const dim_part& rows, const dim_part& columns) {
    region part;
    part.dims.push_back(rows);
    part.dims.push_back(columns);
    const auto n = static_cast<std::size_t>(part.size());
    if (n > 0) read_part(*from.tensors[static_cast<std::size_t>(tensor)], part, out.subspan(done, n));
    done += n;
  };
  for (const dim_range& experts : r.dims[0].ranges) {
    for (num e = experts.begin; e < experts.end; ++e) {
      if (e < 0 || e >= num_experts) fail(fmt::format("expert {} of {}", e, num_experts));
      if (!gate_up) {
        copy(e, r.dims[1], r.dims[2]);
        continue;
      }
      const num intermediate = from.tensors.front()->shape[0];
      for (const dim_range& rows : r.dims[1].ranges) {  // rows below I are of gate, the others of up
        if (rows.size() == 0) continue;
        const num split = std::clamp(intermediate, rows.begin, rows.end);
        copy(2 * e, {rows.begin, split}, r.dims[2]);
        copy(2 * e + 1, {split - intermediate, rows.end - intermediate}, r.dims[2]);
      }
    }
  }
}

std::vector<stored_tensor> checkpoint::stored(const parameter& p) const {
  std::vector<stored_tensor> out;
  num next = 0;  // of each expert, gate rows come before up rows: in memory as in the list of tensors
  for (const tensor_entry* t : state_->of(p).tensors) {
    out.push_back({t->name, t->dtype, t->shape, next});
    next += out.back().size();
  }
  return out;
}

template void checkpoint::read(const parameter&, const region&, std::span<float>) const;
template void checkpoint::read(const parameter&, const region&, std::span<double>) const;
template void checkpoint::read(const parameter&, const region&, std::span<bf16>) const;

}  // namespace shardplan::runtime
