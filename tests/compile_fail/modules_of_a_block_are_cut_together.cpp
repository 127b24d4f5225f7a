// SPDX-License-Identifier: Apache-2.0
// A whole q_proj beside an o_proj that is cut.
// expect-error: modules_of_a_block_are_cut_together.*blocks_cut_in_part<8>
// expect-error: shardplan: all modules of an attention, a feed-forward layer or its experts must be cut, or none
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
using override_given = override_modules<"layers.*.self_attn", module_style::replicated>;
#else
using override_given = override_modules<"layers.*.self_attn.q_proj", module_style::replicated>;
#endif
using outcome = checked<plan<tensor_parallel<2>, override_given>, tiny>;
static_assert(sizeof(outcome) == 1);
