// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify/ledger_comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "runtime/verify/routing_counts.hpp"

namespace shardplan::runtime {
namespace {

std::string axes_text(axis_set axes) {
  std::string out;
  for (std::size_t i = 0; i < num_axes; ++i)
    if (axes.has(static_cast<axis>(i)))
      out += fmt::format("{}{}", out.empty() ? "" : "*", name_of(static_cast<axis>(i)));
  return out;
}

std::string line_text(const ledger_entry& e) {
  return fmt::format("{}{} {} over {} ({} ranks), {} bytes, of which {} stay{}", name_of(e.why),
                     e.layer < 0 ? "" : fmt::format(" of layer {}", e.layer), name_of(e.what), axes_text(e.axes),
                     e.group_size, e.bytes, e.kept, e.root ? ", root" : "");
}

/// Dispatch sends rows to where their experts are; everything else is the same however tokens are routed.
bool depends_on_routing(const model_spec& model, const plan_spec& plan) {
  return plan.dispatch == dispatch_kind::dispatch && plan.ep * plan.etp > 1 && num_moe_layers(model) > 0;
}

std::vector<ledger_entry> of_the_plan(const recorder& recorded) {
  std::vector<ledger_entry> out;
  for (const ledger_entry& e : recorded.entries())
    if (e.why != phase::check && e.why != phase::collect) out.push_back(e);
  return out;
}

std::string first_difference(num rank, const std::vector<ledger_entry>& predicted,
                             const std::vector<ledger_entry>& recorded) {
  const std::size_t common = std::min(predicted.size(), recorded.size());
  std::size_t line = 0;
  while (line < common && predicted[line] == recorded[line]) ++line;
  if (line == predicted.size() && line == recorded.size()) return "";
  const auto text = [&](const std::vector<ledger_entry>& lines) {
    return line < lines.size() ? line_text(lines[line]) : "nothing more";
  };
  return fmt::format("rank {}, line {}: predicted {}; recorded {}", rank, line + 1, text(predicted), text(recorded));
}

void add(ledger_sum& sum, const ledger_entry& e) { ++sum.calls, sum.bytes += e.bytes; }

/// What was recorded under the plain names: it is what happened.
void add_sums(nlohmann::ordered_json& to, const ledger_sum& predicted, const ledger_sum& recorded) {
  to["entries"] = recorded.calls, to["bytes"] = recorded.bytes;
  to["predicted_entries"] = predicted.calls, to["predicted_bytes"] = predicted.bytes;
}

}  // namespace

template <class T>
ledger_comparison compare_ledgers(const checkpoint& weights, const plan_spec& plan, const batch_rows& rows,
                                  const ledger_question& how, const baseline_result<T>& expected,
                                  const std::vector<recorder>& recorded) {
  const model_spec& model = weights.config().spec;
  std::vector<std::span<const num>> choices;
  for (const layer_routing& layer : expected.routing) choices.push_back(layer.experts);
  const routing_counts routing(model, plan, rows, how.micro_batches, choices);
  ledger_comparison out;
  out.first_pass_only = how.steps > 1 && depends_on_routing(model, plan);
  run_shape shape = routing.shape();
  shape.element_bytes = how.element_bytes;
  shape.training = how.gradients || how.steps > 0;
  shape.steps = out.first_pass_only ? 1 : how.steps;
  shape.auxiliary = weights.config().output_router_logits;

  std::map<std::tuple<phase, operation, unsigned>, ledger_total> totals;
  const auto total = [&](const ledger_entry& e) -> ledger_total& {
    ledger_total& t = totals[{e.why, e.what, e.axes.bits}];
    t.why = e.why, t.what = e.what, t.axes = e.axes;
    return t;
  };
  for (num rank = 0; rank < world_size(plan); ++rank) {
    std::vector<ledger_entry> ours, theirs = of_the_plan(recorded[static_cast<std::size_t>(rank)]);
    for_each_collective(model, plan, shape, rank, routing, [&](const ledger_entry& e) { ours.push_back(e); });
    if (out.first_pass_only && theirs.size() > ours.size()) theirs.resize(ours.size());
    for (const ledger_entry& e : ours) add(total(e).predicted, e), add(out.predicted, e);
    for (const ledger_entry& e : theirs) add(total(e).recorded, e), add(out.recorded, e);
    if (out.difference.empty()) out.difference = first_difference(rank, ours, theirs);
  }
  out.equal = out.difference.empty();
  for (const auto& [key, t] : totals) out.by_axes.push_back(t);
  return out;
}

std::string to_text(const ledger_comparison& c) {
  std::string out = fmt::format("{:<10}  {:<14}  {:<24}  {:>9}  {:>9}  {:>14}  {:>14}\n", "ledger", "operation", "axes",
                                "predicted", "recorded", "predicted B", "recorded B");
  const auto line = [&](std::string_view why, std::string_view what, const std::string& axes, const ledger_sum& a,
                        const ledger_sum& b) {
    out += fmt::format("{:<10}  {:<14}  {:<24}  {:>9}  {:>9}  {:>14}  {:>14}{}\n", why, what, axes, a.calls, b.calls,
                       a.bytes, b.bytes, a == b ? "" : "  DIFFERS");
  };
  for (const ledger_total& t : c.by_axes)
    line(name_of(t.why), name_of(t.what), axes_text(t.axes), t.predicted, t.recorded);
  line("all", "", "", c.predicted, c.recorded);
  if (c.first_pass_only)
    out += "only the first pass is compared: what expert dispatch sends after a step depends on the new routing\n";
  out += c.equal ? "the ledger of every rank is as predicted\n" : "the ledgers DIFFER: " + c.difference + "\n";
  return out;
}

nlohmann::ordered_json to_json(const ledger_comparison& c) {
  nlohmann::ordered_json out{{"equal", c.equal}};
  add_sums(out, c.predicted, c.recorded);
  out["first_pass_only"] = c.first_pass_only;
  out["by_axes"] = nlohmann::ordered_json::array();
  for (const ledger_total& t : c.by_axes) {
    nlohmann::ordered_json line{{"phase", name_of(t.why)}, {"operation", name_of(t.what)}, {"axes", axes_text(t.axes)}};
    add_sums(line, t.predicted, t.recorded);
    out["by_axes"].push_back(std::move(line));
  }
  if (!c.equal) out["difference"] = c.difference;
  return out;
}

template ledger_comparison compare_ledgers(const checkpoint&, const plan_spec&, const batch_rows&,
                                           const ledger_question&, const baseline_result<float>&,
                                           const std::vector<recorder>&);
template ledger_comparison compare_ledgers(const checkpoint&, const plan_spec&, const batch_rows&,
                                           const ledger_question&, const baseline_result<double>&,
                                           const std::vector<recorder>&);

}  // namespace shardplan::runtime
