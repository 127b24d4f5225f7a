// SPDX-License-Identifier: Apache-2.0
// A layer that the model has not.
// expect-error: overrides_name_modules_of_the_model.*overrides_of_nothing<1>.*num_layers<8>
// expect-error: shardplan: every module override must name modules that the model has
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
using override_given = override_modules<"layers.7.self_attn", module_style::replicated>;
#else
using override_given = override_modules<"layers.8.self_attn", module_style::replicated>;
#endif
using outcome = checked<plan<tensor_parallel<2>, override_given>, tiny>;
static_assert(sizeof(outcome) == 1);
