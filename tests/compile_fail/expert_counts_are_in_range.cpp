// SPDX-License-Identifier: Apache-2.0
// A negative number of experts.
// expect-error: expert_counts_are_in_range.*num_experts<-8>
// expect-error: shardplan: num_experts and sliding_window must not be negative, and decoder_sparse_step be at least 1
// expect-errors: 1
#include <shardplan/shardplan.hpp>

using namespace shardplan;

constexpr model_spec dims() {
  model_spec m;
  m.num_hidden_layers = 8;
  m.num_attention_heads = 8;
  m.num_key_value_heads = 4;
  m.num_experts_per_tok = 2;
  m.moe_intermediate_size = 16;
  m.vocab_size = 96;
#ifdef SHARDPLAN_FIXED
  m.num_experts = 8;
#else
  m.num_experts = -8;
#endif
  return m;
}
struct tiny final {
  static constexpr model_spec spec = dims();
};

using outcome = checked<plan<>, tiny>;
static_assert(sizeof(outcome) == 1);
