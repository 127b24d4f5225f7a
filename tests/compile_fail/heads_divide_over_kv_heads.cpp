// SPDX-License-Identifier: Apache-2.0
// Key/value heads that serve unequally many heads.
// expect-error: heads_divide_over_kv_heads.*num_heads<8>.*num_kv_heads<3>
// expect-error: shardplan: num_heads must be divisible by num_kv_heads
// expect-errors: 1
#include <shardplan/shardplan.hpp>

using namespace shardplan;

constexpr model_spec dims() {
  model_spec m;
  m.num_hidden_layers = 8;
  m.num_attention_heads = 8;
  m.num_experts = 8;
  m.num_experts_per_tok = 2;
  m.moe_intermediate_size = 16;
  m.vocab_size = 96;
#ifdef SHARDPLAN_FIXED
  m.num_key_value_heads = 2;
#else
  m.num_key_value_heads = 3;
#endif
  return m;
}
struct tiny final {
  static constexpr model_spec spec = dims();
};

using outcome = checked<plan<>, tiny>;
static_assert(sizeof(outcome) == 1);
