// SPDX-License-Identifier: Apache-2.0
// Two plans that are wrong by the same numbers are both told of, each by its name.
// expect-error: even_stages_divide_the_layers.*num_layers<48>.*pipeline_degree<5>.*morning.*qwen3
// expect-error: even_stages_divide_the_layers.*num_layers<48>.*pipeline_degree<5>.*evening.*qwen3
// expect-told: .num_layers<48>, pipeline_degree<5>, virtual_stages<1>, morning, qwen3.
// expect-told: .num_layers<48>, pipeline_degree<5>, virtual_stages<1>, evening, qwen3.
// expect-errors: 2
#include <shardplan/shardplan.hpp>

using namespace shardplan;

struct qwen3 final {
  static constexpr model_spec spec = models::qwen3_30b_a3b;
};
#ifdef SHARDPLAN_FIXED
constexpr num stages = 6;
#else
constexpr num stages = 5;
#endif
struct morning final : plan<pipeline_parallel<stages>, fully_sharded<2>> {};
struct evening final : plan<pipeline_parallel<stages>, tensor_parallel<2>> {};
static_assert(checked<morning, qwen3>::world_size > 0);
static_assert(checked<evening, qwen3>::world_size > 0);
