// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/checkpoint/safetensors.hpp"

namespace shardplan::runtime {

std::string to_table(const comparison& c) {
  std::size_t name_width = 6, shape_width = 5;
  for (const tensor_comparison& t : c.tensors) {
    name_width = std::max(name_width, t.name.size());
    shape_width = std::max(shape_width, to_text(t.shape).size());
  }
  std::string out =
      fmt::format("{:<{}}  {:<{}}  {:>9}  {:>8}\n", "tensor", name_width, "shape", shape_width, "max error", "limit");
  for (const tensor_comparison& t : c.tensors)
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
    out.push_back(std::move(line));
  }
  return out;
}

}  // namespace shardplan::runtime
