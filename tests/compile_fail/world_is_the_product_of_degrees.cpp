// SPDX-License-Identifier: Apache-2.0
// Eight ranks for a plan of four.
// expect-error: world_is_the_product_of_degrees.*world<8>.*tensor_degree<4>
// expect-error: shardplan: world must equal pp [*] dp_replicate [*] fsdp [*] cp [*] tp
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
using outcome = checked<plan<tensor_parallel<4>, fully_sharded<2>>, tiny, on_ranks<8>>;
#else
using outcome = checked<plan<tensor_parallel<4>>, tiny, on_ranks<8>>;
#endif
static_assert(sizeof(outcome) == 1);
