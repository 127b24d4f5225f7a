// SPDX-License-Identifier: Apache-2.0
// 6 ranks have no view of 4 experts each.
// expect-error: a_view_has_the_ranks_of_its_root.*ranks_of_view<4>.*ranks_of_root<6>
// expect-error: shardplan: the degrees of a view must multiply to the number of ranks of its root
// expect-errors: 1
#include <shardplan/mesh_algebra.hpp>

using namespace shardplan;

#ifdef SHARDPLAN_FIXED
constexpr auto expert = expert_mesh<plan<fully_sharded<6>, expert_parallel<3>>>();
#else
constexpr auto expert = expert_mesh<plan<fully_sharded<6>, expert_parallel<4>>>();
#endif
static_assert(expert.size >= 4);
