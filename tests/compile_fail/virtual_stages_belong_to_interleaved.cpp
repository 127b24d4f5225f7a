// SPDX-License-Identifier: Apache-2.0
// An interleaved schedule of one stage per rank.
// expect-error: virtual_stages_belong_to_interleaved.*virtual_stages<1>.*interleaved<1>
// expect-error: shardplan: virtual_stages must be at least 2 when the schedule is interleaved, and 1 otherwise
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
using outcome = checked<plan<pipeline_parallel<2, interleaved<2>>>, tiny>;
#else
using outcome = checked<plan<pipeline_parallel<2, interleaved<1>>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
