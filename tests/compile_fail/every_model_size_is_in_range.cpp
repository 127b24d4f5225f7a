// SPDX-License-Identifier: Apache-2.0
// A model without hidden size.
// expect-error: every_model_size_is_in_range.*hidden_size<0>
// expect-error: shardplan: every size of a model must be at least 1 and at most 2147483647
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
  m.hidden_size = 1;
#else
  m.hidden_size = 0;
#endif
  return m;
}
struct tiny final {
  static constexpr model_spec spec = dims();
};

using outcome = checked<plan<>, tiny>;
static_assert(sizeof(outcome) == 1);
