// SPDX-License-Identifier: Apache-2.0
// A degree given twice, and an option given inside and beside the policy it belongs to.
// expect-error: a_policy_settles_what_is_settled.*tensor_parallel<4>
// expect-error: a_policy_settles_what_is_settled.*replicate_kv_heads
// expect-error: shardplan: a plan must settle each degree and each option once
// expect-errors: 2
#include <shardplan/shardplan.hpp>

using namespace shardplan;

#ifdef SHARDPLAN_FIXED
using twice = plan<tensor_parallel<2>, fully_sharded<2>, replicate_kv_heads>;
#else
using twice = plan<tensor_parallel<2, replicate_kv_heads>, fully_sharded<2>, tensor_parallel<4>, replicate_kv_heads>;
#endif
static_assert(twice::world_size >= 4);
