// SPDX-License-Identifier: Apache-2.0
// A plan that breaks two rules is told of both, and of nothing else.
// expect-error: heads_divide_over_tensor_and_ulysses.*num_heads<32>.*tensor_degree<64>.*two_wrong.*qwen3
// expect-error: shardplan: num_heads must be divisible by tp [*] the Ulysses degree
// expect-error: even_stages_divide_the_layers.*num_layers<48>.*pipeline_degree<5>.*two_wrong.*qwen3
// expect-error: shardplan: num_layers must be divisible by pp [*] virtual_stages, or the stages listed
// expect-errors: 2
#include <shardplan/shardplan.hpp>

using namespace shardplan;

struct qwen3 final {
  static constexpr model_spec spec = models::qwen3_30b_a3b;
};
#ifdef SHARDPLAN_FIXED
struct two_wrong final : plan<pipeline_parallel<4>, tensor_parallel<32>, replicate_kv_heads> {};
#else
struct two_wrong final : plan<pipeline_parallel<5>, tensor_parallel<64>, replicate_kv_heads> {};
#endif
static_assert(checked<two_wrong, qwen3>::world_size >= 128);
