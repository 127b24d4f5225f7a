// SPDX-License-Identifier: Apache-2.0
// Three stages listed for two.
// expect-error: one_listed_stage_per_stage.*listed_stages<3>.*pipeline_degree<2>
// expect-error: shardplan: the stages listed must be pp [*] virtual_stages
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
using outcome = checked<plan<pipeline_parallel<2>, explicit_stages<3, 3, 2>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
