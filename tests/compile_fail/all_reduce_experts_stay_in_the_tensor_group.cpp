// SPDX-License-Identifier: Apache-2.0
// All-reduce over ranks that hold different rows.
// expect-error: all_reduce_experts_stay_in_the_tensor_group.*tensor_degree<2>.*expert_degree<4>
// expect-error: shardplan: tp must be divisible by ep [*] etp under dispatch kind all_reduce
// expect-errors: 1
#include <shardplan/shardplan.hpp>

using namespace shardplan;

constexpr model_spec dims() {
  model_spec m;
  m.num_hidden_layers = 8;
  m.num_attention_heads = 8;
  m.num_key_value_heads = 4;
  m.num_experts = 8;
  m.num_experts_per_tok = 2;
  m.moe_intermediate_size = 16;
  m.vocab_size = 96;
  return m;
}
struct tiny final {
  static constexpr model_spec spec = dims();
};

#ifdef SHARDPLAN_FIXED
using outcome = checked<plan<fully_sharded<2>, tensor_parallel<2>, expert_parallel<4, token_dispatch>>, tiny>;
#else
using outcome = checked<plan<fully_sharded<2>, tensor_parallel<2>, expert_parallel<4, all_reduce>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
