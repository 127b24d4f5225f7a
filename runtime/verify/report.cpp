// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/checkpoint/safetensors.hpp"

namespace shardplan::runtime {
namespace {

constexpr std::size_t shown_of_group = 10;

/// "grad." of grad.NAME; empty for what stands by itself.
std::string_view group_of(const tensor_comparison& t) {
  for (std::string_view prefix : {"grad.", "parameter."})
    if (t.name.starts_with(prefix)) return prefix;
  return {};
}

bool is_worse(const tensor_comparison* a, const tensor_comparison* b) {
  if (a->equal != b->equal) return b->equal;
  return a->error * b->limit > b->error * a->limit;  // errors relative to their limits, of which one may be 0
}

/// The worst of a group, worst first, and how the group is as a whole.
std::vector<tensor_comparison> worst_of(std::string_view group, std::vector<const tensor_comparison*> all) {
  std::stable_sort(all.begin(), all.end(), is_worse);
  std::vector<tensor_comparison> out;
  for (std::size_t i = 0; i < std::min(all.size(), shown_of_group); ++i) out.push_back(*all[i]);
  tensor_comparison whole = *all.front();
  const auto differing = std::count_if(all.begin(), all.end(), [](const auto* t) { return !t->equal; });
  whole.name = fmt::format("{}*: {} tensors", group, all.size());
  whole.shape.clear();
  whole.note = whole.equal ? "" : fmt::format("{} of {}", differing, all.size());
  whole.factor.reset();
  out.push_back(std::move(whole));
  return out;
}

}  // namespace

std::string to_table(const comparison& c) {
  std::vector<tensor_comparison> rows;
  std::vector<std::string_view> groups;
  for (const tensor_comparison& t : c.tensors) {
    const std::string_view group = group_of(t);
    if (group.empty()) rows.push_back(t);
    if (!group.empty() && std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  for (std::string_view group : groups) {
    std::vector<const tensor_comparison*> members;
    for (const tensor_comparison& t : c.tensors)
      if (group_of(t) == group) members.push_back(&t);
    const std::vector<tensor_comparison> worst = worst_of(group, std::move(members));
    rows.insert(rows.end(), worst.begin(), worst.end());
  }

  std::size_t name_width = 6, shape_width = 5;
  for (const tensor_comparison& t : rows) {
    name_width = std::max(name_width, t.name.size());
    shape_width = std::max(shape_width, to_text(t.shape).size());
  }
  std::string out =
      fmt::format("{:<{}}  {:<{}}  {:>9}  {:>8}\n", "tensor", name_width, "shape", shape_width, "max error", "limit");
  for (const tensor_comparison& t : rows)
    out +=
        fmt::format("{:<{}}  {:<{}}  {:>9.2e}  {:>8.0e}  {}{}{}\n", t.name, name_width, to_text(t.shape), shape_width,
                    t.error, t.limit, t.equal ? "equal" : "DIFFERS", t.note.empty() ? "" : ": ", t.note);
  if (!c.note.empty()) out += c.note + "\n";
  return out;
}

nlohmann::ordered_json to_json(const comparison& c) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const tensor_comparison& t : c.tensors) {
    nlohmann::ordered_json line{
        {"name", t.name}, {"shape", t.shape}, {"error", t.error}, {"limit", t.limit}, {"equal", t.equal}};
    if (!std::isfinite(t.error)) line["error"] = nullptr;
    if (!t.note.empty()) line["note"] = t.note;
    if (t.factor) line["factor"] = *t.factor;
    out.push_back(std::move(line));
  }
  return out;
}

}  // namespace shardplan::runtime
