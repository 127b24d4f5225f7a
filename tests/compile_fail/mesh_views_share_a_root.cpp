// SPDX-License-Identifier: Apache-2.0
// Two plans of equal degrees are still two worlds, and an axis of one is none of the other.
// expect-error: views_share_a_root.*actor.*rollout
// expect-error: shardplan: views must share a root to be composed
// expect-errors: 1
#include <shardplan/mesh_algebra.hpp>

using namespace shardplan;

struct actor final : plan<fully_sharded<4>, tensor_parallel<2>> {};
struct rollout final : plan<fully_sharded<4>, tensor_parallel<2>> {};

constexpr auto sharded = select<axis::fsdp>(dense_mesh<actor>());
#ifdef SHARDPLAN_FIXED
constexpr auto both = compose(sharded, select<axis::tp>(dense_mesh<actor>()));
#else
constexpr auto both = compose(sharded, select<axis::tp>(dense_mesh<rollout>()));
#endif
static_assert(both.size >= 4);
