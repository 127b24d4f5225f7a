// SPDX-License-Identifier: Apache-2.0
// A negative length.
// expect-error: batch_sizes_are_in_range.*length<-1>
// expect-error: shardplan: length, rows and micro-batches must not be negative, and at most 2147483647
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
using outcome = checked<plan<>, tiny, batch_of<batch_spec{1}>>;
#else
using outcome = checked<plan<>, tiny, batch_of<batch_spec{-1}>>;
#endif
static_assert(sizeof(outcome) == 1);
