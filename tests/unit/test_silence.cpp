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
  CHECK(layers("tp=1", [](question& q) { q.model.num_experts_per_tok = 9; }) == "num_layers_fits_the_layer_set|");
  CHECK(layers("tp=2,etp=2", [](question& q) { q.model.moe_intermediate_size = 15; }) ==
        "num_layers_fits_the_layer_set|");
  CHECK(layers("fsdp=4,ep=4", [](question& q) { q.model.num_experts = 6; }) == "num_layers_fits_the_layer_set|");
  CHECK(layers("tp=2,fsdp=2,ep=4/all_reduce", [](question&) {}) == "num_layers_fits_the_layer_set|");
  CHECK(layers("tp=2", [](question& q) {
          q.model.num_experts = 0;
          q.model.intermediate_size = 33;
        }) == "num_layers_fits_the_layer_set|");
}

TEST_CASE("a degree that is refused is not divided by, and not echoed") {
  const auto with = [](std::string_view plan, auto change) { return said(about(plan, change)); };
  CHECK(with("fsdp=8", [](question& q) { q.plan.tp = 0, q.gpus_per_node = 4; }) == "every_degree_is_in_range|");
  CHECK(with("fsdp=8", [](question& q) { q.plan.tp = max_degree + 1, q.gpus_per_node = 4; }) ==
        "every_degree_is_in_range|");
  CHECK(with("cp=4/ulysses2xring2", [](question& q) { q.plan.cp = 0; }) == "every_degree_is_in_range|");
  CHECK(with("tp=1", [](question& q) {
          q.plan.cp = 0;
          q.plan.layout = layout_kind::full;
        }) == "every_degree_is_in_range|");
  CHECK(with("pp=2/interleaved2", [](question& q) { q.plan.pp = 0; }) == "every_degree_is_in_range|");
  CHECK(with("pp=2", [](question& q) { q.plan.pp = max_degree + 1; }) == "every_degree_is_in_range|");
  CHECK(with("pp=2", [](question& q) { q.plan.pp = max_degree + 1, q.batch.micro_batches = 5; }) ==
        "every_degree_is_in_range|");
  CHECK(with("pp=2", [](question& q) { q.plan.pp = -1; }) == "every_degree_is_in_range|");
  CHECK(with("fsdp=2", [](question& q) { q.plan.fsdp = 0, q.batch.rows = 3; }) == "every_degree_is_in_range|");
  CHECK(with("tp=1", [](question& q) { q.plan.etp = 0; }) == "every_degree_is_in_range|");
  CHECK(with("tp=1", [](question& q) { q.plan.ep = 0; }) == "every_degree_is_in_range|");
  CHECK(with("tp=2,ep=2/all_reduce", [](question& q) { q.plan.etp = 0; }) == "every_degree_is_in_range|");
  CHECK(with("fsdp=2,ep=4", [](question& q) { q.gpus_per_node = 1; }) ==
        "expert_degrees_divide_the_ranks_below_replicas|");
}

TEST_CASE("stages that are refused are not asked about further") {
  const auto layers = [](std::string_view plan, num n) {
    return said(about(plan, [n](question& q) { q.model.num_hidden_layers = n, q.batch.micro_batches = 512; }));
  };
  CHECK(said(about("pp=64", [](question& q) { q.plan.virtual_stages = 4, q.batch.micro_batches = 64; })) ==
        "virtual_stages_belong_to_interleaved|");
  CHECK(layers("pp=129", 8) == "num_stages_fits_the_stage_list|");
  CHECK(layers("pp=2", -1) == "every_model_size_is_in_range|");
  CHECK(layers("pp=129/layers:4+4", 8) == "num_stages_fits_the_stage_list|");
  CHECK(layers("pp=129/layers:4+5", 8) == "num_stages_fits_the_stage_list|");
  CHECK(layers("pp=2/layers:4+4", -1) == "every_model_size_is_in_range|");
  CHECK(layers("pp=3/layers:4+0+5", 8) == "listed_stages_add_up_to_the_layers|");
  CHECK(layers("pp=4/layers:4+0+4", 8) == "one_listed_stage_per_stage|");
}

TEST_CASE("sizes of a batch that are refused are not asked about further") {
  const auto batch = [](std::string_view plan, batch_spec b) {
    return said(about(plan, [&](question& q) { q.batch = b; }));
  };
  CHECK(batch("pp=2/interleaved2", {0, 0, -1, {}}) == "batch_sizes_are_in_range|");
  CHECK(batch("pp=2", {0, 0, -1, {}}) == "batch_sizes_are_in_range|");
  CHECK(batch("fsdp=2", {0, -1, 0, {}}) == "batch_sizes_are_in_range|");
  CHECK(batch("tp=1", {0, -1, 0, {{0, 7}, 2}}) == "batch_sizes_are_in_range|");
  CHECK(batch("tp=1", {257, -1, 0, {}}) == "batch_sizes_are_in_range|");
}

TEST_CASE("one piece of advice about zigzag is enough") {
  CHECK(said(about("cp=2/ulysses/zigzag", [](question& q) { q.model.sliding_window = 4; })) ==
        "|zigzag_balances_a_ring");
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

TEST_CASE("advice about stages and micro-batches") {
  CHECK(said(about("pp=3/layers:4+1+3", [](question&) {})) == "|");  // one layer is work
  CHECK(said(about("pp=4/interleaved2", [](question& q) { q.batch.micro_batches = 3; })) ==
        "micro_batches_fill_the_rounds|");  // said once
}

TEST_CASE("one layer of experts is enough for their degrees to matter") {
  CHECK(said(about("fsdp=2,ep=2", [](question& q) {
          for (num layer = 1; layer < 8; ++layer) q.model.mlp_only_layers.insert(layer);
        })) == "|");
}
