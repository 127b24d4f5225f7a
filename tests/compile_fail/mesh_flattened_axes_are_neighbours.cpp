// SPDX-License-Identifier: Apache-2.0
// An axis between them, the wrong order, and a gap where an axis was not selected.
// expect-error: flattened_axes_are_neighbours.*axis_named<shardplan::axis::fsdp>.*axis_named<shardplan::axis::tp>
// expect-error: flattened_axes_are_neighbours.*axis_named<shardplan::axis::cp>.*axis_named<shardplan::axis::fsdp>
// expect-error: flattened_axes_are_neighbours.*mesh_view<mine, shardplan::view_axis<shardplan::axis::fsdp, 2, 4>
// expect-error: shardplan: axes that are flattened must be neighbours in the view, the slowest named first
// expect-errors: 3
#include <shardplan/mesh_algebra.hpp>

using namespace shardplan;

struct mine final
    : plan<fully_sharded<2>, context_parallel<2>, tensor_parallel<2>, expert_parallel<2, expert_tensor_parallel<2>>> {};
constexpr auto dense = dense_mesh<mine>();  // (pp 1, dp_replicate 1, fsdp 2, cp 2, tp 2)

#ifdef SHARDPLAN_FIXED
constexpr auto across = flatten<axis::efsdp, axis::fsdp, axis::cp, axis::tp>(dense);
constexpr auto backwards = flatten<axis::fsdp_cp, axis::fsdp, axis::cp>(dense);
constexpr auto over_a_gap = flatten<axis::efsdp, axis::cp, axis::tp>(select<axis::cp, axis::tp>(dense));
#else
constexpr auto across = flatten<axis::efsdp, axis::fsdp, axis::tp>(dense);
constexpr auto backwards = flatten<axis::fsdp_cp, axis::cp, axis::fsdp>(dense);
constexpr auto over_a_gap = flatten<axis::efsdp, axis::fsdp, axis::tp>(select<axis::fsdp, axis::tp>(dense));
#endif
static_assert(across.size + backwards.size + over_a_gap.size >= 4);
