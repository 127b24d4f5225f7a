// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/given_fact.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/engine/request.hpp"

namespace shardplan::runtime {
namespace {

const std::string* find(const std::vector<given_fact>& facts, const std::string& name) {
  for (const given_fact& f : facts)
    if (f.name == name) return &f.value;
  return nullptr;
}

}  // namespace

std::string describe_differences(const std::vector<std::vector<given_fact>>& all) {
  std::vector<std::string> names;
  for (const auto& facts : all)
    for (const given_fact& f : facts)
      if (std::find(names.begin(), names.end(), f.name) == names.end()) names.push_back(f.name);
  std::string out;
  for (const std::string& name : names) {
    std::vector<std::pair<std::string, std::vector<num>>> held;  // a value, and who has it
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const std::string* value = find(all[rank], name);
      const std::string text = value == nullptr ? "not given" : *value;
      auto same = std::find_if(held.begin(), held.end(), [&](const auto& h) { return h.first == text; });
      if (same == held.end()) same = held.insert(held.end(), {text, {}});
      same->second.push_back(static_cast<num>(rank));
    }
    if (held.size() == 1) continue;
    out += fmt::format("{}{}: ", out.empty() ? "all ranks must be given the same, but they differ in " : "; in ", name);
    for (std::size_t i = 0; i < held.size(); ++i)
      out += fmt::format("{}{} on {}", i == 0 ? "" : ", ", held[i].first, describe_ranks(held[i].second));
  }
  return out;
}

std::string digest_of_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return "absent";
  std::uint64_t a = 0x9e3779b97f4a7c15u, b = 0xc2b2ae3d27d4eb4fu, size = 0;
  std::vector<std::uint64_t> words(std::size_t{1} << 17);
  while (in) {
    in.read(reinterpret_cast<char*>(words.data()), static_cast<std::streamsize>(words.size() * sizeof(words[0])));
    const auto count = static_cast<std::size_t>(in.gcount());
    size += count;
    if (count % sizeof(words[0]) != 0)  // the last word may be part of one
      std::memset(reinterpret_cast<char*>(words.data()) + count, 0, sizeof(words[0]) - count % sizeof(words[0]));
    for (std::size_t i = 0; i * sizeof(words[0]) < count; ++i) {
      a = std::rotl((a ^ words[i]) * 0xff51afd7ed558ccdu, 29);
      b = std::rotl(b + words[i], 37) * 0xc4ceb9fe1a85ec53u + a;
    }
  }
  return fmt::format("{:016x}{:016x}", a ^ size, b);
}

std::vector<given_fact> facts_of_checkpoint(const std::filesystem::path& directory) {
  std::set<std::string> files{"model.safetensors"};
  if (!std::filesystem::exists(directory / "model.safetensors")) {
    files = {"model.safetensors.index.json"};
    std::ifstream index(directory / "model.safetensors.index.json");
    const nlohmann::json map = nlohmann::json::parse(index)["weight_map"];
    for (const nlohmann::json& file : map) files.insert(file);
  }
  std::string weights;
  for (const std::string& file : files)
    weights += fmt::format("{}{} {}", weights.empty() ? "" : ", ", file, digest_of_file(directory / file));
  return {{"config.json", digest_of_file(directory / "config.json")}, {"the weights", weights}};
}

}  // namespace shardplan::runtime
