// SPDX-License-Identifier: Apache-2.0
// Two by three ranks are not four.
// expect-error: ulysses_times_ring_is_the_context_degree.*ulysses_degree<2>.*ring_degree<3>.*context_degree<4>
// expect-error: shardplan: the Ulysses degree [*] the ring degree must equal cp
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
using outcome = checked<plan<context_parallel<4, ulysses_ring<2, 2>>>, tiny>;
#else
using outcome = checked<plan<context_parallel<4, ulysses_ring<2, 3>>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
