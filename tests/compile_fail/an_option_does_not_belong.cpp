// SPDX-License-Identifier: Apache-2.0
// An attention method is no option of tensor parallelism.
// expect-error: an_option_does_not_belong.*ring.*tensor_parallel<2, (shardplan::)?ring>
// expect-error: shardplan: an option must belong to the policy that it is given to
// expect-errors: 1
#include <shardplan/shardplan.hpp>

using namespace shardplan;

#ifdef SHARDPLAN_FIXED
using foreign = plan<tensor_parallel<2>, context_parallel<2, ring>>;
#else
using foreign = plan<tensor_parallel<2, ring>, context_parallel<2>>;
#endif
static_assert(foreign::world_size == 4);
