// SPDX-License-Identifier: Apache-2.0
// One module override more than a plan can hold.
// expect-error: shardplan: a plan must hold at most 24 module overrides
// expect-errors: 1
#include <shardplan/shardplan.hpp>

using namespace shardplan;

template <std::size_t>
using again = override_modules<"layers.0.self_attn", module_style::ring>;
template <class Indices>
struct many;
template <std::size_t... I>
struct many<std::index_sequence<I...>> {
  using type = plan<tensor_parallel<2>, again<I>...>;
};

#ifdef SHARDPLAN_FIXED
using mine = many<std::make_index_sequence<24>>::type;
#else
using mine = many<std::make_index_sequence<25>>::type;
#endif
static_assert(mine::world_size == 2);
