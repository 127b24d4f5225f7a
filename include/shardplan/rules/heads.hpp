// SPDX-License-Identifier: Apache-2.0
// Rules about the sizes of a model, its heads and the widths that tensor parallelism cuts.
#ifndef SHARDPLAN_RULES_HEADS_HPP
#define SHARDPLAN_RULES_HEADS_HPP

#include <initializer_list>  // initializer_list
#include <shardplan/question.hpp>
#include <shardplan/rules/fixes.hpp>
#include <shardplan/rules/mesh.hpp>
#include <shardplan/rules/sequence.hpp>

namespace shardplan::rule {

struct every_model_size_is_in_range {
  SHARDPLAN_SENTENCE("every size of a model must be at least 1 and at most 2147483647");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "a tensor without elements computes nothing";
  using operands = list<fact::num_layers_operand, fact::hidden_size_operand, fact::num_heads_operand,
                        fact::num_kv_heads_operand, fact::head_dim_operand, fact::vocab_size_operand>;
  static constexpr bool holds(num layers, num hidden, num heads, num kv_heads, num head_dim, num vocab) {
    for (num size : {layers, hidden, heads, kv_heads, head_dim, vocab})
      if (size < 1 || size > max_degree) return false;
    return true;
  }
  static constexpr fix_text fix(const question&) { return {"correct the model's configuration"}; }
};

struct num_layers_fits_the_layer_set {
  SHARDPLAN_SENTENCE("num_layers must be at most 512, which a set of layers can hold");
  static_assert(layer_set::capacity == 512, "the sentence says the number");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "layer_set in model.hpp, a limit of this library";
  using operands = list<fact::num_layers_operand>;
  using presumes = list<every_model_size_is_in_range>;
  static constexpr bool holds(num layers) { return layers <= layer_set::capacity; }
  static constexpr fix_text fix(const question&) { return {"raise layer_set::capacity in a copy of the library"}; }
};

struct heads_divide_over_kv_heads {
  SHARDPLAN_SENTENCE("num_heads must be divisible by num_kv_heads");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "grouped-query attention: every key/value head serves equally many heads";
  using operands = list<fact::num_heads_operand, fact::num_kv_heads_operand>;
  using presumes = list<every_model_size_is_in_range>;
  static constexpr bool holds(num heads, num kv_heads) { return heads % kv_heads == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"num_kv_heads that divides: "}.add(
        detail::nearest_divisors(q.model.num_attention_heads, q.model.num_key_value_heads).view());
  }
};

struct head_dim_is_even {
  SHARDPLAN_SENTENCE("head_dim must be even");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "rotary embedding turns pairs of components";
  using operands = list<fact::head_dim_operand>;
  using presumes = list<every_model_size_is_in_range>;
  static constexpr bool holds(num head_dim) { return head_dim % 2 == 0; }
  static constexpr fix_text fix(const question& q) { return fix_text{"head_dim "}.add(q.model.head_dim + 1); }
};

struct heads_divide_over_tensor_and_ulysses {
  SHARDPLAN_SENTENCE("num_heads must be divisible by tp * the Ulysses degree");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "tensor parallelism and Ulysses give every rank whole heads, equally many";
  using operands =
      list<fact::num_heads_operand, fact::of_queries::tensor_degree_operand, fact::of_queries::ulysses_degree_operand>;
  using presumes =
      list<product_of_degrees_is_in_range, every_model_size_is_in_range, ulysses_times_ring_is_the_context_degree>;
  static constexpr bool holds(num heads, num tp, num ulysses) { return heads % (tp * ulysses) == 0; }
  static constexpr fix_text fix(const question& q) {
    const auto [tp, ulysses] = strictest_cut(q, cut_heads::queries);
    fix_text out;
    if (ulysses != ulysses_degree(q.plan)) return {"leave out the override that gives layers ulysses"};
    if (ulysses > 1 && q.model.num_attention_heads % tp == 0)
      return out.add("write cp=")
          .add(q.plan.cp)
          .add("/ring or cp=")
          .add(q.plan.cp)
          .add("/all_gather, which ask nothing beyond tp");
    out.add(ulysses > 1 ? "tp * the Ulysses degree" : "tp").add(" that divides ").add(q.model.num_attention_heads);
    return out.add(": ").add(detail::nearest_divisors(q.model.num_attention_heads, tp * ulysses).view());
  }
};

struct kv_heads_divide_over_tensor {
  SHARDPLAN_SENTENCE("num_kv_heads must be divisible by tp, or with kv_replicate divide it");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "k_proj and v_proj are cut by tp in whole heads, or copied whole";
  using operands =
      list<fact::num_kv_heads_operand, fact::of_key_values::tensor_degree_operand, fact::kv_replicate_operand>;
  using presumes = list<product_of_degrees_is_in_range, every_model_size_is_in_range>;
  static constexpr bool holds(num kv_heads, num tp, num replicate) {
    return kv_heads % tp == 0 || (replicate != 0 && tp % kv_heads == 0);
  }
  static constexpr fix_text fix(const question& q) {
    const num kv_heads = q.model.num_key_value_heads, tp = strictest_cut(q, cut_heads::key_values).tensor;
    fix_text out;
    if (tp % kv_heads == 0)
      return out.add("add kv_replicate: each key/value head is held by ").add(tp / kv_heads).add(" ranks");
    out.add("tp that divides ").add(kv_heads).add(": ").add(detail::nearest_divisors(kv_heads, tp).view());
    return out.add("; or with kv_replicate a multiple of ").add(kv_heads);
  }
};

struct kv_heads_divide_over_tensor_and_ulysses {
  SHARDPLAN_SENTENCE("num_kv_heads must be divisible by tp * the Ulysses degree, or with kv_replicate divide it");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "Ulysses gives every rank whole key/value heads, equally many, or copies";
  using operands = list<fact::num_kv_heads_operand, fact::of_traded_key_values::tensor_degree_operand,
                        fact::of_traded_key_values::ulysses_degree_operand, fact::kv_replicate_operand>;
  // The first half: this one alone lets tp 6, U 2, K 4 pass, where k_proj has no uniform cut.
  using presumes = list<kv_heads_divide_over_tensor, ulysses_times_ring_is_the_context_degree>;
  static constexpr bool holds(num kv_heads, num tp, num ulysses, num replicate) {
    return kv_heads % (tp * ulysses) == 0 || (replicate != 0 && tp * ulysses % kv_heads == 0);
  }
  static constexpr fix_text fix(const question& q) {
    const auto [tp, ulysses] = strictest_cut(q, cut_heads::traded_key_values);
    if (ulysses != ulysses_degree(q.plan)) return {"leave out the override that gives layers ulysses"};
    const num kv_heads = q.model.num_key_value_heads, heads = tp * ulysses;
    fix_text out;
    if (heads % kv_heads == 0) return out.add("add kv_replicate, or write cp=").add(q.plan.cp).add("/ring");
    return out.add("write cp=")
        .add(q.plan.cp)
        .add("/ring or cp=")
        .add(q.plan.cp)
        .add("/all_gather, which ask nothing beyond tp");
  }
};

struct dense_width_divides_over_tensor {
  SHARDPLAN_SENTENCE("intermediate_size must be at least 1 and divisible by tp");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr text_view source = "gate and up are cut by column, down by row; the size is logical, not 2 * I";
  using operands = list<fact::intermediate_size_operand, fact::of_dense::tensor_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range, num_layers_fits_the_layer_set>;
  static constexpr bool applies(const question& q) { return has_dense_layers(q.model); }
  static constexpr bool holds(num width, num tp) { return width >= 1 && width <= max_degree && width % tp == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"tp that divides: "}.add(detail::nearest_divisors(q.model.intermediate_size, q.plan.tp).view());
  }
};

struct vocabulary_divides_over_tensor {
  SHARDPLAN_SENTENCE("vocab_size must be divisible by tp, or vocab_pad given");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr text_view source = "embedding and head are cut by vocabulary row; padding is masked, not stored";
  using operands = list<fact::vocab_size_operand, fact::of_vocabulary::tensor_degree_operand, fact::vocab_pad_operand>;
  using presumes = list<product_of_degrees_is_in_range, every_model_size_is_in_range>;
  static constexpr bool holds(num vocab, num tp, num pad) { return pad != 0 || vocab % tp == 0; }
  static constexpr fix_text fix(const question&) { return {"add vocab_pad"}; }
};

using model_rules =
    list<every_model_size_is_in_range, num_layers_fits_the_layer_set, heads_divide_over_kv_heads, head_dim_is_even>;
using head_rules =
    list<heads_divide_over_tensor_and_ulysses, kv_heads_divide_over_tensor, kv_heads_divide_over_tensor_and_ulysses,
         dense_width_divides_over_tensor, vocabulary_divides_over_tensor>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_HEADS_HPP
