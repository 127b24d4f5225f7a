// SPDX-License-Identifier: Apache-2.0
// A dense layer that tensor parallelism cannot cut.
// expect-error: dense_width_divides_over_tensor.*intermediate_size<6>.*tensor_degree<4>
// expect-error: shardplan: intermediate_size must be at least 1 and divisible by tp
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
  m.decoder_sparse_step = 2;
#ifdef SHARDPLAN_FIXED
  m.intermediate_size = 8;
#else
  m.intermediate_size = 6;
#endif
  return m;
}
struct tiny final {
  static constexpr model_spec spec = dims();
};

using outcome = checked<plan<tensor_parallel<4>>, tiny>;
static_assert(sizeof(outcome) == 1);
