// SPDX-License-Identifier: Apache-2.0
// A rule of one's own speaks like the library's: in compile errors, in reports, in the search for the nearest plan. It
// is written once, with the parts of facts.hpp, in a namespace of one's own.
#include <cstdio>
#include <shardplan/shardplan.hpp>
#include <string_view>

namespace house {

using shardplan::num;

SHARDPLAN_OPERAND(width_per_rank, q.model.moe_intermediate_size / q.plan.etp);

/// Our grouped kernel multiplies tiles of 256 columns.
struct experts_are_whole_tiles {
  SHARDPLAN_SENTENCE("moe_intermediate_size / etp must be a multiple of 256");
  static constexpr shardplan::rule_kind kind = shardplan::rule_kind::math;
  static constexpr std::string_view source = "tile width of our grouped kernel";
  using operands = shardplan::list<width_per_rank_operand>;
  using presumes = shardplan::list<shardplan::rule::expert_width_divides_over_expert_tensor>;  // no division by zero
  static constexpr bool holds(num width) { return width % 256 == 0; }
  static constexpr shardplan::fix_text fix(const shardplan::question&) { return {"a smaller etp"}; }
};

}  // namespace house

using namespace shardplan;
using namespace shardplan::literals;

struct qwen3_30b final {
  static constexpr model_spec spec = models::qwen3_30b_a3b;
};

// Given beside plan and model, it is asked with the library's own.
template <num Degree>
using experts_cut = plan<tensor_parallel<4>, expert_parallel<1, expert_tensor_parallel<Degree>>>;
static_assert(LegalPlan<experts_cut<2>, qwen3_30b> &&
              LegalPlan<experts_cut<1>, qwen3_30b, house::experts_are_whole_tiles>);
static_assert(!LegalPlan<experts_cut<2>, qwen3_30b, house::experts_are_whole_tiles>);
static_assert(checked<experts_cut<1>, qwen3_30b, house::experts_are_whole_tiles>::world_size == 4);

int main() {
  const question q{.model = qwen3_30b::spec, .plan = "tp=4,ep=2,etp=2"_plan};
  using rules = rules_with<house::experts_are_whole_tiles>;
  check<rules>(q, [](const violation& v) {
    std::printf("%.*s: %.*s", static_cast<int>(v.rule.size()), v.rule.data(), static_cast<int>(v.sentence.size()),
                v.sentence.data());
    std::printf(" (here %lld); %s\n", static_cast<long long>(v.operands[0].value), v.fix.c_str());
  });
  std::printf("nearest: %s\n", print_plan(nearest_legal_plan<rules>(q).plan).c_str());
}
//> experts_are_whole_tiles: moe_intermediate_size / etp must be a multiple of 256 (here 384); a smaller etp
//> nearest: tp=4,ep=2/dispatch
