// SPDX-License-Identifier: Apache-2.0
// A plan is a type, made of policies in any order. Checked for a model, it says what one rank works with, as constants;
// a plan that cannot work does not compile (02_wrong_plan.cpp).
#include <cstdio>
#include <shardplan/shardplan.hpp>

using namespace shardplan;

struct qwen3_30b final {
  static constexpr model_spec spec = models::qwen3_30b_a3b;
};
struct four_nodes final : plan<pipeline_parallel<2>, fully_sharded<2>, context_parallel<2, ring, zigzag>,
                               tensor_parallel<4, sequence_parallel>, expert_parallel<8, token_dispatch>> {};
struct batch final {
  static constexpr batch_spec spec{.length = 32768, .rows = 8, .micro_batches = 4};
};

using result = checked<four_nodes, qwen3_30b, batch, on_ranks<32>>;

// Data, not functions: usable as array bounds, template arguments, and in device code.
static_assert(result::world_size == 32);  // 2 * 2 * 2 * 4; experts are cut over the same ranks, ep adds none
static_assert(result::heads_per_rank == 8 && result::kv_heads_per_rank == 1);
static_assert(result::experts_per_rank == 16);
static_assert(result::gradient_divisor == 4);  // fsdp * cp: what a framework that averages gradients divides by
double scores_of_a_head[result::heads_per_rank][2];

// The value behind the type answers whatever else one asks.
static_assert(padded_length(result::spec, batch::spec) == 32768);
static_assert(num_data_shards(result::spec) == 2);  // distinct batches: ranks that differ in cp or tp read the same

int main() {
  std::printf("%s\n", print_plan(four_nodes::spec).c_str());
  std::printf("%lld ranks, each with %lld of %lld heads and %lld of %lld experts\n",
              static_cast<long long>(result::world_size), static_cast<long long>(result::heads_per_rank),
              static_cast<long long>(result::model.num_attention_heads),
              static_cast<long long>(result::experts_per_rank), static_cast<long long>(result::model.num_experts));
}
//> pp=2/1f1b,fsdp=2/zero3,cp=2/ring/zigzag,tp=4/sp,ep=8/dispatch
//> 32 ranks, each with 8 of 32 heads and 16 of 128 experts
