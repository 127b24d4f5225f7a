// SPDX-License-Identifier: Apache-2.0
// What is measured of compilers: NUM_PLANS plans, no two alike, each checked for a model. 0: the library alone.
#include <shardplan/shardplan.hpp>

using namespace shardplan;

#if NUM_PLANS > 0
struct qwen3 final {
  static constexpr model_spec spec = models::qwen3_30b_a3b;
};
template <num N>
struct mine final
    : plan<replicated<N>, fully_sharded<2>, context_parallel<2, ring, zigzag>, tensor_parallel<4>, expert_parallel<8>> {
};

template <class>
inline constexpr num ranks_of = 0;
template <num... N>
inline constexpr num ranks_of<std::integer_sequence<num, N...>> = (checked<mine<N + 1>, qwen3>::world_size + ...);
static_assert(ranks_of<std::make_integer_sequence<num, NUM_PLANS>> == NUM_PLANS * (NUM_PLANS + 1) * 8);
#endif
