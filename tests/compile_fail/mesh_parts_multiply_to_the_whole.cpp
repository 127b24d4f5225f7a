// SPDX-License-Identifier: Apache-2.0
// 4 is neither 2 * 3 nor 0 * 2.
// expect-error:
// parts_multiply_to_the_whole.*axis_named<shardplan::axis::fsdp_cp>.*degree_of_whole<4>.*product_of_parts<6>
// expect-error: parts_multiply_to_the_whole.*degree_of_whole<4>.*product_of_parts<0>
// expect-error: shardplan: the degrees of the parts must multiply to the degree of the axis that is split
// expect-errors: 2
#include <shardplan/mesh_algebra.hpp>

using namespace shardplan;

struct mine final : plan<fully_sharded<2>, context_parallel<2>, tensor_parallel<2>> {};
constexpr auto root = root_mesh<mine>();  // (pp 1, dp_replicate 1, fsdp_cp 4, tp 2)

#ifdef SHARDPLAN_FIXED
constexpr auto first = unflatten<axis::fsdp_cp, axis_of<axis::fsdp, 2>, axis_of<axis::cp, 2>>(root);
constexpr auto second = unflatten<axis::fsdp_cp, axis_of<axis::fsdp, 4>, axis_of<axis::cp, 1>>(root);
#else
constexpr auto first = unflatten<axis::fsdp_cp, axis_of<axis::fsdp, 2>, axis_of<axis::cp, 3>>(root);
constexpr auto second = unflatten<axis::fsdp_cp, axis_of<axis::fsdp, 0>, axis_of<axis::cp, 2>>(root);
#endif
static_assert(first.size >= 8 && second.size >= 8);
