// SPDX-License-Identifier: Apache-2.0
// How a model is cut: the value face of a plan, and every number that follows from it alone.
#ifndef SHARDPLAN_PLAN_HPP
#define SHARDPLAN_PLAN_HPP

#include <initializer_list>  // initializer_list
#include <shardplan/axes.hpp>
#include <shardplan/batch.hpp>
#include <shardplan/layout.hpp>
#include <shardplan/methods.hpp>
#include <shardplan/model.hpp>
#include <shardplan/module_plan.hpp>

namespace shardplan {

/// Layers of each pipeline stage, in order of depth; empty means an even split.
using stage_layer_counts = fixed_vector<num, 128>;

struct plan_spec {
  num pp = 1;            ///< pipeline stages' ranks
  num dp_replicate = 1;  ///< whole copies of everything, each on its own rows
  num fsdp = 1;          ///< data-parallel ranks that shard parameters
  num cp = 1;            ///< context parallel: tokens of a row
  num tp = 1;            ///< tensor parallel: widths and heads
  num ep = 1;            ///< expert parallel, of the same ranks: adds none
  num etp = 1;           ///< tensor parallel inside an expert

  schedule_kind schedule = schedule_kind::one_f_one_b;
  num virtual_stages = 1;  ///< stages per pipeline rank; above 1 iff interleaved
  stage_layer_counts stages{};
  zero_stage zero = zero_stage::zero3;
  cp_method method = cp_method::ulysses;
  num method_ulysses = 1, method_ring = 1;  ///< U and R as written, for cp_method::ulysses_ring alone
  layout_kind layout = layout_kind::contiguous;
  bool sequence_parallel = false;
  dispatch_kind dispatch = dispatch_kind::dispatch;
  bool kv_replicate = false;   ///< more ranks than key/value heads hold copies of them
  bool vocab_pad = false;      ///< the last tp rank may hold fewer vocabulary rows
  bool expert_pad = false;     ///< the last ep rank may hold fewer experts
  module_overrides modules{};  ///< other styles for some modules than the tables of module_plan.hpp say

  friend constexpr bool operator==(const plan_spec&, const plan_spec&) = default;
};

// What follows from degrees. These presume that every degree is at least 1 and that their product fits (a rule).

/// Ranks of the world; -1 when a degree is negative or the product does not fit.
constexpr num world_size(const plan_spec& p) {
  num world = 1;
  for (num degree : {p.pp, p.dp_replicate, p.fsdp, p.cp, p.tp}) {
    world = checked_product(world, degree);
    if (world < 0) return -1;
  }
  return world;
}

/// U and R with U * R == cp for every method: U ranks trade tokens for heads, R ranks trade keys and values.
constexpr num ulysses_degree(const plan_spec& p, cp_method method) {
  return method == cp_method::ulysses ? p.cp : method == cp_method::ulysses_ring ? p.method_ulysses : 1;
}
constexpr num ring_degree(const plan_spec& p, cp_method method) {
  return method == cp_method::ulysses ? 1 : method == cp_method::ulysses_ring ? p.method_ring : p.cp;
}
constexpr num ulysses_degree(const plan_spec& p) { return ulysses_degree(p, p.method); }
constexpr num ring_degree(const plan_spec& p) { return ring_degree(p, p.method); }
/// Style of the modules of `layer` that hold parameters of that kind, and whether they are cut at all.
constexpr module_style style_of(const plan_spec& p, parameter_kind kind, num layer = parameter::no_layer) {
  return style_of(p.modules, kind, layer);
}
constexpr bool is_cut(const plan_spec& p, parameter_kind kind, num layer = parameter::no_layer) {
  return style_of(p, kind, layer) != module_style::replicated;
}
/// Ranks over which tensor parallelism cuts those modules.
constexpr num tensor_degree(const plan_spec& p, parameter_kind kind, num layer = parameter::no_layer) {
  return is_cut(p, kind, layer) ? p.tp : 1;
}

/// The context method of the attention of `layer`.
constexpr cp_method method_in_layer(const plan_spec& p, num layer) {
  switch (context_style_of(p.modules, layer)) {
    case module_style::ulysses:
      return cp_method::ulysses;
    case module_style::ring:
      return cp_method::ring;
    case module_style::all_gather:
      return cp_method::all_gather;
    default:
      return p.method;
  }
}

/// The plan as one layer sees it: the context method of its attention, and, where its experts are whole on every rank,
/// no expert parallelism. Axes that both kinds of layers share are as they were.
constexpr plan_spec plan_in_layer(const plan_spec& p, num layer) {
  plan_spec in = p;
  in.method = method_in_layer(p, layer);
  if (!is_cut(p, parameter_kind::experts_gate_up, layer)) {
    in.ep = in.etp = 1;
    in.dispatch = dispatch_kind::dispatch;  // every row stays where it is
  }
  return in;
}

/// Ranks over which the tokens of one context-parallel rank are cut once more.
constexpr num sequence_parallel_degree(const plan_spec& p) { return p.sequence_parallel ? p.tp : 1; }
/// Expert view: efsdp * ep * etp == fsdp * cp * tp.
constexpr num efsdp_degree(const plan_spec& p) { return p.fsdp * p.cp * p.tp / (p.ep * p.etp); }
/// Distinct batches; ranks that differ only in cp or tp (or pp) read the same one.
constexpr num num_data_shards(const plan_spec& p) { return p.dp_replicate * p.fsdp; }
/// What a framework that averages gradients divides by: cp ranks count, whatever the parameter's class.
constexpr num gradient_divisor(const plan_spec& p) { return p.dp_replicate * p.fsdp * p.cp; }
/// Ranks holding a copy of the same key/value head within a tp group, and the groups of distinct heads.
constexpr num kv_copies(const plan_spec& p, const model_spec& m) {
  return p.tp > m.num_key_value_heads && p.tp % m.num_key_value_heads == 0 ? p.tp / m.num_key_value_heads : 1;
}
constexpr num num_stages(const plan_spec& p) { return p.pp * p.virtual_stages; }
constexpr num micro_batches(const plan_spec& p, const batch_spec& b) {
  return b.micro_batches == 0 ? p.pp : b.micro_batches;
}
constexpr padding_multiple needed_multiple(const plan_spec& p) {
  return needed_multiple(p.layout, p.cp, sequence_parallel_degree(p));
}
/// Length of a row of the batch once padded for the plan.
constexpr num padded_length(const plan_spec& p, const batch_spec& b) {
  if (!b.documents.empty()) return padded_length(b.documents, needed_multiple(p));
  return padded_length(fixed_vector<num, 1>{{b.length}, 1}, needed_multiple(p));
}
/// Experts per ep rank, padding slots included.
constexpr num expert_slots(const plan_spec& p, const model_spec& m) { return ceil_div(m.num_experts, p.ep); }

}  // namespace shardplan
#endif  // SHARDPLAN_PLAN_HPP
