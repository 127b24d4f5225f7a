// SPDX-License-Identifier: Apache-2.0
// What is not said: a rule is silent about numbers that another has refused, and advice about plans that it is not for.
#include <doctest/doctest.h>

#include <ostream>
#include <shardplan/check.hpp>
#include <shardplan/plan_text.hpp>
#include <string>

namespace {

using namespace shardplan;

/// The dims of tests/data/tiny, changed by `change`.
template <class F>
question about(std::string_view plan, F&& change) {
  question q;
  q.model.num_hidden_layers = 8;
  q.model.hidden_size = 32;
  q.model.num_attention_heads = 8;
  q.model.num_key_value_heads = 4;
  q.model.head_dim = 8;
  q.model.intermediate_size = 32;
  q.model.moe_intermediate_size = 16;
  q.model.num_experts = 8;
  q.model.num_experts_per_tok = 2;
  q.model.vocab_size = 96;
  q.model.max_position_embeddings = 256;
  const parsed_plan parsed = parse_plan(plan);
  CHECK(parsed.ok());
  q.plan = parsed.plan;
  change(q);
  return q;
}

/// The names of the rules that refuse, then of those that advise, behind a bar.
std::string said(const question& q) {
  std::string out;
  const auto add = [&](const violation& v) {
    out += (out.empty() || out.back() == '|' ? "" : " ") + std::string(v.rule);
  };
  check(q, add);
  out += "|";
  advise(q, add);
  return out;
}

}  // namespace

TEST_CASE("counts of experts that are refused are not asked about further") {
  const auto experts = [](std::string_view plan, auto change) {
    return said(about(plan, [&](question& q) {
      q.model.sliding_window = -1;
      change(q);
    }));
  };
  CHECK(experts("tp=1", [](question& q) { q.model.num_experts_per_tok = 9; }) == "expert_counts_are_in_range|");
  CHECK(experts("tp=2,etp=2", [](question& q) { q.model.moe_intermediate_size = 15; }) ==
        "expert_counts_are_in_range|");
  CHECK(experts("fsdp=4,ep=4", [](question& q) { q.model.num_experts = 6; }) == "expert_counts_are_in_range|");
  CHECK(experts("tp=2,fsdp=2,ep=4/all_reduce", [](question&) {}) == "expert_counts_are_in_range|");
}

TEST_CASE("layers that no set holds are not asked about further") {
  const auto layers = [](std::string_view plan, auto change) {
    return said(about(plan, [&](question& q) {
      q.model.num_hidden_layers = 513;
      change(q);
    }));
  };
  CHECK(layers("fsdp=2,ep=2", [](question& q) { q.model.num_experts = 0; }) == "num_layers_fits_the_layer_set|");
  CHECK(layers("tp=2", [](question& q) {
          q.model.num_experts = 0;
          q.model.intermediate_size = 33;
        }) == "num_layers_fits_the_layer_set|");
}

TEST_CASE("advice about nodes") {
  const auto node = [](std::string_view plan, num gpus, num experts) {
    return said(about(plan, [&](question& q) {
      q.gpus_per_node = gpus;
      q.model.num_experts = experts;
      q.model.num_experts_per_tok = experts > 1 ? 2 : experts;
    }));
  };
  CHECK(node("tp=2", 1, 0) == "|tensor_groups_stay_in_a_node");  // a node of one
  CHECK(node("fsdp=2,ep=2", 1, 8) == "|expert_groups_stay_in_a_node");
  CHECK(node("tp=2", -3, 0) == "|");  // no node
  CHECK(node("fsdp=2,ep=2", -3, 8) == "|");
  CHECK(node("fsdp=2,ep=2", 1, 0) == "|expert_degrees_have_experts");  // no experts that would cross
  CHECK(node("fsdp=2,ep=2,expert_pad", 1, 1) == "|expert_groups_stay_in_a_node");
  CHECK(node("fsdp=2,tp=2,ep=2,etp=2", 2, 8) == "|expert_groups_stay_in_a_node");  // 2 * 2
  CHECK(node("fsdp=4,tp=2,ep=2,etp=2", 4, 8) == "|");
}

TEST_CASE("one layer of experts is enough for their degrees to matter") {
  CHECK(said(about("fsdp=2,ep=2", [](question& q) {
          for (num layer = 1; layer < 8; ++layer) q.model.mlp_only_layers.insert(layer);
        })) == "|");
}
