// SPDX-License-Identifier: Apache-2.0
// Modules with another style than the tables give them: what is owned, sent and computed follows.
#include <shardplan/collectives.hpp>

#include "equality_helpers.hpp"
#include "runtime/cli/threads_engine.hpp"
#include "runtime/verify/ledger_comparison.hpp"

namespace shardplan::runtime {
namespace {

/// Elements of all parameters in use on a rank.
num elements_in_use(const model_spec& m, const plan_spec& plan, num rank) {
  num sum = 0;
  for_each_parameter(m, [&](const parameter& p) {
    if (rank_holds(m, plan, rank, p)) sum += part_in_use(m, plan, p, rank).size();
  });
  return sum;
}

/// Bytes of all collectives over some axes, as the plan predicts them for rank 0.
num bytes_over(const model_spec& m, const plan_spec& plan, axis_set axes) {
  const run_shape shape{16, 2, 1, 8, true, 0, false, false};
  num sum = 0;
  for_each_collective(m, plan, shape, 0, balanced_routing{m, plan, shape}, [&](const ledger_entry& e) {
    if (e.axes == axes) sum += e.bytes;
  });
  return sum;
}

TEST_CASE("a module that is replicated is whole in memory, and its collectives are gone") {
  const model_spec m = model_of("tiny");
  const plan_spec cut = plan_for(m, "tp=2"), whole = plan_for(m, "tp=2,lm_head=replicated");
  const num head = m.vocab_size * m.hidden_size;
  for (num rank = 0; rank < 2; ++rank) {
    CHECK(elements_in_use(m, whole, rank) - elements_in_use(m, cut, rank) == head / 2);
    CHECK(owned(m, whole, make_parameter(m, parameter_kind::lm_head), state_kind::parameter, rank) ==
          make_parameter(m, parameter_kind::lm_head).whole());
  }
  // 16 tokens of 2 rows in f64: the loss's three sums, and in the backward the sum of hidden gradients.
  CHECK(bytes_over(m, cut, axis::tp) - bytes_over(m, whole, axis::tp) == 8 * 32 * (3 + m.hidden_size));
  // One of eight layers' attention: in the forward and in the backward one sum each, and the sums of q_norm and k_norm.
  const plan_spec layer = plan_for(m, "tp=2,layers.3.self_attn=replicated");
  CHECK(bytes_over(m, cut, axis::tp) - bytes_over(m, layer, axis::tp) == 8 * (2 * 32 * m.hidden_size + 2 * m.head_dim));
}

TEST_CASE("a layer with another context method sends what that method sends") {
  const model_spec m = model_of("tiny");
  const auto over = [&](const char* plan, axis a) { return bytes_over(m, plan_for(m, plan), a); };
  CHECK(over("cp=2/ring", axis::cp_ring) > 0);
  CHECK(8 * over("cp=2/ulysses,layers.3.self_attn=ring", axis::cp_ring) == over("cp=2/ring", axis::cp_ring));
  CHECK(8 * over("cp=2/ring,layers.0.self_attn=ulysses", axis::cp_ulysses) == over("cp=2/ulysses", axis::cp_ulysses));
  CHECK(over("cp=2/ulysses,layers.*.self_attn=all_gather", axis::cp_ulysses) == 0);
}

TEST_CASE("overridden modules compute what the tables' do") {
  const model_spec m = model_of("tiny");
  equality rows("tiny", make_rows(m, 4, 13));
  for (const char* plan : {
           "tp=2,lm_head=replicated",
           "tp=2/sp,lm_head=replicated,embed_tokens=replicated",
           "tp=4/sp,layers.*.self_attn=replicated",
           "tp=2,layers.3.self_attn=replicated,layers.5.self_attn=replicated",
           "tp=2/sp,cp=2/ring/zigzag,layers.*.self_attn=replicated,lm_head=replicated",
           "cp=4/ring/zigzag,layers.2.self_attn=ulysses,layers.3.self_attn=all_gather",
           "cp=2/ulysses,tp=2,layers.*.self_attn=ring,layers.0.self_attn=planned",
           "cp=4/ulysses2xring2,layers.1.self_attn=ulysses,layers.2.self_attn=replicated",
           "fsdp=2,ep=2,layers.4.mlp.experts=replicated",
           "fsdp=2/zero1,tp=2,ep=4,layers.*.mlp.experts=replicated",
           "tp=4/sp,ep=2/all_reduce,etp=2,layers.0.mlp=replicated",
           "tp=4,ep=4/all_reduce,layers.1.mlp.experts=replicated",
           "tp=2,cp=2,ep=2/all_gather,etp=2,layers.7.mlp.experts=replicated",
           "pp=2,tp=2,layers.*=replicated",
           "pp=2,fsdp=2,tp=2/sp,ep=2,layers.0=replicated,layers.0.mlp.experts.gate_up_proj=packed_colwise,"
           "layers.0.mlp.experts.down_proj=grouped_rowwise,embed_tokens=replicated",
       })
    rows.expect(plan);
  MESSAGE(rows.plans(), " plans with overrides, worst ", rows.worst());
}

TEST_CASE("overrides of dense layers, biases and tied ends compute what the tables' do") {
  for (const char* fixture : {"qwen3_dense_mix", "mistral", "tied", "attention_bias", "sparse_step", "auxiliary"}) {
    equality rows(fixture, make_packed(model_of(fixture), 2, {5, 1, 8}));
    num legal = 0;
    for (const char* plan :
         {"tp=2/sp,layers.*.mlp=replicated", "tp=2,layers.*.self_attn=replicated", "tp=2/sp,embed_tokens=replicated",
          "tp=2,cp=2/ring,layers.0=replicated", "pp=2,tp=2/sp,embed_tokens=replicated,layers.1.self_attn=replicated"})
      legal += rows.expect_if_legal(plan) ? 1 : 0;
    CHECK(legal > 0);
  }
}

TEST_CASE("what overridden plans send is what they predict") {
  const checkpoint& weights = weights_of("tiny");
  const batch_rows rows = make_rows(weights.config().spec, 4, 13);
  const baseline_result<double> expected = baseline<double>(weights).compute(rows, {}, {true, false, 0, {}});
  for (const char* text :
       {"tp=2/sp,cp=2/ring,lm_head=replicated,layers.1.self_attn=replicated",
        "cp=4/ulysses,layers.2.self_attn=ring,layers.3.self_attn=all_gather",
        "tp=2,fsdp=2,ep=4,layers.4.mlp.experts=replicated", "tp=4,ep=4/all_reduce,layers.1=replicated",
        "tp=2,ep=2/all_gather,layers.1.mlp.experts=replicated,embed_tokens=replicated"}) {
    const plan_spec plan = plan_for(weights.config().spec, text);
    threads_options options;
    options.run = with_gradients();
    const auto run = run_on_threads<double>(weights, plan, rows, options);
    const ledger_question how{plan.pp, 8, true, 0};
    const ledger_comparison c = compare_ledgers(weights, plan, rows, how, expected, run.ledgers);
    CHECK_MESSAGE(c.equal, std::string(text), ": ", c.difference);
  }
}

}  // namespace
}  // namespace shardplan::runtime
