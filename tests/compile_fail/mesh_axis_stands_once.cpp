// SPDX-License-Identifier: Apache-2.0
// An axis twice: selected, composed with itself, as a new name that is taken, and in a root.
// expect-error: an_axis_stands_once.*axis_named<shardplan::axis::cp>
// expect-error: axis::tp>, shardplan::mesh_view<mine, shardplan::view_axis<shardplan::axis::cp, 2, 2>
// expect-error: axis::tp>, shardplan::mesh_view<mine, shardplan::view_axis<shardplan::axis::pp, 1, 8>
// expect-error: an_axis_stands_once.*axis_named<shardplan::axis::pp>
// expect-error: an_axis_stands_once.*axis_named<shardplan::axis::fsdp>, shardplan::axis_of
// expect-error: shardplan: an axis must stand in a mesh only once
// expect-errors: 5
#include <shardplan/mesh_algebra.hpp>

using namespace shardplan;

struct mine final
    : plan<fully_sharded<2>, context_parallel<2>, tensor_parallel<2>, expert_parallel<2, expert_tensor_parallel<2>>> {};
constexpr auto dense = dense_mesh<mine>();  // (pp 1, dp_replicate 1, fsdp 2, cp 2, tp 2)

#ifdef SHARDPLAN_FIXED
constexpr auto selected_once = select<axis::cp, axis::tp>(dense);
constexpr auto composed_once = compose(select<axis::cp, axis::tp>(dense), select<axis::fsdp>(dense));
constexpr auto merged = flatten<axis::fsdp_cp, axis::fsdp, axis::cp>(dense);
constexpr auto parts = unflatten<axis::cp, axis_of<axis::cp_ring, 1>, axis_of<axis::cp_ulysses, 2>>(dense);
struct cluster final : mesh_root<axis_of<axis::fsdp, 2>, axis_of<axis::cp, 4>> {};
#else
constexpr auto selected_twice = select<axis::cp, axis::tp, axis::cp>(dense);
constexpr auto composed_twice = compose(select<axis::cp, axis::tp>(dense), select<axis::tp>(dense));
constexpr auto merged = flatten<axis::pp, axis::fsdp, axis::cp>(dense);
constexpr auto parts = unflatten<axis::cp, axis_of<axis::cp_ring, 1>, axis_of<axis::tp, 2>>(dense);
struct cluster final : mesh_root<axis_of<axis::fsdp, 2>, axis_of<axis::fsdp, 4>> {};
#endif
