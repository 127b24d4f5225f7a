// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <concepts>
#include <map>
#include <shardplan/collectives.hpp>
#include <tuple>

#include "runtime/cli/explanation.hpp"

namespace shardplan::cli {
namespace {

num bytes_of(dtype type) { return type == dtype::f64 ? 8 : type == dtype::f32 ? 4 : 2; }

/// Gradients are sums, of many micro-batches and ranks.
num gradient_bytes_of(dtype type) { return type == dtype::f64 ? 8 : 4; }

/// Adam keeps two moments, in f32 at least, and a copy of parameters that are stored shorter than that.
num optimizer_bytes_of(dtype type) { return type == dtype::f64 ? 16 : type == dtype::f32 ? 8 : 12; }

std::string size_text(num bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (size >= 1024 && unit < 4) size /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", size, units[unit]);
}

std::string axes_text(axis_set axes) {
  std::string out;
  for (std::size_t i = 0; i < num_axes; ++i)
    if (axes.has(static_cast<axis>(i)))
      out += fmt::format("{}{}", out.empty() ? "" : "*", name_of(static_cast<axis>(i)));
  return out;
}

/// Rows that travel in one MoE layer of one micro-batch: balanced, and the most that any routing makes of it.
void add_dispatched_rows(section& out, const question& q, const run_shape& shape, num rank) {
  const balanced_routing balanced{q.model, q.plan, shape};
  const bounding_routing most{q.model, q.plan, shape};
  const num row_bytes = q.model.hidden_size * shape.element_bytes;
  const dim_range all{0, q.model.num_experts};
  const num sent[] = {balanced(0, 0, rank, all), most(0, 0, rank, all)};
  const num received[] = {rows_received(q.model, q.plan, balanced, 0, 0, rank),
                          rows_received(q.model, q.plan, most, 0, 0, rank)};
  const auto both = [&](const num(&rows)[2]) {
    return json{{"balanced", rows[0]},
                {"most", rows[1]},
                {"balanced_bytes", rows[0] * row_bytes},
                {"most_bytes", rows[1] * row_bytes}};
  };
  out.document["dispatched_rows"] = {{"row_bytes", row_bytes}, {"sent", both(sent)}, {"received", both(received)}};
  out.text += fmt::format(
      "  to experts, per layer and micro-batch: {} rows ({}) sent, at most {} ({}); {} rows ({}) received, at most {} "
      "({})\n",
      sent[0], size_text(sent[0] * row_bytes), sent[1], size_text(sent[1] * row_bytes), received[0],
      size_text(received[0] * row_bytes), received[1], size_text(received[1] * row_bytes));
}

}  // namespace

section explain_memory(const model_spec& model, const plan_spec& plan, num rank, dtype type) {
  section out{{{"rank", rank}, {"dtype", name_of(type)}},
              fmt::format("memory of rank {} between steps, in {} and Adam with {} bytes per parameter\n", rank,
                          name_of(type), optimizer_bytes_of(type))};
  json stages = json::array();
  for (zero_stage zero : {zero_stage::zero1, zero_stage::zero2, zero_stage::zero3}) {
    plan_spec p = plan;
    p.zero = zero;
    num elements[3] = {0, 0, 0};
    for_each_parameter(model, [&](const parameter& q) {
      for (state_kind s : {state_kind::parameter, state_kind::gradient, state_kind::optimizer})
        elements[static_cast<std::size_t>(s)] += owned(model, p, q, s, rank).size();
    });
    const num bytes[3] = {elements[0] * bytes_of(type), elements[1] * gradient_bytes_of(type),
                          elements[2] * optimizer_bytes_of(type)};
    json line{{"zero", name_of(zero)}};
    constexpr const char* names[] = {"parameters", "gradients", "optimizer"};
    std::string text;
    for (std::size_t i = 0; i < 3; ++i) {
      line[names[i]] = {{"elements", elements[i]}, {"bytes", bytes[i]}};
      text += fmt::format("{} {}, ", names[i], size_text(bytes[i]));
    }
    line["bytes"] = bytes[0] + bytes[1] + bytes[2];
    out.text += fmt::format("  {}{}: {}together {}\n", name_of(zero), zero == plan.zero ? " (the plan's)" : "", text,
                            size_text(bytes[0] + bytes[1] + bytes[2]));
    if (zero == plan.zero) out.document.update(line);
    stages.push_back(std::move(line));
  }
  out.document["by_zero_stage"] = std::move(stages);
  return out;
}

section explain_collectives(const question& q, num rank, dtype type) {
  constexpr num most_steps = num{1} << 16;  // every micro-batch is walked, and in it the expert group
  if (const num steps = checked_product(micro_batches(q.plan, q.batch), q.plan.ep * q.plan.etp);
      steps < 0 || steps > most_steps)
    return {nullptr,
            fmt::format("communication: not listed, because micro-batches * ep * etp is above {}\n", most_steps)};
  run_shape shape;
  shape.padded_length = padded_length(q.plan, q.batch);
  shape.micro_batches = micro_batches(q.plan, q.batch);
  shape.micro_rows = q.batch.rows / (num_data_shards(q.plan) * shape.micro_batches);
  shape.element_bytes = bytes_of(type);
  shape.training = true;

  struct total {
    num calls = 0, bytes = 0, wire = 0, size = 1, most_bytes = 0, most_wire = 0;
  };
  std::map<std::tuple<phase, operation, unsigned>, total> totals;
  const balanced_routing balanced{q.model, q.plan, shape};
  const bounding_routing most{q.model, q.plan, shape};
  for_each_collective(q.model, q.plan, shape, rank, balanced, [&](const ledger_entry& e, num times) {
    total& t = totals[{e.why, e.what, e.axes.bits}];
    t.calls += times, t.bytes += times * e.bytes, t.wire += times * wire_bytes(e), t.size = e.group_size;
  });
  for_each_collective(q.model, q.plan, shape, rank, most, [&](const ledger_entry& e, num times) {
    total& t = totals[{e.why, e.what, e.axes.bits}];
    t.most_bytes += times * e.bytes, t.most_wire += times * wire_bytes(e);
  });

  section out{{{"rank", rank},
               {"rows", q.batch.rows},
               {"padded", shape.padded_length},
               {"micro_batches", shape.micro_batches},
               {"dtype", name_of(type)},
               {"calls", json::array()}},
              fmt::format("communication of rank {} in one step of training: {} rows of {} tokens, {} micro-batch{}, {}"
                          ", experts chosen equally often (at most: whatever they are)\n"
                          "  {:<10}  {:<14}  {:<16}  {:>5}  {:>6}  {:>12}  {:>12}  {:>12}\n",
                          rank, q.batch.rows, shape.padded_length, shape.micro_batches,
                          shape.micro_batches == 1 ? "" : "es", name_of(type), "phase", "operation", "axes", "ranks",
                          "calls", "handed over", "on the wire", "at most")};
  num wire = 0, most_wire = 0;
  for (const auto& [key, t] : totals) {
    axis_set axes;
    axes.bits = std::get<2>(key);
    out.document["calls"].push_back({{"phase", name_of(std::get<0>(key))},
                                     {"operation", name_of(std::get<1>(key))},
                                     {"axes", axes_text(axes)},
                                     {"ranks", t.size},
                                     {"calls", t.calls},
                                     {"bytes", t.bytes},
                                     {"wire_bytes", t.wire},
                                     {"most_bytes", t.most_bytes},
                                     {"most_wire_bytes", t.most_wire}});
    out.text += fmt::format("  {:<10}  {:<14}  {:<16}  {:>5}  {:>6}  {:>12}  {:>12}  {:>12}\n",
                            name_of(std::get<0>(key)), name_of(std::get<1>(key)), axes_text(axes), t.size, t.calls,
                            size_text(t.bytes), size_text(t.wire), size_text(t.most_wire));
    wire += t.wire, most_wire += t.most_wire;
  }
  out.document["wire_bytes"] = wire;
  out.document["most_wire_bytes"] = most_wire;
  out.text += fmt::format("  together {} on the wire, at most {}\n", size_text(wire), size_text(most_wire));
  if (q.plan.dispatch == dispatch_kind::dispatch && q.plan.ep > 1 && num_moe_layers(q.model) > 0)
    add_dispatched_rows(out, q, shape, rank);
  return out;
}

}  // namespace shardplan::cli
