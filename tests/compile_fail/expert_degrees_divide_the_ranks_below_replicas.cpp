// SPDX-License-Identifier: Apache-2.0
// Replicas are not part of the expert mesh.
// expect-error: expert_degrees_divide_the_ranks_below_replicas.*expert_degree<4>.*replicate_degree<4>
// expect-error: shardplan: ep [*] etp must divide fsdp [*] cp [*] tp
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
using outcome = checked<plan<fully_sharded<4, zero1>, expert_parallel<4>>, tiny>;
#else
using outcome = checked<plan<replicated<4>, expert_parallel<4>>, tiny>;
#endif
static_assert(sizeof(outcome) == 1);
