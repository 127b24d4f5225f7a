// SPDX-License-Identifier: Apache-2.0
// Sixteen ranks for eight heads.
// expect-error: heads_divide_over_tensor_and_ulysses.*num_heads<8>.*tensor_degree<2>.*ulysses_degree<8>
// expect-error: shardplan: num_heads must be divisible by tp [*] the Ulysses degree
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
using outcome = checked<plan<tensor_parallel<2>, context_parallel<8, ring>, replicate_kv_heads>, tiny>;
#else
using outcome = checked<plan<tensor_parallel<2>, context_parallel<8, ulysses>, replicate_kv_heads>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
