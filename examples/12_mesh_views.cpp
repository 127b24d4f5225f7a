// SPDX-License-Identifier: Apache-2.0
// Meshes as types: the views of a plan, and what flatten, unflatten, select and compose make of them. Views of two
// plans are not composed, an axis is not used twice, and none that the view has not is asked: these lines would not
// compile.
#include <cstdio>
#include <shardplan/shardplan.hpp>

using namespace shardplan;

struct mine final
    : plan<pipeline_parallel<2>, fully_sharded<2>, context_parallel<2>, tensor_parallel<2>, expert_parallel<4>> {};

constexpr auto root = root_mesh<mine>();      // (pp, dp_replicate, fsdp_cp, tp)
constexpr auto dense = dense_mesh<mine>();    // (pp, dp_replicate, fsdp, cp, tp)
constexpr auto expert = expert_mesh<mine>();  // (pp, dp_replicate, efsdp, ep, etp), the same 16 ranks

// One view made of another is the same type, whichever way it was made.
static_assert(unflatten<axis::fsdp_cp, axis_of<axis::fsdp, 2>, axis_of<axis::cp, 2>>(root) == dense);
static_assert(flatten<axis::fsdp_cp, axis::fsdp, axis::cp>(dense) == root);

// A few axes are a submesh, of which there is one for every place on the others.
constexpr auto shards = select<axis::fsdp_cp>(root);
static_assert(shards.size == 4 && shards.stride<axis::fsdp_cp> == 2);
constexpr auto stages_of_experts = compose(select<axis::ep>(expert), select<axis::pp>(dense));
//        compose(shards, select<axis::ep>(expert)): fsdp_cp and ep are not apart, they share ranks
//        select<axis::ep>(dense):                   ep is no axis of the dense view

// A root of one's own: any ranks that stand in rows. What is constant is a type, so groups of a kernel launch are too.
struct rack final : mesh_root<axis_of<axis::dp_replicate, 3>, axis_of<axis::tp, 8>> {};
constexpr auto halves = unflatten<axis::tp, axis_of<axis::tp_heads, 2>, axis_of<axis::tp_copies, 4>>(root_mesh<rack>());
static_assert(group<axis::tp_heads>(halves, 13).first == 9);

template <class View>
void show(const char* name, View view, num rank) {
  std::printf("%-18s", name);
  for (const num place : coordinates(view, rank)) std::printf(" %lld", static_cast<long long>(place));
  std::printf("  of");
  for (const mesh_axis& a : view.shape.axes)
    std::printf(" %.*s=%lld", static_cast<int>(name_of(a.name).size()), name_of(a.name).data(),
                static_cast<long long>(a.degree));
  const rank_group g = group(view, rank);
  std::printf("  ranks");
  for (num i = 0; i < g.size() && g.size() < mine::world_size; ++i)
    std::printf(" %lld", static_cast<long long>(g.member(i)));
  std::printf(g.size() < mine::world_size ? "\n" : " all\n");
}

int main() {
  show("root", root, 13);
  show("dense", dense, 13);
  show("expert", expert, 13);
  show("shards", shards, 13);
  show("stages_of_experts", stages_of_experts, 13);
  show("copies in a rack", select<axis::tp_copies>(halves), 13);
}
//> root               1 0 2 1  of pp=2 dp_replicate=1 fsdp_cp=4 tp=2  ranks all
//> dense              1 0 1 0 1  of pp=2 dp_replicate=1 fsdp=2 cp=2 tp=2  ranks all
//> expert             1 0 1 1 0  of pp=2 dp_replicate=1 efsdp=2 ep=4 etp=1  ranks all
//> shards             2  of fsdp_cp=4  ranks 9 11 13 15
//> stages_of_experts  1 1  of pp=2 ep=4  ranks 4 5 6 7 12 13 14 15
//> copies in a rack   1  of tp_copies=4  ranks 12 13 14 15
