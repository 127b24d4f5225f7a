// SPDX-License-Identifier: Apache-2.0
// An odd vocabulary.
// expect-error: vocabulary_divides_over_tensor.*vocab_size<97>.*tensor_degree<2>
// expect-error: shardplan: vocab_size must be divisible by tp, or vocab_pad given
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
#ifdef SHARDPLAN_FIXED
  m.vocab_size = 98;
#else
  m.vocab_size = 97;
#endif
  return m;
}
struct tiny final {
  static constexpr model_spec spec = dims();
};

using outcome = checked<plan<tensor_parallel<2>>, tiny>;
static_assert(sizeof(outcome) == 1);
