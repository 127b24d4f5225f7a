// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/sharded_state.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/atomic_file.hpp"
#include "runtime/checkpoint/json_file.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/error.hpp"

namespace shardplan::runtime {
namespace {

using nlohmann::json;

json to_json(const region& r) {
  json dims = json::array();
  for (const dim_part& d : r.dims) {
    json ranges = json::array();
    for (const dim_range& range : d.ranges)
      if (range.size() > 0) ranges.push_back({range.begin, range.end});
    dims.push_back(ranges);
  }
  return dims;
}

[[noreturn]] void refuse(const std::string& where, std::string_view field, std::string_view must) {
  throw input_error(fmt::format("{}: {} must be {}", where, field, must));
}

region to_region(const json& dims, const std::vector<num>& shape, const std::string& where) {
  region r;
  if (!dims.is_array() || dims.size() != shape.size()) refuse(where, "region", "one list of ranges for each dim");
  for (std::size_t d = 0; d < dims.size(); ++d) {
    dim_part part;
    if (!dims[d].is_array() || dims[d].size() > 2) refuse(where, "region", "at most two ranges for each dim");
    num last = 0;
    for (std::size_t i = 0; i < dims[d].size(); ++i) {
      const json& range = dims[d][i];
      if (!range.is_array() || range.size() != 2 || !range[0].is_number_integer() || !range[1].is_number_integer() ||
          range[0].get<num>() < last || range[1].get<num>() <= range[0].get<num>() || range[1].get<num>() > shape[d])
        refuse(where, "region",
               fmt::format("increasing ranges [begin, end) within the shape [{}]", fmt::join(shape, ", ")));
      part.ranges[i] = {range[0].get<num>(), range[1].get<num>()};
      last = part.ranges[i].end;
    }
    r.dims.push_back(part);
  }
  return r;
}

/// Where the indices of two parts of a dim meet: positions in each.
struct meeting {
  num ours, theirs;
};
std::vector<meeting> meet(const dim_part& ours, const dim_part& theirs) {
  std::vector<meeting> both;
  for (num i = 0, j = 0; i < ours.size() && j < theirs.size();) {
    const num a = ours.at(i), b = theirs.at(j);
    if (a == b) both.push_back({i, j});
    i += a <= b ? 1 : 0;
    j += b <= a ? 1 : 0;
  }
  return both;
}

bool overlap(const region& a, const region& b) {
  for (std::size_t d = 0; d < a.dims.size(); ++d) {
    bool here = false;
    for (const dim_range& r : a.dims[d].ranges)
      for (const dim_range& s : b.dims[d].ranges) here = here || std::max(r.begin, s.begin) < std::min(r.end, s.end);
    if (!here) return false;
  }
  return true;
}

}  // namespace

std::filesystem::path state_directory(const std::filesystem::path& root, num step, num attempt) {
  return root / (attempt == 0 ? fmt::format("step-{:08}", step) : fmt::format("step-{:08}.{}", step, attempt));
}
num make_state_directory(const std::filesystem::path& root, num step) {
  for (num attempt = 0;; ++attempt) {
    const std::filesystem::path directory = state_directory(root, step, attempt);
    std::error_code failed;
    std::filesystem::create_directories(root, failed);
    if (!failed && std::filesystem::create_directory(directory, failed)) return attempt;
    if (failed)
      throw input_error(fmt::format("{}: cannot make this directory: {}", directory.string(), failed.message()));
  }
}
std::filesystem::path state_file(const std::filesystem::path& directory, num rank) {
  return directory / fmt::format("rank-{:05}.safetensors", rank);
}

void publish_state(const std::filesystem::path& root, num attempt, const state_index& index) {
  json tensors = json::object();
  for (const auto& [name, tensor] : index.tensors) {
    json pieces = json::array();
    for (const state_index::piece& p : tensor.pieces) pieces.push_back({{"rank", p.rank}, {"region", to_json(p.part)}});
    tensors[name] = {{"shape", tensor.shape}, {"pieces", pieces}};
  }
  const std::filesystem::path directory = state_directory(root, index.step, attempt);
  atomic_file file(directory / "index.json");
  file.write(json{{"step", index.step}, {"tensors", tensors}}.dump(1));
  file.commit();
  atomic_file pointer(root / "latest");
  pointer.write(directory.filename().string());
  pointer.commit();
}

struct sharded_state::state {
  state_index index;
  std::filesystem::path directory;
  std::map<num, safetensors_file> files;
};

sharded_state sharded_state::open(const std::filesystem::path& root) {
  auto s = std::make_shared<state>();
  std::string newest;
  {
    std::ifstream pointer(root / "latest");
    if (!pointer || !std::getline(pointer, newest) || newest.empty() || newest.find('/') != std::string::npos)
      throw input_error(fmt::format("{}: no state here: the file latest must name a directory", root.string()));
  }
  s->directory = root / newest;
  const json_object index = json_object::read(s->directory / "index.json");
  s->index.step = index.integer("step", 0);
  const json& tensors = index.get("tensors");
  if (!tensors.is_object()) index.refuse("tensors", "an object");
  for (const auto& [name, value] : tensors.items()) {
    const std::string where = fmt::format("{}: tensor {}", index.where(), name);
    state_index::tensor& t = s->index.tensors[name];
    const auto is_size = [](const json& v) { return v.is_number_integer() && v.get<num>() >= 0; };
    if (!value.is_object() || !value.contains("shape") || !value["shape"].is_array() || value["shape"].size() > 3 ||
        !std::all_of(value["shape"].begin(), value["shape"].end(), is_size))
      refuse(where, "shape", "a list of at most three sizes");
    t.shape = value["shape"].get<std::vector<num>>();
    if (!value.contains("pieces") || !value["pieces"].is_array()) refuse(where, "pieces", "a list");
    num covered = 0, whole = 1;
    for (num extent : t.shape) whole *= extent;
    for (const json& piece : value["pieces"]) {
      if (!piece.is_object() || !piece.contains("rank") || !piece["rank"].is_number_integer() ||
          !piece.contains("region"))
        refuse(where, "each piece", "an object with rank and region");
      t.pieces.push_back({piece["rank"].get<num>(), to_region(piece["region"], t.shape, where)});
      for (std::size_t other = 0; other + 1 < t.pieces.size(); ++other)
        if (overlap(t.pieces[other].part, t.pieces.back().part))
          refuse(
              where, "the pieces",
              fmt::format("apart, but those of ranks {} and {} overlap", t.pieces[other].rank, t.pieces.back().rank));
      covered += t.pieces.back().part.size();
      const num rank = t.pieces.back().rank;
      if (s->files.count(rank) == 0) s->files.emplace(rank, safetensors_file::open(state_file(s->directory, rank)));
      if (s->files.at(rank).at(name).size() != t.pieces.back().part.size())
        refuse(where, fmt::format("the piece of rank {}", rank), "as large in its file as in the index");
    }
    if (covered != whole) refuse(where, "the pieces", fmt::format("{} values together, but are {}", whole, covered));
  }
  sharded_state opened;
  opened.state_ = std::move(s);
  return opened;
}

num sharded_state::step() const { return state_->index.step; }

template <class T>
void sharded_state::read(std::string_view name, const std::vector<num>& shape, const region& r,
                         std::span<T> out) const {
  const auto found = state_->index.tensors.find(std::string(name));
  const std::string where = (state_->directory / "index.json").string();
  if (found == state_->index.tensors.end()) throw input_error(fmt::format("{}: tensor {} is missing", where, name));
  const state_index::tensor& t = found->second;
  if (t.shape != shape)
    throw input_error(fmt::format("{}: tensor {} has shape [{}], but the model needs [{}]", where, name,
                                  fmt::join(t.shape, ", "), fmt::join(shape, ", ")));
  const dim_part one(0, 1);
  const auto dim = [&](const region& part, std::size_t d) { return d < part.dims.size() ? part.dims[d] : one; };
  for (const state_index::piece& piece : t.pieces) {
    std::array<std::vector<meeting>, 3> both;
    for (std::size_t d = 0; d < 3; ++d) both[d] = meet(dim(r, d), dim(piece.part, d));
    if (both[0].empty() || both[1].empty() || both[2].empty()) continue;
    const std::vector<T> values = read_as<T>(state_->files.at(piece.rank).at(name));
    for (const meeting& i : both[0])
      for (const meeting& j : both[1])
        for (const meeting& k : both[2])
          out[static_cast<std::size_t>((i.ours * dim(r, 1).size() + j.ours) * dim(r, 2).size() + k.ours)] =
              values[static_cast<std::size_t>(
                  (i.theirs * dim(piece.part, 1).size() + j.theirs) * dim(piece.part, 2).size() + k.theirs)];
  }
}

template void sharded_state::read(std::string_view, const std::vector<num>&, const region&, std::span<float>) const;
template void sharded_state::read(std::string_view, const std::vector<num>&, const region&, std::span<double>) const;

}  // namespace shardplan::runtime
