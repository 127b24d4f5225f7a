// SPDX-License-Identifier: Apache-2.0
// A degree of 0 in a root of one's own, and in a plan that no rule was asked about.
// expect-error: degrees_of_a_mesh_are_in_range.*axis_of<shardplan::axis::fsdp, 0>
// expect-error: degrees_of_a_mesh_are_in_range.*axis_of<shardplan::axis::etp, 0>
// expect-error: shardplan: every degree of a mesh must be at least 1
// expect-errors: 2
#include <shardplan/mesh_algebra.hpp>

using namespace shardplan;

#ifdef SHARDPLAN_FIXED
constexpr num fsdp = 4, etp = 1;
#else
constexpr num fsdp = 0, etp = 0;
#endif
struct cluster final : mesh_root<axis_of<axis::fsdp, fsdp>, axis_of<axis::tp, 2>> {};
using expert = decltype(expert_mesh<plan<fully_sharded<4>, expert_tensor_parallel<etp>>>());
