// SPDX-License-Identifier: Apache-2.0
// Experts of a width that etp cannot cut.
// expect-error: expert_width_divides_over_expert_tensor.*moe_intermediate_size<15>.*expert_tensor_degree<2>
// expect-error: shardplan: moe_intermediate_size must be at least 1 and divisible by etp
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
  m.vocab_size = 96;
#ifdef SHARDPLAN_FIXED
  m.moe_intermediate_size = 16;
#else
  m.moe_intermediate_size = 15;
#endif
  return m;
}
struct tiny final {
  static constexpr model_spec spec = dims();
};

using outcome = checked<plan<tensor_parallel<2>, expert_tensor_parallel<2>>, tiny>;
static_assert(sizeof(outcome) == 1);
