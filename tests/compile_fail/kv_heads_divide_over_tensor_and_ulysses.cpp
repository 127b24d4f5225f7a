// SPDX-License-Identifier: Apache-2.0
// Ulysses over more ranks than key/value heads.
// expect-error: kv_heads_divide_over_tensor_and_ulysses.*num_kv_heads<4>.*ulysses_degree<8>
// expect-error: shardplan: num_kv_heads must be divisible by tp [*] the Ulysses degree, or with kv_replicate divide it
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
using outcome = checked<plan<context_parallel<8, ring>>, tiny>;
#else
using outcome = checked<plan<context_parallel<8, ulysses>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
