// SPDX-License-Identifier: Apache-2.0
// More stages than a list of stages holds.
// expect-error: num_stages_fits_the_stage_list.*pipeline_degree<256>
// expect-error: shardplan: pp [*] virtual_stages must be at most 128, which a list of stages can hold
// expect-errors: 1
#include <shardplan/shardplan.hpp>

using namespace shardplan;

constexpr model_spec dims() {
  model_spec m;
  m.num_attention_heads = 8;
  m.num_key_value_heads = 4;
  m.num_experts = 8;
  m.num_experts_per_tok = 2;
  m.moe_intermediate_size = 16;
  m.vocab_size = 96;
  m.num_hidden_layers = 512;
  return m;
}
struct tiny final {
  static constexpr model_spec spec = dims();
};

#ifdef SHARDPLAN_FIXED
using outcome = checked<plan<pipeline_parallel<128>>, tiny>;
#else
using outcome = checked<plan<pipeline_parallel<256>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
