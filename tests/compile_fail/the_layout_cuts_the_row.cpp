// SPDX-License-Identifier: Apache-2.0
// Context parallelism that leaves every rank the whole row.
// expect-error: the_layout_cuts_the_row.*context_degree<2>
// expect-error: shardplan: cp must be 1 under the layout full, which leaves every rank the whole row
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
using outcome = checked<plan<context_parallel<2, contiguous>>, tiny>;
#else
using outcome = checked<plan<context_parallel<2, full>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
