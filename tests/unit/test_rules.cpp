// SPDX-License-Identifier: Apache-2.0
// Every rule on both sides of its boundary: a question that it accepts, and the nearest one that it alone refuses.
#include <doctest/doctest.h>

#include <map>
#include <ostream>
#include <set>
#include <shardplan/check.hpp>
#include <shardplan/plan_text.hpp>
#include <string>
#include <vector>

namespace {

using namespace shardplan;

/// The dims of the checkpoint in tests/data/tiny.
constexpr model_spec tiny() {
  model_spec m;
  m.num_hidden_layers = 8;
  m.hidden_size = 32;
  m.num_attention_heads = 8;
  m.num_key_value_heads = 4;
  m.head_dim = 8;
  m.intermediate_size = 32;
  m.moe_intermediate_size = 16;
  m.num_experts = 8;
  m.num_experts_per_tok = 2;
  m.vocab_size = 96;
  m.max_position_embeddings = 256;
  return m;
}

/// A question about the tiny model, changed by `change`.
template <class F>
constexpr question about(std::string_view plan, F&& change) {
  const parsed_plan parsed = parse_plan(plan);
  question q;
  q.model = tiny();
  q.plan = parsed.plan;
  if (!parsed.ok()) q.plan.pp = -1;  // a typing error in a test must not pass for a legal plan
  change(q);
  return q;
}
constexpr question about(std::string_view plan) {
  return about(plan, [](question&) {});
}

// What is said once more at compile time: heads on both sides, and the two halves of the key/value rule.
constexpr bool legal_with_heads(num heads, num kv_heads, std::string_view plan) {
  return legal(about(plan, [&](question& q) {
    q.model.num_attention_heads = heads;
    q.model.num_key_value_heads = kv_heads;
  }));
}
static_assert(!legal_with_heads(7, 7, "tp=8") && legal_with_heads(8, 8, "tp=8") && !legal_with_heads(9, 9, "tp=8"));
static_assert(legal_with_heads(8, 1, "tp=8,kv_replicate") && !legal_with_heads(8, 1, "tp=8"));
static_assert(!legal_with_heads(12, 4,
                                "tp=6,cp=2/ulysses,kv_replicate"));  // 12 % 4 == 0, but k_proj has no uniform cut
static_assert(legal_with_heads(12, 4, "tp=4,cp=3/ulysses,kv_replicate"));
static_assert(legal_with_heads(12, 4, "tp=2,cp=3/ring") && !legal_with_heads(12, 4, "tp=2,cp=3/ulysses"));

struct boundary {
  std::string rule;
  question yes, no;
  std::string operands;  // of the violation
  std::string fix;       // part of it
};

std::vector<boundary> boundaries() {
  const auto model = [](auto change) { return [change](question& q) { change(q.model); }; };
  const auto batch = [](num length, num rows, num micro_batches, document_lengths documents = {}) {
    return [=](question& q) { q.batch = {length, rows, micro_batches, documents}; };
  };
  const auto layers = [](num n) { return [n](question& q) { q.model.num_hidden_layers = n; }; };
  const auto node = [](num n) { return [n](question& q) { q.gpus_per_node = n; }; };
  const auto dense = [](question& q) { q.model.num_experts = q.model.num_experts_per_tok = 0; };
  const auto listed = [](num a, num b) { return document_lengths{{a, b}, 2}; };
  return {
      // mesh
      {"every_degree_is_in_range", about("fsdp=2147483647"),
       about("tp=1", [](question& q) { q.plan.fsdp = max_degree + 1; }),
       "pipeline_degree=1 replicate_degree=1 shard_degree=2147483648 context_degree=1 tensor_degree=1 expert_degree=1 "
       "expert_tensor_degree=1",
       "leave out"},
      {"every_degree_is_in_range", about("etp=1"), about("tp=1", [](question& q) { q.plan.etp = 0; }),
       "pipeline_degree=1 replicate_degree=1 shard_degree=1 context_degree=1 tensor_degree=1 expert_degree=1 "
       "expert_tensor_degree=0",
       "leave out"},
      {"product_of_degrees_is_in_range", about("fsdp=1073741823,dp_replicate=2"),
       about("dp_replicate=2", [](question& q) { q.plan.fsdp = 1073741824; }),
       "pipeline_degree=1 replicate_degree=2 shard_degree=1073741824 context_degree=1 tensor_degree=1", "lower"},
      {"world_is_the_product_of_degrees", about("fsdp=2,tp=4", [](question& q) { q.world = 8; }),
       about("fsdp=2,tp=4", [](question& q) { q.world = 9; }),
       "world=9 pipeline_degree=1 replicate_degree=1 shard_degree=2 context_degree=1 tensor_degree=4",
       "1 * 1 * 2 * 1 * 4 = 8, not 9: start 8 ranks, or write * for one degree"},
      {"expert_degrees_divide_the_ranks_below_replicas", about("fsdp=4,ep=4"), about("fsdp=2,ep=4"),
       "expert_degree=4 expert_tensor_degree=1 shard_degree=2 context_degree=1 tensor_degree=1 replicate_degree=1",
       "divisors of 2, such as 2"},
      {"expert_degrees_divide_the_ranks_below_replicas", about("fsdp=8/zero1,ep=8"),
       about("dp_replicate=4,fsdp=2,ep=8"),
       "expert_degree=8 expert_tensor_degree=1 shard_degree=2 context_degree=1 tensor_degree=1 replicate_degree=4",
       "write fsdp=8/zero1 instead of dp_replicate=4"},
      {"expert_degrees_divide_the_ranks_below_replicas", about("fsdp=4,tp=2,ep=2,etp=4"),
       about("fsdp=2,tp=2,ep=2,etp=4"),
       "expert_degree=2 expert_tensor_degree=4 shard_degree=2 context_degree=1 tensor_degree=2 replicate_degree=1",
       "divisors of 4, such as 4"},
      {"tensor_groups_stay_in_a_node", about("tp=4", node(6)), about("tp=4,fsdp=2", node(6)),
       "tensor_degree=4 gpus_per_node=6 plan_world=8", "3 or 6"},
      {"tensor_groups_stay_in_a_node", about("fsdp=2,tp=4", node(4)), about("fsdp=2,tp=4", node(2)),
       "tensor_degree=4 gpus_per_node=2 plan_world=8", "2"},
      {"expert_groups_stay_in_a_node", about("fsdp=16,ep=8", node(8)), about("fsdp=16,ep=8", node(4)),
       "expert_degree=8 expert_tensor_degree=1 gpus_per_node=4 plan_world=16", "4"},
      // model
      {"every_model_size_is_in_range", about("", model([](model_spec& m) { m.hidden_size = 1; })),
       about("", model([](model_spec& m) { m.hidden_size = 0; })),
       "num_layers=8 hidden_size=0 num_heads=8 num_kv_heads=4 head_dim=8 vocab_size=96", "configuration"},
      {"num_layers_fits_the_layer_set", about("", layers(512)), about("", layers(513)), "num_layers=513", "capacity"},
      {"heads_divide_over_kv_heads", about("", model([](model_spec& m) { m.num_attention_heads = 12; })),
       about("", model([](model_spec& m) { m.num_attention_heads = 13; })), "num_heads=13 num_kv_heads=4", "1 or 13"},
      {"head_dim_is_even", about("", model([](model_spec& m) { m.head_dim = 6; })),
       about("", model([](model_spec& m) { m.head_dim = 7; })), "head_dim=7", "8"},
      // heads and widths
      {"heads_divide_over_tensor_and_ulysses", about("cp=4,tp=2,kv_replicate"), about("cp=8,tp=2,kv_replicate"),
       "num_heads=8 tensor_degree=2 ulysses_degree=8", "write cp=8/ring or cp=8/all_gather"},
      {"heads_divide_over_tensor_and_ulysses", about("cp=8/ring,tp=2"), about("tp=16,kv_replicate"),
       "num_heads=8 tensor_degree=16 ulysses_degree=1", "divides 8: 8"},
      {"kv_heads_divide_over_tensor", about("tp=8,kv_replicate"), about("tp=8"),
       "num_kv_heads=4 tensor_degree=8 kv_replicate=0", "add kv_replicate: each key/value head is held by 2 ranks"},
      {"kv_heads_divide_over_tensor", about("tp=4"),
       about("tp=6,kv_replicate", model([](model_spec& m) { m.num_attention_heads = m.intermediate_size = 12; })),
       "num_kv_heads=4 tensor_degree=6 kv_replicate=1", "multiple of 4"},
      {"kv_heads_divide_over_tensor_and_ulysses", about("cp=8,kv_replicate"), about("cp=8"),
       "num_kv_heads=4 tensor_degree=1 ulysses_degree=8 kv_replicate=0", "add kv_replicate, or write cp=8/ring"},
      {"dense_width_divides_over_tensor", about("tp=4", model([](model_spec& m) { m.decoder_sparse_step = 2; })),
       about("tp=4", model([](model_spec& m) {
               m.decoder_sparse_step = 2;
               m.intermediate_size = 34;
             })),
       "intermediate_size=34 tensor_degree=4", "2 or 17"},
      {"vocabulary_divides_over_tensor", about("tp=4,vocab_pad", model([](model_spec& m) { m.vocab_size = 97; })),
       about("tp=4", model([](model_spec& m) { m.vocab_size = 97; })), "vocab_size=97 tensor_degree=4 vocab_pad=0",
       "add vocab_pad"},
      // modules
      {"overrides_name_modules_of_the_model", about("tp=2,layers.7.self_attn=replicated"),
       about("tp=2,layers.8.self_attn=replicated"), "overrides_of_nothing=1 num_layers=8 num_moe_layers=8",
       "layers are 0 to 7"},
      {"modules_of_a_block_are_cut_together", about("tp=2,layers.3.mlp.experts=replicated"),
       about("tp=2,layers.3.mlp.experts.down_proj=replicated"), "blocks_cut_in_part=1",
       "layers.*.self_attn=replicated"},
      {"heads_divide_over_tensor_and_ulysses", about("cp=3/ring,layers.2.self_attn=all_gather"),
       about("cp=3/ring,kv_replicate,layers.2.self_attn=ulysses",
             model([](model_spec& m) { m.num_key_value_heads = 1; })),
       "num_heads=8 tensor_degree=1 ulysses_degree=3", "leave out the override"},
      {"zigzag_balances_a_ring", about("cp=2/ulysses/zigzag,layers.5.self_attn=ring"),
       about("cp=2/ring/zigzag,layers.*.self_attn=ulysses"), "ring_degree=1 context_degree=2", "write contiguous"},
      // sequence and batch
      {"ulysses_times_ring_is_the_context_degree", about("cp=4/ulysses2xring2"), about("cp=4/ulysses2xring3"),
       "ulysses_degree=2 ring_degree=3 context_degree=4", "write cp=4/ulysses2xring2"},
      {"ulysses_times_ring_is_the_context_degree", about("cp=4/ulysses1xring4"), about("cp=4/ulysses3xring1"),
       "ulysses_degree=3 ring_degree=1 context_degree=4", "write cp=4/ulysses1xring4"},
      {"the_layout_cuts_the_row", about("", [](question& q) { q.plan.layout = layout_kind::full; }),
       about("cp=2", [](question& q) { q.plan.layout = layout_kind::full; }), "context_degree=2", "contiguous"},
      {"batch_sizes_are_in_range", about("", batch(0, 0, 0)), about("", batch(-1, 0, 0)),
       "length=-1 rows=0 given_micro_batches=0", "leave out"},
      {"documents_fill_the_row", about("", batch(12, 0, 0, listed(5, 7))), about("", batch(13, 0, 0, listed(5, 7))),
       "document_tokens=12 length=13 shortest_document=5", "leave out length"},
      {"documents_fill_the_row", about("", batch(0, 0, 0, listed(1, 7))), about("", batch(0, 0, 0, listed(0, 7))),
       "document_tokens=7 length=0 shortest_document=0", "leave out"},
      {"rows_divide_over_data_and_micro_batches", about("dp_replicate=2,fsdp=2", batch(0, 16, 2)),
       about("dp_replicate=2,fsdp=2", batch(0, 15, 2)), "rows=15 replicate_degree=2 shard_degree=2 num_micro_batches=2",
       "8 or 16 rows"},
      {"rows_divide_over_data_and_micro_batches", about("pp=2,fsdp=2", batch(0, 4, 0)),
       about("pp=2,fsdp=2", batch(0, 2, 0)), "rows=2 replicate_degree=1 shard_degree=2 num_micro_batches=2", "4 rows"},
      {"length_fits_the_positions", about("", batch(256, 0, 0)), about("", batch(257, 0, 0)),
       "longest_document=257 max_positions=256", "256"},
      {"sequence_parallel_has_a_tensor_axis", about("tp=2/sp"), about("tp=1/sp"), "tensor_degree=1", "leave out sp"},
      {"zigzag_balances_a_ring", about("cp=2/ring/zigzag"), about("cp=2/ulysses/zigzag"),
       "ring_degree=1 context_degree=2", "contiguous"},
      {"zigzag_balances_full_attention", about("cp=2/ring/zigzag"),
       about("cp=2/ring/zigzag", model([](model_spec& m) { m.sliding_window = 4; })), "sliding_window=4 ring_degree=2",
       "contiguous"},
      // pipeline
      {"virtual_stages_belong_to_interleaved", about("pp=2/interleaved2"),
       about("pp=2", [](question& q) { q.plan.virtual_stages = 2; }), "virtual_stages=2 interleaved=0", "interleaved2"},
      {"virtual_stages_belong_to_interleaved", about("pp=2"),
       about("pp=2/interleaved2", [](question& q) { q.plan.virtual_stages = 1; }), "virtual_stages=1 interleaved=1",
       "interleaved2"},
      {"num_stages_fits_the_stage_list", about("pp=64/interleaved2", layers(512)),
       about("pp=64/interleaved4", layers(512)), "pipeline_degree=64 virtual_stages=4", "fewer"},
      {"even_stages_divide_the_layers", about("pp=4"), about("pp=3"), "num_layers=8 pipeline_degree=3 virtual_stages=1",
       "write pp=3/layers:3+3+2"},
      {"even_stages_divide_the_layers", about("pp=2/interleaved4"), about("pp=2/interleaved3"),
       "num_layers=8 pipeline_degree=2 virtual_stages=3", "write pp=2/layers:2+2+1+1+1+1"},
      {"one_listed_stage_per_stage", about("pp=2/layers:3+5"), about("pp=2/layers:3+3+2"),
       "listed_stages=3 pipeline_degree=2 virtual_stages=1", "write pp=2/layers:4+4"},
      {"listed_stages_add_up_to_the_layers", about("pp=2/layers:8+0"), about("pp=2/layers:8+1"),
       "listed_layers=9 num_layers=8", "write pp=2/layers:4+4"},
      {"inner_stages_have_layers", about("pp=4/layers:0+4+4+0"), about("pp=4/layers:4+0+4+0"), "emptiest_inner_stage=0",
       "layers:2+2+2+2"},
      {"micro_batches_fill_the_rounds", about("pp=2/interleaved2", batch(0, 0, 4)),
       about("pp=2/interleaved2", batch(0, 0, 3)), "num_micro_batches=3 pipeline_degree=2", "4 micro-batches"},
      {"micro_batches_fill_the_pipeline", about("pp=2", batch(0, 0, 2)), about("pp=2", batch(0, 0, 1)),
       "num_micro_batches=1 pipeline_degree=2", "2 micro-batches"},
      // experts
      {"expert_counts_are_in_range", about("", dense), about("", model([](model_spec& m) { m.num_experts = -1; })),
       "num_experts=-1 sliding_window=0 sparse_step=1", "configuration"},
      {"experts_per_token_fit_the_experts", about("", model([](model_spec& m) { m.num_experts_per_tok = 8; })),
       about("", model([](model_spec& m) { m.num_experts_per_tok = 9; })), "num_experts_per_token=9 num_experts=8",
       "1 to 8"},
      {"expert_width_divides_over_expert_tensor", about("tp=2,etp=2"),
       about("tp=2,etp=2", model([](model_spec& m) { m.moe_intermediate_size = 15; })),
       "moe_intermediate_size=15 expert_tensor_degree=2", "1 or 3"},
      {"experts_divide_over_expert_degree",
       about("fsdp=4,ep=4,expert_pad", model([](model_spec& m) { m.num_experts = 5; })),
       about("fsdp=4,ep=4", model([](model_spec& m) { m.num_experts = 5; })),
       "num_experts=5 expert_degree=4 expert_pad=0", "add expert_pad, or ep that divides: 1 or 5"},
      {"all_reduce_experts_stay_in_the_tensor_group", about("tp=4,ep=2/all_reduce,etp=2"),
       about("tp=2,fsdp=2,ep=2/all_reduce,etp=2"), "tensor_degree=2 expert_degree=2 expert_tensor_degree=2",
       "write ep=2/dispatch or ep=2/all_gather"},
      {"expert_degrees_have_experts", about("fsdp=2", dense), about("fsdp=2,ep=2", dense),
       "num_moe_layers=0 expert_degree=2 expert_tensor_degree=1", "leave out ep"},
      {"expert_degrees_have_experts", about("tp=2", dense), about("tp=2,etp=2", dense),
       "num_moe_layers=0 expert_degree=1 expert_tensor_degree=2", "leave out ep"},
  };
}

std::string shown(const violation& v) {
  std::string s;
  for (const operand_value& o : v.operands)
    s += (s.empty() ? "" : " ") + std::string(o.name) + "=" + std::to_string(o.value);
  return s;
}
std::vector<violation> refused(const question& q) {
  std::vector<violation> out;
  check(q, [&](const violation& v) { out.push_back(v); });
  return out;
}
std::vector<violation> advised(const question& q) {
  std::vector<violation> out;
  advise(q, [&](const violation& v) { out.push_back(v); });
  return out;
}

template <class... Rules, class F>
void for_each_rule(list<Rules...>, F&& f) {
  (f.template operator()<Rules>(), ...);
}

}  // namespace

TEST_CASE("every rule accepts one side of its boundary and alone refuses the other") {
  std::map<std::string, rule_kind> kinds;
  for_each_rule(builtin_rules{}, [&]<class Rule>() { kinds[std::string(diag::type_name<Rule>())] = Rule::kind; });
  std::set<std::string> tested;
  for (const boundary& b : boundaries()) {
    CAPTURE(b.rule);
    CAPTURE(std::string(print_plan(b.no.plan).view()));
    REQUIRE(kinds.count(b.rule) == 1);
    tested.insert(b.rule);
    CHECK(legal(b.yes));
    CHECK(refused(b.yes).empty());
    for (const violation& v : advised(b.yes)) CHECK(std::string(v.rule) != b.rule);
    const bool advice = kinds[b.rule] == rule_kind::advice;
    CHECK(legal(b.no) == advice);
    const std::vector<violation> said = advice ? advised(b.no) : refused(b.no);
    REQUIRE(said.size() == 1);
    if (advice) CHECK(refused(b.no).empty());
    CHECK(std::string(said[0].rule) == b.rule);
    CHECK(said[0].kind == kinds[b.rule]);
    CHECK(shown(said[0]) == b.operands);
    CHECK_FALSE(said[0].source.empty());
    CHECK(std::string(said[0].fix.view()).find(b.fix) != std::string::npos);
    CHECK_FALSE(said[0].fix.truncated);
  }
  for (const auto& kind : kinds) {
    CAPTURE(kind.first);
    CHECK(tested.count(kind.first) == 1);
  }
}

TEST_CASE("a rule is one sentence with must, and its name is stable") {
  std::set<std::string> names;
  std::size_t rules = 0;
  for_each_rule(builtin_rules{}, [&]<class Rule>() {
    const std::string sentence(Rule::sentence), name(diag::type_name<Rule>());
    CAPTURE(name);
    CHECK(sentence.find(" must ") != std::string::npos);
    CHECK(sentence.back() != '.');
    CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos);
    names.insert(name);
    ++rules;
  });
  CHECK(names.size() == rules);
}

TEST_CASE("a row of documents holds at most as many tokens as there are ints") {
  const auto documents = [](num first, num second) {
    return about("", [=](question& q) { q.batch.documents.push_back(first), q.batch.documents.push_back(second); });
  };
  CHECK(legal(documents(2147483646, 1)));
  CHECK_FALSE(legal(documents(2147483647, 1)));
}

TEST_CASE("a model that a plan cannot help is refused whatever the plan") {
  for (std::string_view plan : {"", "tp=2", "pp=2,fsdp=2,cp=2/ring,tp=2,ep=2"}) {
    CAPTURE(std::string(plan));
    CHECK(legal(about(plan)));
    CHECK_FALSE(legal(about(plan, [](question& q) { q.model.num_key_value_heads = 3; })));
    CHECK_FALSE(legal(about(plan, [](question& q) { q.model.head_dim = 3; })));
    CHECK_FALSE(legal(about(plan, [](question& q) { q.model.num_experts_per_tok = 0; })));
    CHECK_FALSE(legal(about(plan, [](question& q) { q.model.num_hidden_layers = 0; })));
    CHECK_FALSE(legal(about(plan, [](question& q) { q.model.vocab_size = -8; })));
    CHECK_FALSE(legal(about(plan, [](question& q) { q.model.decoder_sparse_step = 0; })));
  }
}

TEST_CASE("plans that look unusual and run all the same are legal") {
  const auto experts = [](num n) { return [n](question& q) { q.model.num_experts = n; }; };
  CHECK(legal(about("fsdp=8,ep=8,expert_pad", experts(5))));  // three ranks have no expert at all
  CHECK(legal(about("fsdp=4,ep=4,expert_pad", experts(5))));  // slots 2: ranks hold 2, 2, 1 and 0
  CHECK(legal(about("tp=8,kv_replicate,vocab_pad", [](question& q) { q.model.vocab_size = 5; })));
  CHECK(legal(about("fsdp=64")));              // shards of a tensor may be empty
  CHECK(legal(about("pp=4/layers:0+8+0+0")));  // stages without layers
  CHECK(legal(about("pp=1/interleaved2")));    // both stages on one rank
  CHECK(legal(about("fsdp=1/zero1,tp=1/sp,cp=1/ring/zigzag")));
  CHECK(legal(about("fsdp=2,ep=1/all_gather,etp=2")));
  CHECK(legal(about("tp=2,etp=2")));
  CHECK(legal(about("cp=2,ep=2")));                    // experts over context ranks alone
  CHECK(legal(about("fsdp=2,tp=2,ep=1/all_reduce")));  // nothing is cut, so nothing is replicated
  CHECK(legal(about("cp=2/ring/zigzag_documents", [](question& q) { q.batch.length = 7; })));
  CHECK(legal(about("fsdp=3,ep=3", [](question& q) { q.model.num_experts = 0; })));  // advice alone
  // Widths that nothing is cut from are not asked about.
  CHECK(legal(about("tp=4", [](question& q) { q.model.intermediate_size = 0; })));
  CHECK(legal(about("tp=4,etp=4", [](question& q) { q.model.num_experts = q.model.moe_intermediate_size = 0; })));
}
