// SPDX-License-Identifier: Apache-2.0
// A plan that breaks five rules is told of all five at once, and of nothing else.
// expect-error: heads_divide_over_tensor_and_ulysses.*num_heads<32>.*tensor_degree<3>.*five_wrong.*qwen3
// expect-error: kv_heads_divide_over_tensor.*num_kv_heads<4>.*tensor_degree<3>.*kv_replicate<0>.*five_wrong.*qwen3
// expect-error: vocabulary_divides_over_tensor.*vocab_size<151936>.*tensor_degree<3>.*five_wrong.*qwen3
// expect-error: even_stages_divide_the_layers.*num_layers<48>.*pipeline_degree<5>.*five_wrong.*qwen3
// expect-error: experts_divide_over_expert_degree.*num_experts<128>.*expert_degree<7>.*five_wrong.*qwen3
// expect-told: tp [*] the Ulysses degree .num_heads<32>, tensor_degree<3>, ulysses_degree<1>, five_wrong, qwen3.
// expect-told: kv_replicate divide it .num_kv_heads<4>, tensor_degree<3>, kv_replicate<0>, five_wrong, qwen3.
// expect-told: vocab_pad given .vocab_size<151936>, tensor_degree<3>, vocab_pad<0>, five_wrong, qwen3.
// expect-told: the stages listed .num_layers<48>, pipeline_degree<5>, virtual_stages<1>, five_wrong, qwen3.
// expect-told: expert_pad given .num_experts<128>, expert_degree<7>, expert_pad<0>, five_wrong, qwen3.
// expect-errors: 5
#include <shardplan/shardplan.hpp>

using namespace shardplan;

struct qwen3 final {
  static constexpr model_spec spec = models::qwen3_30b_a3b;
};
#ifdef SHARDPLAN_FIXED
struct five_wrong final : plan<pipeline_parallel<4>, fully_sharded<8>, tensor_parallel<4>, expert_parallel<8>> {};
#else
struct five_wrong final : plan<pipeline_parallel<5>, fully_sharded<7>, tensor_parallel<3>, expert_parallel<7>> {};
#endif
static_assert(checked<five_wrong, qwen3>::world_size > 100);
