// SPDX-License-Identifier: Apache-2.0
// Rules about stages, their layers and the micro-batches that flow through them.
#ifndef SHARDPLAN_RULES_PIPELINE_HPP
#define SHARDPLAN_RULES_PIPELINE_HPP

#include <shardplan/question.hpp>
#include <shardplan/rules/fixes.hpp>
#include <shardplan/rules/heads.hpp>
#include <shardplan/rules/mesh.hpp>
#include <shardplan/rules/sequence.hpp>

namespace shardplan::rule {

struct virtual_stages_belong_to_interleaved {
  SHARDPLAN_SENTENCE("virtual_stages must be at least 2 when the schedule is interleaved, and 1 otherwise");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "the other schedules visit every rank once";
  using operands = list<fact::virtual_stages_operand, fact::interleaved_operand>;
  static constexpr bool holds(num stages, num interleaved) {
    return interleaved != 0 ? stages >= 2 && stages <= max_degree : stages == 1;
  }
  static constexpr fix_text fix(const question&) { return {"write pp=N/interleaved2, or another schedule"}; }
};

struct num_stages_fits_the_stage_list {
  SHARDPLAN_SENTENCE("pp * virtual_stages must be at most 128, which a list of stages can hold");
  static_assert(stage_layer_counts::capacity() == 128, "the sentence says the number");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "stage_layer_counts in plan.hpp, a limit of this library";
  using operands = list<fact::pipeline_degree_operand, fact::virtual_stages_operand>;
  using presumes = list<product_of_degrees_is_in_range, virtual_stages_belong_to_interleaved>;
  static constexpr bool holds(num pp, num virtual_stages) {
    return pp * virtual_stages <= static_cast<num>(stage_layer_counts::capacity());
  }
  static constexpr fix_text fix(const question&) { return {"use fewer stages"}; }
};

struct even_stages_divide_the_layers {
  SHARDPLAN_SENTENCE("num_layers must be divisible by pp * virtual_stages, or the stages listed");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "stages that are not listed are equal";
  using operands = list<fact::num_layers_operand, fact::pipeline_degree_operand, fact::virtual_stages_operand>;
  using presumes = list<num_stages_fits_the_stage_list, every_model_size_is_in_range>;
  static constexpr bool applies(const question& q) { return q.plan.stages.empty(); }
  static constexpr bool holds(num layers, num pp, num virtual_stages) { return layers % (pp * virtual_stages) == 0; }
  static constexpr fix_text fix(const question& q) {
    const fix_text stages = detail::stage_list(nearest_even_stages(q.model.num_hidden_layers, num_stages(q.plan)));
    fix_text out;
    return out.add("write pp=").add(q.plan.pp).add("/").add(stages.view());
  }
};

struct one_listed_stage_per_stage {
  SHARDPLAN_SENTENCE("the stages listed must be pp * virtual_stages");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "stages are disjoint, complete and ordered";
  using operands = list<fact::listed_stages_operand, fact::pipeline_degree_operand, fact::virtual_stages_operand>;
  using presumes = list<num_stages_fits_the_stage_list>;
  static constexpr bool applies(const question& q) { return !q.plan.stages.empty(); }
  static constexpr bool holds(num listed, num pp, num virtual_stages) { return listed == pp * virtual_stages; }
  static constexpr fix_text fix(const question& q) {
    fix_text out;
    return out.add("write pp=")
        .add(q.plan.pp)
        .add("/")
        .add(detail::stage_list(nearest_even_stages(q.model.num_hidden_layers, num_stages(q.plan))).view());
  }
};

struct listed_stages_add_up_to_the_layers {
  SHARDPLAN_SENTENCE("the layers of the stages listed must add up to num_layers");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "stages are disjoint, complete and ordered";
  using operands = list<fact::listed_layers_operand, fact::num_layers_operand>;
  using presumes = list<num_stages_fits_the_stage_list, every_model_size_is_in_range>;
  static constexpr bool applies(const question& q) { return !q.plan.stages.empty(); }
  static constexpr bool holds(num listed, num layers) { return listed == layers; }
  static constexpr fix_text fix(const question& q) { return one_listed_stage_per_stage::fix(q); }
};

struct inner_stages_have_layers {
  SHARDPLAN_SENTENCE("every stage but the first and the last must have a layer to do any work");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "a first or last stage may hold the embedding or the head alone";
  using operands = list<fact::emptiest_inner_stage_operand>;
  using presumes = list<one_listed_stage_per_stage, listed_stages_add_up_to_the_layers>;
  static constexpr bool applies(const question& q) { return !q.plan.stages.empty(); }
  static constexpr bool holds(num layers) { return layers > 0; }
  static constexpr fix_text fix(const question& q) { return one_listed_stage_per_stage::fix(q); }
};

struct micro_batches_fill_the_rounds {
  SHARDPLAN_SENTENCE("micro-batches must be divisible by pp under an interleaved schedule");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "the interleaved schedule is defined in rounds of pp micro-batches";
  using operands = list<fact::num_micro_batches_operand, fact::pipeline_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range, batch_sizes_are_in_range>;
  static constexpr bool applies(const question& q) { return q.plan.schedule == schedule_kind::interleaved; }
  static constexpr bool holds(num micro_batches, num pp) { return micro_batches % pp == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{}.add(round_up(micro_batches(q.plan, q.batch), q.plan.pp)).add(" micro-batches, or 1f1b");
  }
};

struct micro_batches_fill_the_pipeline {
  SHARDPLAN_SENTENCE("micro-batches must be at least pp for every stage to be busy");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "the share of idle time is (pp - 1) / (micro-batches + pp - 1)";
  using operands = list<fact::num_micro_batches_operand, fact::pipeline_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range, batch_sizes_are_in_range>;
  static constexpr bool applies(const question& q) { return q.plan.schedule != schedule_kind::interleaved; }
  static constexpr bool holds(num micro_batches, num pp) { return micro_batches >= pp; }
  static constexpr fix_text fix(const question& q) { return fix_text{}.add(q.plan.pp).add(" micro-batches"); }
};

using pipeline_rules =
    list<virtual_stages_belong_to_interleaved, num_stages_fits_the_stage_list, even_stages_divide_the_layers,
         one_listed_stage_per_stage, listed_stages_add_up_to_the_layers, inner_stages_have_layers,
         micro_batches_fill_the_rounds, micro_batches_fill_the_pipeline>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_PIPELINE_HPP
