// SPDX-License-Identifier: Apache-2.0
// A type that is no policy.
// expect-error: shardplan: a plan must be made of policies
// expect-errors: 1
#include <shardplan/shardplan.hpp>

using namespace shardplan;

#ifdef SHARDPLAN_FIXED
using mine = plan<tensor_parallel<2>>;
#else
using mine = plan<tensor_parallel<2>, int>;
#endif
static_assert(mine::num_stages == 1);
