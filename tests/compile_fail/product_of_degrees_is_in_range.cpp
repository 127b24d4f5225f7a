// SPDX-License-Identifier: Apache-2.0
// More ranks than an int counts.
// expect-error: product_of_degrees_is_in_range.*replicate_degree<65536>.*shard_degree<32768>
// expect-error: shardplan: pp [*] dp_replicate [*] fsdp [*] cp [*] tp must be at most 2147483647
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
using outcome = checked<plan<replicated<32768>, fully_sharded<32768>>, tiny>;
#else
using outcome = checked<plan<replicated<65536>, fully_sharded<32768>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
