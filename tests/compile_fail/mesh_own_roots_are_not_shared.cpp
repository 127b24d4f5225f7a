// SPDX-License-Identifier: Apache-2.0
// Roots of one's own are told apart by their names, whatever their axes; and a plan is another root.
// expect-error: views_share_a_root.*first_node.*second_node
// expect-error: views_share_a_root.*first_node.*mine
// expect-error: shardplan: views must share a root to be composed
// expect-errors: 2
#include <shardplan/mesh_algebra.hpp>

using namespace shardplan;

struct first_node final : mesh_root<axis_of<axis::fsdp, 4>, axis_of<axis::tp, 2>> {};
struct second_node final : mesh_root<axis_of<axis::fsdp, 4>, axis_of<axis::tp, 2>> {};
struct mine final : plan<fully_sharded<4>, tensor_parallel<2>> {};

constexpr auto sharded = select<axis::fsdp>(root_mesh<first_node>());
#ifdef SHARDPLAN_FIXED
static_assert(compose(sharded, select<axis::tp>(root_mesh<first_node>())).size == 8);
#else
static_assert(compose(sharded, select<axis::tp>(root_mesh<second_node>())).size >= 4);
static_assert(compose(sharded, select<axis::tp>(root_mesh<mine>())).size >= 4);
#endif
