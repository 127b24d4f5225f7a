// SPDX-License-Identifier: Apache-2.0
// Three rows for two data-parallel ranks.
// expect-error: rows_divide_over_data_and_micro_batches.*rows<3>.*shard_degree<2>
// expect-error: shardplan: rows must be divisible by dp_replicate [*] fsdp [*] micro-batches
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
using outcome = checked<plan<fully_sharded<2>>, tiny, batch_of<batch_spec{0, 4}>>;
#else
using outcome = checked<plan<fully_sharded<2>>, tiny, batch_of<batch_spec{0, 3}>>;
#endif
static_assert(sizeof(outcome) == 1);
