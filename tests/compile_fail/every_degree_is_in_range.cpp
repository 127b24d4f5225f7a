// SPDX-License-Identifier: Apache-2.0
// A degree of 0.
// expect-error: every_degree_is_in_range.*tensor_degree<0>
// expect-error: shardplan: every degree must be at least 1 and at most 2147483647
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
using outcome = checked<plan<tensor_parallel<1>>, tiny>;
#else
using outcome = checked<plan<tensor_parallel<0>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
