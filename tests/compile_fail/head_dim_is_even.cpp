// SPDX-License-Identifier: Apache-2.0
// Rotary embedding needs pairs.
// expect-error: head_dim_is_even.*head_dim<7>
// expect-error: shardplan: head_dim must be even
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
#ifdef SHARDPLAN_FIXED
  m.head_dim = 8;
#else
  m.head_dim = 7;
#endif
  return m;
}
struct tiny final {
  static constexpr model_spec spec = dims();
};

using outcome = checked<plan<>, tiny>;
static_assert(sizeof(outcome) == 1);
