// SPDX-License-Identifier: Apache-2.0
// Rules about degrees and the world: what must hold for the meshes of a plan to exist.
#ifndef SHARDPLAN_RULES_MESH_HPP
#define SHARDPLAN_RULES_MESH_HPP

#include <initializer_list>  // initializer_list
#include <shardplan/question.hpp>
#include <shardplan/rules/fixes.hpp>

namespace shardplan::rule {

struct every_degree_is_in_range {
  SHARDPLAN_SENTENCE("every degree must be at least 1 and at most 2147483647");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "a mesh axis has at least one rank, and ranks are int";
  using operands = list<fact::pipeline_degree_operand, fact::replicate_degree_operand, fact::shard_degree_operand,
                        fact::context_degree_operand, fact::tensor_degree_operand, fact::expert_degree_operand,
                        fact::expert_tensor_degree_operand>;
  static constexpr bool holds(num pp, num dp_replicate, num fsdp, num cp, num tp, num ep, num etp) {
    for (num degree : {pp, dp_replicate, fsdp, cp, tp, ep, etp})
      if (degree < 1 || degree > max_degree) return false;
    return true;
  }
  static constexpr fix_text fix(const question&) { return {"leave out an axis that is not used: its degree is 1"}; }
};

struct product_of_degrees_is_in_range {
  SHARDPLAN_SENTENCE("pp * dp_replicate * fsdp * cp * tp must be at most 2147483647");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "ranks are int";
  using operands = list<fact::pipeline_degree_operand, fact::replicate_degree_operand, fact::shard_degree_operand,
                        fact::context_degree_operand, fact::tensor_degree_operand>;
  using presumes = list<every_degree_is_in_range>;
  static constexpr bool holds(num pp, num dp_replicate, num fsdp, num cp, num tp) {
    num product = 1;
    for (num degree : {pp, dp_replicate, fsdp, cp, tp})
      if ((product *= degree) > max_degree) return false;  // each factor is below 2^31: no overflow before the test
    return true;
  }
  static constexpr fix_text fix(const question&) { return {"lower a degree"}; }
};

struct world_is_the_product_of_degrees {
  SHARDPLAN_SENTENCE("world must equal pp * dp_replicate * fsdp * cp * tp");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "every rank has one place in the mesh; ep and etp add no ranks";
  using operands = list<fact::world_operand, fact::pipeline_degree_operand, fact::replicate_degree_operand,
                        fact::shard_degree_operand, fact::context_degree_operand, fact::tensor_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range>;
  static constexpr bool applies(const question& q) { return q.world != 0; }
  static constexpr bool holds(num world, num pp, num dp_replicate, num fsdp, num cp, num tp) {
    return world == pp * dp_replicate * fsdp * cp * tp;
  }
  static constexpr fix_text fix(const question& q) {
    const plan_spec& p = q.plan;
    fix_text out;
    out.add(p.pp).add(" * ").add(p.dp_replicate).add(" * ").add(p.fsdp).add(" * ").add(p.cp).add(" * ").add(p.tp);
    out.add(" = ").add(world_size(p)).add(", not ").add(q.world).add(": start ").add(world_size(p));
    return out.add(" ranks, or write * for one degree");
  }
};

struct expert_degrees_divide_the_ranks_below_replicas {
  SHARDPLAN_SENTENCE("ep * etp must divide fsdp * cp * tp");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "the expert view is efsdp * ep * etp = fsdp * cp * tp: EP adds no ranks";
  using operands = list<fact::expert_degree_operand, fact::expert_tensor_degree_operand, fact::shard_degree_operand,
                        fact::context_degree_operand, fact::tensor_degree_operand, fact::replicate_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range>;
  static constexpr bool holds(num ep, num etp, num fsdp, num cp, num tp, num /*dp_replicate: for the fix*/) {
    return fsdp * cp * tp % (ep * etp) == 0;
  }
  static constexpr fix_text fix(const question& q) {
    const plan_spec& p = q.plan;
    fix_text out;
    if (p.dp_replicate * p.fsdp * p.cp * p.tp % (p.ep * p.etp) == 0) {
      // Replicas sit outside the expert view; the same ranks as data-parallel shards with replicated parameters do not.
      out.add("write fsdp=").add(p.dp_replicate * p.fsdp).add("/zero1 instead of dp_replicate=").add(p.dp_replicate);
      return out.add(": replicas are not part of the expert mesh");
    }
    out.add("choose ep * etp among the divisors of ").add(p.fsdp * p.cp * p.tp).add(", such as ");
    return out.add(detail::nearest_divisors(p.fsdp * p.cp * p.tp, p.ep * p.etp).view());
  }
};

namespace detail_nodes {
/// Groups of `size` neighbouring ranks stay within nodes of `node` ranks.
constexpr bool fit(num size, num node, num world) { return world <= node || node % size == 0; }
}  // namespace detail_nodes

struct tensor_groups_stay_in_a_node {
  SHARDPLAN_SENTENCE("tp must divide gpus_per_node, or tensor-parallel groups cross nodes");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "tensor parallelism communicates in every layer";
  using operands = list<fact::tensor_degree_operand, fact::gpus_per_node_operand, fact::plan_world_operand>;
  using presumes = list<product_of_degrees_is_in_range>;
  static constexpr bool applies(const question& q) { return q.gpus_per_node > 0; }
  static constexpr bool holds(num tp, num node, num world) { return detail_nodes::fit(tp, node, world); }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"tp that fits a node: "}.add(detail::nearest_divisors(q.gpus_per_node, q.plan.tp).view());
  }
};

struct expert_groups_stay_in_a_node {
  SHARDPLAN_SENTENCE("ep * etp must divide gpus_per_node, or expert groups cross nodes");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "every MoE layer sends its tokens to the experts and back";
  using operands = list<fact::expert_degree_operand, fact::expert_tensor_degree_operand, fact::gpus_per_node_operand,
                        fact::plan_world_operand>;
  using presumes = list<expert_degrees_divide_the_ranks_below_replicas>;
  static constexpr bool applies(const question& q) { return q.gpus_per_node > 0 && q.model.num_experts > 0; }
  static constexpr bool holds(num ep, num etp, num node, num world) { return detail_nodes::fit(ep * etp, node, world); }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"ep * etp that fits a node: "}.add(
        detail::nearest_divisors(q.gpus_per_node, q.plan.ep * q.plan.etp).view());
  }
};

using mesh_rules =
    list<every_degree_is_in_range, product_of_degrees_is_in_range, world_is_the_product_of_degrees,
         expert_degrees_divide_the_ranks_below_replicas, tensor_groups_stay_in_a_node, expert_groups_stay_in_a_node>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_MESH_HPP
