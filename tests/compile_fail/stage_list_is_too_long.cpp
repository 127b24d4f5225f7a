// SPDX-License-Identifier: Apache-2.0
// A list of more stages than a plan can hold.
// expect-error: shardplan: a list of stages must hold at most 128 of them
// expect-errors: 1 to 2
#include <shardplan/shardplan.hpp>

using namespace shardplan;

template <std::size_t>
inline constexpr num one = 1;
template <class Indices>
struct listed;
template <std::size_t... I>
struct listed<std::index_sequence<I...>> {
  using type = plan<explicit_stages<one<I>...>>;
};

#ifdef SHARDPLAN_FIXED
using mine = listed<std::make_index_sequence<128>>::type;
#else
using mine = listed<std::make_index_sequence<129>>::type;
#endif
static_assert(sizeof(mine) > 0);
