// SPDX-License-Identifier: Apache-2.0
// A policy of one's own, beside the library's: how context parallelism is carried out, chosen by the hardware. A method
// is any type with `choose_method`; a policy any type with `apply`. Neither is registered anywhere.
#include <cstdio>
#include <shardplan/shardplan.hpp>

using namespace shardplan;

namespace house {

/// All-to-all among the ranks of a node, where links are fast; a ring over the nodes, which needs only neighbours.
template <num RanksPerNode>
struct by_node final {
  static constexpr void choose_method(plan_spec& p) {
    num inside = p.cp < RanksPerNode ? p.cp : RanksPerNode;
    while (inside > 1 && p.cp % inside != 0) --inside;
    p.method = inside == p.cp ? cp_method::ulysses : inside == 1 ? cp_method::ring : cp_method::ulysses_ring;
    if (p.method == cp_method::ulysses_ring) p.method_ulysses = inside, p.method_ring = p.cp / inside;
  }
};

/// What we always pad and copy. `settles` lets the library refuse a plan that says the same twice.
struct our_paddings final {
  static constexpr unsigned settles = slot::kv_replicate | slot::vocab_pad;
  static constexpr void apply(plan_spec& p) { p.kv_replicate = p.vocab_pad = true; }
};

}  // namespace house

static_assert(ContextMethod<house::by_node<4>> && Policy<house::our_paddings>);

struct qwen3_30b final {
  static constexpr model_spec spec = models::qwen3_30b_a3b;
};
template <num Degree, class Layout>
using long_context = plan<context_parallel<Degree, house::by_node<4>, Layout>, house::our_paddings>;

static_assert(long_context<4, contiguous>::spec.method == cp_method::ulysses);
static_assert(ulysses_degree(long_context<16, zigzag>::spec) == 4 && ring_degree(long_context<16, zigzag>::spec) == 4);
static_assert(LegalPlan<long_context<16, zigzag>, qwen3_30b>);

template <num Degree>
void show() {
  std::printf("%s\n", print_plan(long_context<Degree, zigzag>::spec).c_str());
}

int main() {
  show<2>();
  show<6>();
  show<7>();
  show<32>();
}
//> cp=2/ulysses/zigzag,kv_replicate,vocab_pad
//> cp=6/ulysses3xring2/zigzag,kv_replicate,vocab_pad
//> cp=7/ring/zigzag,kv_replicate,vocab_pad
//> cp=32/ulysses4xring8/zigzag,kv_replicate,vocab_pad
