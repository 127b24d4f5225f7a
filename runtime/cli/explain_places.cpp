// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <shardplan/ownership.hpp>

#include "runtime/cli/explanation.hpp"

namespace shardplan::cli {
namespace {

constexpr num shown_members = 16;  // of a group; more would say nothing new

json mesh_json(const mesh& m) {
  json out = json::array();
  for (const mesh_axis& a : m.axes)
    out.push_back({{"axis", name_of(a.name)}, {"degree", a.degree}, {"stride", m.stride(a.name)}});
  return out;
}

std::string mesh_text(std::string_view title, const mesh& m) {
  std::string out = fmt::format("  {:<8}", title);
  for (const mesh_axis& a : m.axes)
    out += fmt::format("  {}={} (every {})", name_of(a.name), a.degree, m.stride(a.name));
  return out + "\n";
}

std::string part_text(const dim_part& part) {
  std::string out = fmt::format("{}:{}", part.ranges[0].begin, part.ranges[0].end);
  if (part.ranges[1].size() > 0) out += fmt::format("+{}:{}", part.ranges[1].begin, part.ranges[1].end);
  return out;
}

std::string region_text(const region& r) {
  std::string out;
  for (const dim_part& d : r.dims) out += (out.empty() ? "[" : ", ") + part_text(d);
  return r.size() == 0 ? "none" : out + "]";
}

/// Per dim the ranges that the region holds; empty for a region of nothing.
json region_json(const region& r) {
  json out = json::array();
  if (r.size() == 0) return out;
  for (const dim_part& d : r.dims) {
    json ranges = json::array();
    for (const dim_range& range : d.ranges)
      if (range.size() > 0) ranges.push_back({range.begin, range.end});
    out.push_back(std::move(ranges));
  }
  return out;
}

}  // namespace

section explain_meshes(const plan_spec& plan) {
  const mesh dense = dense_mesh(plan), expert = expert_mesh(plan);
  return {{{"dense", mesh_json(dense)}, {"experts", mesh_json(expert)}},
          "meshes (an axis, its degree, how far neighbours are apart)\n" + mesh_text("dense", dense) +
              mesh_text("experts", expert)};
}

section explain_stages(const model_spec& model, const plan_spec& plan) {
  section out{json::array(), "stages\n"};
  for (num stage = 0; stage < num_stages(plan); ++stage) {
    const layer_range layers = stage_layers(model, plan, stage);
    const bool first = stage == 0, last = stage == num_stages(plan) - 1;
    out.document.push_back(
        {{"stage", stage}, {"pp", stage_owner(plan, stage)}, {"layers", {layers.begin, layers.end}}});
    out.text += fmt::format("  stage {} on pp {}: {}layers {}:{}{}\n", stage, stage_owner(plan, stage),
                            first ? "embedding, " : "", layers.begin, layers.end, last ? ", norm and head" : "");
  }
  return out;
}

section explain_tokens(const plan_spec& plan, const batch_spec& batch, num most) {
  const num real = real_length(batch), padded = padded_length(plan, batch);
  fixed_vector<num, 64> documents = batch.documents;
  if (documents.empty()) documents.push_back(real);
  section out{{{"length", real}, {"padded", padded}, {"layout", name_of(plan.layout)}, {"ranks", json::array()}}, {}};
  out.text = fmt::format("tokens of a row of {}{}, {}\n", real,
                         padded == real ? "" : fmt::format(", padded to {}", padded), name_of(plan.layout));
  for (num r = 0; r < plan.cp && r < most; ++r) {
    json ranges = json::array();
    std::string text;
    for_each_range(plan.layout, documents, padded, plan.cp, r, [&](token_range t) {
      ranges.push_back({t.begin, t.end});
      text += fmt::format(" {}:{}", t.begin, t.end);
    });
    out.document["ranks"].push_back({{"cp", r}, {"ranges", ranges}});
    out.text += fmt::format("  cp {}: {}\n", r, text.empty() ? "none" : text.substr(1));
  }
  if (plan.cp > most) out.text += fmt::format("  ... {} more\n", plan.cp - most);
  return out;
}

section explain_rank(const model_spec& model, const plan_spec& plan, num rank) {
  section out;
  json coordinates, groups = json::array();
  out.text = fmt::format("rank {}\n  at      ", rank);
  std::string group_text;
  const auto visit = [&](axis a) {
    const rank_group g = group_of(plan, model, rank, a);
    coordinates[std::string(name_of(a))] = g.index;
    if (g.size() == 1) return;
    out.text += fmt::format("{} {} of {}, ", name_of(a), g.index, g.size());
    json members = json::array();
    std::string text;
    for (num i = 0; i < g.size() && i < shown_members; ++i) {
      members.push_back(g.member(i));
      text += fmt::format(" {}", g.member(i));
    }
    groups.push_back({{"axis", name_of(a)}, {"size", g.size()}, {"index", g.index}, {"ranks", members}});
    group_text += fmt::format("  group   {}:{}{}\n", name_of(a), text, g.size() > shown_members ? " ..." : "");
  };
  for (axis a : {axis::pp, axis::dp_replicate, axis::fsdp, axis::cp, axis::tp, axis::fsdp_cp, axis::cp_ring,
                 axis::cp_ulysses, axis::tp_heads, axis::tp_copies, axis::efsdp, axis::ep, axis::etp})
    visit(a);
  out.text += fmt::format("data index {} of {}\n", data_index(plan, rank), num_data_shards(plan)) + group_text;
  out.document = {
      {"rank", rank}, {"coordinates", coordinates}, {"data_index", data_index(plan, rank)}, {"groups", groups}};
  return out;
}

section explain_parameters(const model_spec& model, const plan_spec& plan, num rank) {
  section out{json::array(), fmt::format("parameters of rank {}: the part in use, and what is kept of it\n", rank)};
  std::size_t name_width = 0, part_width = 0;
  for_each_parameter(model, [&](const parameter& p) {
    if (!rank_holds(model, plan, rank, p)) return;
    name_width = std::max(name_width, name_of(p).size());
    part_width = std::max(part_width, region_text(part_in_use(model, plan, p, rank)).size());
  });
  for_each_parameter(model, [&](const parameter& p) {
    if (!rank_holds(model, plan, rank, p)) return;
    const region part = part_in_use(model, plan, p, rank);
    json shape = json::array(), kept;
    for (num extent : p.shape) shape.push_back(extent);
    std::string kept_text;
    for (const auto& [state, name] :
         {std::pair{state_kind::parameter, "parameter"}, std::pair{state_kind::gradient, "gradient"},
          std::pair{state_kind::optimizer, "optimizer"}}) {
      const region mine = owned(model, plan, p, state, rank);
      kept[name] = {{"region", region_json(mine)}, {"elements", mine.size()}};
      if (state == state_kind::parameter) kept_text = region_text(mine);
    }
    out.document.push_back({{"name", name_of(p).view()},
                            {"shape", shape},
                            {"style", name_of(style_of(plan, p.kind, p.layer))},
                            {"in_use", {{"region", region_json(part)}, {"elements", part.size()}}},
                            {"kept", kept}});
    out.text += fmt::format("  {:<{}}  {:<{}}  keeps {}\n", name_of(p).view(), name_width, region_text(part),
                            part_width, kept_text);
  });
  return out;
}

}  // namespace shardplan::cli
