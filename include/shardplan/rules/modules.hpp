// SPDX-License-Identifier: Apache-2.0
// Rules about module overrides: what they name, and what must be cut together.
#ifndef SHARDPLAN_RULES_MODULES_HPP
#define SHARDPLAN_RULES_MODULES_HPP

#include <shardplan/question.hpp>
#include <shardplan/rules/heads.hpp>

namespace shardplan::rule {

struct overrides_name_modules_of_the_model {
  SHARDPLAN_SENTENCE("every module override must name modules that the model has");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] =
      "an override of nothing is a mistyped one: a layer too deep, experts of a dense model";
  using operands = list<fact::overrides_of_nothing_operand, fact::num_layers_operand, fact::num_moe_layers_operand>;
  using presumes = list<num_layers_fits_the_layer_set>;
  static constexpr bool holds(num of_nothing, num, num) { return of_nothing == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"layers are 0 to "}
        .add(q.model.num_hidden_layers - 1)
        .add(
            "; layers with experts have mlp.experts, others mlp.gate_proj, up_proj and down_proj; a tied head has no "
            "module");
  }
};

struct modules_of_a_block_are_cut_together {
  SHARDPLAN_SENTENCE("all modules of an attention, a feed-forward layer or its experts must be cut, or none");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "what a column-parallel module leaves cut, a whole one cannot read";
  using operands = list<fact::blocks_cut_in_part_operand>;
  static constexpr bool holds(num in_part) { return in_part == 0; }
  static constexpr fix_text fix(const question&) {
    return {"override the block as a whole, for example layers.*.self_attn=replicated"};
  }
};

using module_rules = list<overrides_name_modules_of_the_model, modules_of_a_block_are_cut_together>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_MODULES_HPP
