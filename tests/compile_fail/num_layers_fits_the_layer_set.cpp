// SPDX-License-Identifier: Apache-2.0
// More layers than a set of layers holds.
// expect-error: num_layers_fits_the_layer_set.*num_layers<513>
// expect-error: shardplan: num_layers must be at most 512, which a set of layers can hold
// expect-errors: 1
#include <shardplan/shardplan.hpp>

using namespace shardplan;

constexpr model_spec dims() {
  model_spec m;
  m.num_attention_heads = 8;
  m.num_key_value_heads = 4;
  m.num_experts = 8;
  m.num_experts_per_tok = 2;
  m.moe_intermediate_size = 16;
  m.vocab_size = 96;
#ifdef SHARDPLAN_FIXED
  m.num_hidden_layers = 512;
#else
  m.num_hidden_layers = 513;
#endif
  return m;
}
struct tiny final {
  static constexpr model_spec spec = dims();
};

using outcome = checked<plan<>, tiny>;
static_assert(sizeof(outcome) == 1);
