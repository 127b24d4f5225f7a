// SPDX-License-Identifier: Apache-2.0
// cp and tp, 2 each, are the ranks that ep and etp, 2 each, see too.
// expect-error: composed_axes_are_apart.*view_axis<shardplan::axis::tp, 2, 1>.*axis::etp, 2, 1>
// expect-error: composed_axes_are_apart.*view_axis<shardplan::axis::cp, 2, 2>.*axis::ep, 2, 2>
// expect-error: shardplan: axes that are composed must be apart
// expect-errors: 2
#include <shardplan/mesh_algebra.hpp>

using namespace shardplan;

struct mine final
    : plan<fully_sharded<2>, context_parallel<2>, tensor_parallel<2>, expert_parallel<2, expert_tensor_parallel<2>>> {};
constexpr auto dense = dense_mesh<mine>();    // (pp 1, dp_replicate 1, fsdp 2, cp 2, tp 2)
constexpr auto expert = expert_mesh<mine>();  // (pp 1, dp_replicate 1, efsdp 2, ep 2, etp 2)

#ifdef SHARDPLAN_FIXED
constexpr auto tensor_and_experts = compose(select<axis::tp>(dense), select<axis::ep>(expert));
constexpr auto all = compose(select<axis::cp>(dense), select<axis::efsdp, axis::etp>(expert));
#else
constexpr auto tensor_and_experts = compose(select<axis::tp>(dense), select<axis::etp>(expert));
constexpr auto all = compose(select<axis::cp>(dense), select<axis::efsdp, axis::ep>(expert));
#endif
static_assert(tensor_and_experts.size + all.size == 12);
