// SPDX-License-Identifier: Apache-2.0
// Rules about experts: how many there are, how they are cut, and how tokens reach them.
#ifndef SHARDPLAN_RULES_EXPERTS_HPP
#define SHARDPLAN_RULES_EXPERTS_HPP

#include <shardplan/question.hpp>
#include <shardplan/rules/fixes.hpp>
#include <shardplan/rules/heads.hpp>
#include <shardplan/rules/mesh.hpp>

namespace shardplan::rule {

struct expert_counts_are_in_range {
  SHARDPLAN_SENTENCE("num_experts and sliding_window must not be negative, and decoder_sparse_step be at least 1");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "0 experts make a dense model, window 0 full attention";
  using operands = list<fact::num_experts_operand, fact::sliding_window_operand, fact::sparse_step_operand>;
  static constexpr bool holds(num experts, num window, num step) {
    return experts >= 0 && experts <= max_degree && window >= 0 && (experts == 0 || step >= 1);
  }
  static constexpr fix_text fix(const question&) { return {"correct the model's configuration"}; }
};

struct experts_per_token_fit_the_experts {
  SHARDPLAN_SENTENCE("num_experts_per_token must be at least 1 and at most num_experts");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "the router chooses distinct experts";
  using operands = list<fact::num_experts_per_token_operand, fact::num_experts_operand>;
  using presumes = list<num_layers_fits_the_layer_set, expert_counts_are_in_range>;
  static constexpr bool applies(const question& q) { return has_moe_layers(q.model); }
  static constexpr bool holds(num top_k, num experts) { return top_k >= 1 && top_k <= experts; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"num_experts_per_tok from 1 to "}.add(q.model.num_experts);
  }
};

struct expert_width_divides_over_expert_tensor {
  SHARDPLAN_SENTENCE("moe_intermediate_size must be at least 1 and divisible by etp");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "gate and up of an expert are cut by column, down by row";
  using operands = list<fact::moe_intermediate_size_operand, fact::of_experts::expert_tensor_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range, num_layers_fits_the_layer_set, expert_counts_are_in_range>;
  static constexpr bool applies(const question& q) { return has_moe_layers(q.model); }
  static constexpr bool holds(num width, num etp) { return width >= 1 && width <= max_degree && width % etp == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"etp that divides: "}.add(
        detail::nearest_divisors(q.model.moe_intermediate_size, q.plan.etp).view());
  }
};

struct experts_divide_over_expert_degree {
  SHARDPLAN_SENTENCE("num_experts must be divisible by ep, or expert_pad given");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr text_view source = "every rank has equally many expert slots; the router cannot choose empty ones";
  using operands = list<fact::num_experts_operand, fact::of_experts::expert_degree_operand, fact::expert_pad_operand>;
  using presumes = list<product_of_degrees_is_in_range, num_layers_fits_the_layer_set, expert_counts_are_in_range>;
  static constexpr bool applies(const question& q) { return has_moe_layers(q.model); }
  static constexpr bool holds(num experts, num ep, num pad) { return pad != 0 || experts % ep == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"add expert_pad, or ep that divides: "}.add(
        detail::nearest_divisors(q.model.num_experts, q.plan.ep).view());
  }
};

struct all_reduce_experts_stay_in_the_tensor_group {
  SHARDPLAN_SENTENCE("tp must be divisible by ep * etp under dispatch kind all_reduce");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "every rank of an expert group must hold the same rows: tp ranks do";
  using operands = list<fact::tensor_degree_operand, fact::of_experts::expert_degree_operand,
                        fact::of_experts::expert_tensor_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range, num_layers_fits_the_layer_set, expert_counts_are_in_range>;
  static constexpr bool applies(const question& q) {
    return q.plan.dispatch == dispatch_kind::all_reduce && has_moe_layers(q.model);
  }
  static constexpr bool holds(num tp, num ep, num etp) { return tp % (ep * etp) == 0; }
  static constexpr fix_text fix(const question& q) {
    fix_text out;
    return out.add("write ep=").add(q.plan.ep).add("/dispatch or ep=").add(q.plan.ep).add("/all_gather");
  }
};

struct expert_degrees_have_experts {
  SHARDPLAN_SENTENCE("a model must have experts for ep or etp to change anything");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "ep and etp cut experts alone";
  using operands = list<fact::num_moe_layers_operand, fact::expert_degree_operand, fact::expert_tensor_degree_operand>;
  using presumes = list<num_layers_fits_the_layer_set>;
  static constexpr bool holds(num moe_layers, num ep, num etp) { return moe_layers > 0 || (ep <= 1 && etp <= 1); }
  static constexpr fix_text fix(const question&) { return {"leave out ep and etp"}; }
};

using expert_rules =
    list<expert_counts_are_in_range, experts_per_token_fit_the_experts, expert_width_divides_over_expert_tensor,
         experts_divide_over_expert_degree, all_reduce_experts_stay_in_the_tensor_group, expert_degrees_have_experts>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_EXPERTS_HPP
