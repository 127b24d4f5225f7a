// SPDX-License-Identifier: Apache-2.0
// Nine layers listed of eight.
// expect-error: listed_stages_add_up_to_the_layers.*listed_layers<9>.*num_layers<8>
// expect-error: shardplan: the layers of the stages listed must add up to num_layers
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
using outcome = checked<plan<pipeline_parallel<2>, explicit_stages<3, 5>>, tiny>;
#else
using outcome = checked<plan<pipeline_parallel<2>, explicit_stages<4, 5>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
