// SPDX-License-Identifier: Apache-2.0
// Documents of twelve tokens in a row of thirteen.
// expect-error: documents_fill_the_row.*document_tokens<12>.*length<13>
// expect-error: shardplan: every packed document must have a token, and length must be their sum
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
using outcome = checked<plan<>, tiny, batch_of<batch_spec{12, 0, 0, {{5, 7}, 2}}>>;
#else
using outcome = checked<plan<>, tiny, batch_of<batch_spec{13, 0, 0, {{5, 7}, 2}}>>;
#endif
static_assert(sizeof(outcome) == 1);
