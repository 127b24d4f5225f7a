// SPDX-License-Identifier: Apache-2.0
// The type face: policies in any order, what they say as values, and checked plans.
#include <doctest/doctest.h>

#include <shardplan/check.hpp>
#include <shardplan/models.hpp>
#include <shardplan/plan_text.hpp>
#include <shardplan/policies.hpp>
#include <type_traits>

namespace {

using namespace shardplan;
using namespace shardplan::literals;

struct qwen3 final {
  static constexpr model_spec spec = models::qwen3_30b_a3b;
};

// Every policy and every option, against the text.
using everything =
    plan<pipeline_parallel<2, interleaved<2>, explicit_stages<10, 14, 14, 10>>, replicated<3>, fully_sharded<2, zero1>,
         context_parallel<4, ulysses_ring<2, 2>, zigzag>, tensor_parallel<4, sequence_parallel>,
         expert_parallel<8, all_gather, expert_tensor_parallel<2>>, replicate_kv_heads, pad_vocabulary, pad_experts>;
static_assert(everything::spec ==
              "pp=2/interleaved2/layers:10+14+14+10,dp_replicate=3,fsdp=2/zero1,cp=4/ulysses2xring2/zigzag,tp=4/sp,"
              "ep=8/all_gather,etp=2,kv_replicate,vocab_pad,expert_pad"_plan);
static_assert(everything::world_size == 192 && everything::num_stages == 4);
static_assert(everything::num_data_shards == 6 && everything::gradient_divisor == 24);

// In any order, inside or beside the axis they belong to.
static_assert(plan<expert_tensor_parallel<2>, sequence_parallel, explicit_stages<20, 28>, tensor_parallel<2>,
                   pipeline_parallel<2>>::spec ==
              plan<pipeline_parallel<2, explicit_stages<20, 28>>, tensor_parallel<2, sequence_parallel>,
                   expert_tensor_parallel<2>>::spec);
static_assert(plan<context_parallel<2, zigzag, ring>>::spec == plan<context_parallel<2, ring, zigzag>>::spec);
static_assert(plan<tensor_parallel<8, pad_vocabulary, replicate_kv_heads>>::spec == "tp=8,kv_replicate,vocab_pad"_plan);
static_assert(plan<fully_sharded<2>, expert_parallel<2, pad_experts, all_reduce>>::spec ==
              "fsdp=2,ep=2/all_reduce,expert_pad"_plan);

// One option at a time.
static_assert(plan<>::spec == plan_spec{});
static_assert(plan<pipeline_parallel<2, one_f_one_b>>::spec == "pp=2/1f1b"_plan);
static_assert(plan<pipeline_parallel<2, gpipe>>::spec == "pp=2/gpipe"_plan);
static_assert(plan<fully_sharded<2, zero2>>::spec == "fsdp=2/zero2"_plan);
static_assert(plan<fully_sharded<2, zero3>>::spec == "fsdp=2"_plan);
static_assert(plan<context_parallel<2, ulysses, contiguous>>::spec == "cp=2"_plan);
static_assert(plan<context_parallel<2, all_gather, zigzag_documents>>::spec == "cp=2/all_gather/zigzag_documents"_plan);
static_assert(plan<expert_parallel<2, token_dispatch>>::spec == "ep=2/dispatch"_plan);

// A plan, a model and a batch as types; a plan that is named prints by its name.
static_assert(plan<tensor_parallel<2>, override_modules<"layers.*.self_attn", module_style::replicated>,
                   override_modules<"lm_head", module_style::replicated>>::spec ==
              "tp=2,layers.*.self_attn=replicated,lm_head=replicated"_plan);
static_assert(plan_of<"tp=2,cp=2/ring"_plan>::spec == plan<tensor_parallel<2>, context_parallel<2, ring>>::spec);
struct mine final : plan<pipeline_parallel<2>, fully_sharded<2>, context_parallel<2, ring, zigzag>,
                         tensor_parallel<2, sequence_parallel>, expert_parallel<4, token_dispatch>> {};
static_assert(PlanType<mine> && PlanType<everything> && PlanType<plan_of<plan_spec{}>> && !PlanType<qwen3>);
static_assert(ModelType<qwen3> && ModelType<model_of<models::qwen3_30b_a3b>> && !ModelType<mine>);

using legal_plan = checked<mine, qwen3>;
static_assert(legal_plan::world_size == 16 && legal_plan::heads_per_rank == 16 && legal_plan::kv_heads_per_rank == 2);
static_assert(legal_plan::experts_per_rank == 32 && legal_plan::efsdp == 2 && legal_plan::num_stages == 2);
static_assert(legal_plan::vocab_rows_per_rank == 75968 && legal_plan::num_data_shards == 2);
static_assert(std::is_empty_v<legal_plan> && sizeof(legal_plan) == 1);
static_assert(checked<mine, model_of<models::qwen3_30b_a3b>>::gradient_divisor == 4);

// The soft query never fails to compile, a degree of 0 included.
static_assert(LegalPlan<mine, qwen3> && LegalPlan<mine, qwen3, on_ranks<16>> && !LegalPlan<mine, qwen3, on_ranks<8>>);
static_assert(!LegalPlan<plan<tensor_parallel<3>>, qwen3> && !LegalPlan<plan<tensor_parallel<0>>, qwen3>);
static_assert(!LegalPlan<plan<pipeline_parallel<-1>>, qwen3>);
static_assert(!LegalPlan<plan<fully_sharded<(num{1} << 40)>>, qwen3>);

// A batch, and rules of the user's, in any order.
struct sixteen_rows final {
  static constexpr batch_spec spec = [] {
    batch_spec b;
    b.rows = 16;
    return b;
  }();
};
constexpr batch_spec rows(num n) {
  batch_spec b;
  b.rows = n;
  return b;
}
static_assert(BatchType<sixteen_rows> && LegalPlan<mine, qwen3, sixteen_rows>);
static_assert(LegalPlan<mine, qwen3, batch_of<rows(4)>> && !LegalPlan<mine, qwen3, batch_of<rows(3)>>);
struct experts_stay_whole {
  SHARDPLAN_SENTENCE("ep must be 1 here");
  static constexpr rule_kind kind = rule_kind::math;
  using operands = list<fact::expert_degree_operand>;
  static constexpr bool holds(num ep) { return ep == 1; }
};
struct engine_has_one_node {
  SHARDPLAN_SENTENCE("an engine without a network must have one pipeline stage");
  static constexpr rule_kind kind = rule_kind::engine;
  using operands = list<fact::pipeline_degree_operand>;
  static constexpr bool holds(num pp) { return pp == 1; }
};
static_assert(!LegalPlan<mine, qwen3, experts_stay_whole> && !LegalPlan<mine, qwen3, sixteen_rows, experts_stay_whole>);
static_assert(!LegalPlan<mine, qwen3, experts_stay_whole, sixteen_rows>);
static_assert(LegalPlan<mine, qwen3, engine_has_one_node>);
static_assert(!LegalPlan<mine, qwen3, engine_has_one_node, on_engine<engine_kind::nccl>>);
static_assert(checked<plan<tensor_parallel<4>>, qwen3, sixteen_rows, experts_stay_whole, on_ranks<4>>::world_size == 4);

// A method, a dispatch kind and a policy of the user's.
struct my_ring final {
  static constexpr void choose_method(plan_spec& p) { p.method = cp_method::ring; }
};
struct my_dispatch final {
  static constexpr void choose_dispatch(plan_spec& p) { p.dispatch = dispatch_kind::all_gather; }
};
static_assert(plan<expert_parallel<4, my_dispatch>, fully_sharded<4>>::spec == "fsdp=4,ep=4/all_gather"_plan);
struct house_defaults final {
  static constexpr void apply(plan_spec& p) { p.vocab_pad = p.expert_pad = true; }
};
static_assert(plan<context_parallel<4, my_ring>, house_defaults>::spec == "cp=4/ring,vocab_pad,expert_pad"_plan);

}  // namespace

TEST_CASE("policies") {
  // All of it is checked by compiling; one case, so that the program says that it ran.
  CHECK(mine::spec == parse_plan("pp=2,fsdp=2,cp=2/ring/zigzag,tp=2/sp,ep=4").plan);
}
