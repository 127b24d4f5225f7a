// SPDX-License-Identifier: Apache-2.0
// The dense view has no expert axis, and a submesh has only what was selected.
// expect-error: an_axis_is_of_the_view.*axis_named<shardplan::axis::ep>
// expect-error: an_axis_is_of_the_view.*axis_named<shardplan::axis::etp>
// expect-error: an_axis_is_of_the_view.*axis_named<shardplan::axis::cp>, shardplan::mesh_view<mine
// expect-error: an_axis_is_of_the_view.*axis_named<shardplan::axis::efsdp>
// expect-error: an_axis_is_of_the_view.*axis_named<shardplan::axis::fsdp_cp>
// expect-error: shardplan: an axis that is asked for must be one of the view
// expect-errors: 5
#include <shardplan/mesh_algebra.hpp>

using namespace shardplan;

struct mine final
    : plan<fully_sharded<2>, context_parallel<2>, tensor_parallel<2>, expert_parallel<2, expert_tensor_parallel<2>>> {};
constexpr auto dense = dense_mesh<mine>();  // (pp 1, dp_replicate 1, fsdp 2, cp 2, tp 2)
constexpr auto heads = select<axis::tp>(dense);

num ask(num rank) {
#ifdef SHARDPLAN_FIXED
  constexpr auto expert = expert_mesh<mine>();
  constexpr auto one = select<axis::ep>(expert);
  constexpr auto split = unflatten<axis::fsdp_cp, axis_of<axis::fsdp, 4>, axis_of<axis::cp, 1>>(root_mesh<mine>());
  return group<axis::etp>(expert, rank).first + coordinate<axis::tp>(heads, rank) + expert.degree<axis::efsdp> +
         one.size + split.size;
#else
  constexpr auto one = select<axis::ep>(dense);
  constexpr auto split = unflatten<axis::fsdp_cp, axis_of<axis::fsdp, 4>, axis_of<axis::cp, 1>>(dense);
  return group<axis::etp>(dense, rank).first + coordinate<axis::cp>(heads, rank) + dense.degree<axis::efsdp> +
         one.size + split.size;
#endif
}
