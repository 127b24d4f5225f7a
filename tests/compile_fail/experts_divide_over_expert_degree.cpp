// SPDX-License-Identifier: Apache-2.0
// Eight experts over three ranks.
// expect-error: experts_divide_over_expert_degree.*num_experts<8>.*expert_degree<3>
// expect-error: shardplan: num_experts must be divisible by ep, or expert_pad given
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
using outcome = checked<plan<fully_sharded<3>, expert_parallel<3, pad_experts>>, tiny>;
#else
using outcome = checked<plan<fully_sharded<3>, expert_parallel<3>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
