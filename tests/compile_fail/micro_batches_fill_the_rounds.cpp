// SPDX-License-Identifier: Apache-2.0
// Three micro-batches in rounds of two.
// expect-error: micro_batches_fill_the_rounds.*num_micro_batches<3>.*pipeline_degree<2>
// expect-error: shardplan: micro-batches must be divisible by pp under an interleaved schedule
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
using outcome = checked<plan<pipeline_parallel<2, interleaved<2>>>, tiny, batch_of<batch_spec{0, 0, 4}>>;
#else
using outcome = checked<plan<pipeline_parallel<2, interleaved<2>>>, tiny, batch_of<batch_spec{0, 0, 3}>>;
#endif
static_assert(sizeof(outcome) == 1);
