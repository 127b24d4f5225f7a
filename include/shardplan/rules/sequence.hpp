// SPDX-License-Identifier: Apache-2.0
// Rules about the batch, the context-parallel methods and layouts. No rule asks for a length: rows are padded.
#ifndef SHARDPLAN_RULES_SEQUENCE_HPP
#define SHARDPLAN_RULES_SEQUENCE_HPP

#include <initializer_list>  // initializer_list
#include <shardplan/question.hpp>
#include <shardplan/rules/fixes.hpp>
#include <shardplan/rules/mesh.hpp>

namespace shardplan::rule {

struct ulysses_times_ring_is_the_context_degree {
  SHARDPLAN_SENTENCE("the Ulysses degree * the ring degree must equal cp");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "cp is its two sub-axes";
  using operands = list<fact::ulysses_degree_operand, fact::ring_degree_operand, fact::context_degree_operand>;
  using presumes = list<every_degree_is_in_range>;
  static constexpr bool applies(const question& q) { return q.plan.method == cp_method::ulysses_ring; }
  static constexpr bool holds(num ulysses, num ring, num cp) { return checked_product(ulysses, ring) == cp; }
  static constexpr fix_text fix(const question& q) {
    fix_text out;
    if (q.plan.method_ulysses > 0 && q.plan.cp % q.plan.method_ulysses == 0)
      return out.add("write cp=")
          .add(q.plan.cp)
          .add("/ulysses")
          .add(q.plan.method_ulysses)
          .add("xring")
          .add(q.plan.cp / q.plan.method_ulysses);
    return out.add("write cp=").add(q.plan.cp).add("/ulysses1xring").add(q.plan.cp);
  }
};

struct the_layout_cuts_the_row {
  SHARDPLAN_SENTENCE("cp must be 1 under the layout full, which leaves every rank the whole row");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "context parallelism is a cut of the row";
  using operands = list<fact::context_degree_operand>;
  using presumes = list<every_degree_is_in_range>;
  static constexpr bool applies(const question& q) { return q.plan.layout == layout_kind::full; }
  static constexpr bool holds(num cp) { return cp == 1; }
  static constexpr fix_text fix(const question&) { return {"contiguous, zigzag or zigzag_documents"}; }
};

struct batch_sizes_are_in_range {
  SHARDPLAN_SENTENCE("length, rows and micro-batches must not be negative, and at most 2147483647");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "0 says that a size is not known; a negative one says nothing";
  using operands = list<fact::length_operand, fact::rows_operand, fact::given_micro_batches_operand>;
  static constexpr bool holds(num length, num rows, num micro_batches) {
    for (num size : {length, rows, micro_batches})
      if (size < 0 || size > max_degree) return false;
    return true;
  }
  static constexpr fix_text fix(const question&) { return {"leave out what is not known"}; }
};

struct documents_fill_the_row {
  SHARDPLAN_SENTENCE("every packed document must have a token, and length must be their sum");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "what is not a document's token would be padding, which is added later";
  using operands = list<fact::document_tokens_operand, fact::length_operand, fact::shortest_document_operand>;
  using presumes = list<batch_sizes_are_in_range>;
  static constexpr bool applies(const question& q) { return !q.batch.documents.empty(); }
  static constexpr bool holds(num tokens, num length, num shortest) {
    return shortest >= 1 && tokens >= 1 && tokens <= max_degree && (length == 0 || length == tokens);
  }
  static constexpr fix_text fix(const question&) { return {"leave out length: the documents tell it"}; }
};

struct rows_divide_over_data_and_micro_batches {
  SHARDPLAN_SENTENCE("rows must be divisible by dp_replicate * fsdp * micro-batches");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "the local batch of a micro-batch is a whole number of rows, at least 1";
  using operands = list<fact::rows_operand, fact::replicate_degree_operand, fact::shard_degree_operand,
                        fact::num_micro_batches_operand>;
  using presumes = list<product_of_degrees_is_in_range, batch_sizes_are_in_range>;
  static constexpr bool applies(const question& q) { return q.batch.rows != 0; }
  static constexpr bool holds(num rows, num dp_replicate, num fsdp, num micro_batches) {
    return rows % (dp_replicate * fsdp * micro_batches) == 0;
  }
  static constexpr fix_text fix(const question& q) {
    const num multiple = num_data_shards(q.plan) * micro_batches(q.plan, q.batch);
    const num below = q.batch.rows / multiple * multiple;
    fix_text out;
    if (below > 0) out.add(below).add(" or ");
    return out.add(below + multiple).add(" rows");
  }
};

struct length_fits_the_positions {
  SHARDPLAN_SENTENCE("length must be at most max_position_embeddings, unless rotary scaling says otherwise");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "positions beyond it were never trained";
  using operands = list<fact::longest_document_operand, fact::max_positions_operand>;
  using presumes = list<batch_sizes_are_in_range>;
  static constexpr bool applies(const question& q) { return !q.model.scaled_rotary; }
  static constexpr bool holds(num length, num positions) { return length <= positions; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"rows or documents of at most "}.add(q.model.max_position_embeddings).add(" tokens");
  }
};

struct sequence_parallel_has_a_tensor_axis {
  SHARDPLAN_SENTENCE("tp must be above 1 for sp to have an effect");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "sequence parallelism cuts over the ranks of tp";
  using operands = list<fact::tensor_degree_operand>;
  static constexpr bool applies(const question& q) { return q.plan.sequence_parallel; }
  static constexpr bool holds(num tp) { return tp != 1; }
  static constexpr fix_text fix(const question&) { return {"leave out sp"}; }
};

struct zigzag_balances_a_ring {
  SHARDPLAN_SENTENCE("the ring degree must be above 1 for zigzag to balance anything");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "under pure Ulysses every rank attends whole rows with its heads";
  using operands = list<fact::of_attention::ring_degree_operand, fact::context_degree_operand>;
  static constexpr bool applies(const question& q) { return needs_balance(q.plan.layout); }
  static constexpr bool holds(num ring, num) { return ring != 1; }
  static constexpr fix_text fix(const question&) { return {"write contiguous, or ring"}; }
  static constexpr bool needs_balance(layout_kind k) {
    return k == layout_kind::zigzag || k == layout_kind::zigzag_documents;
  }
};

struct zigzag_balances_full_attention {
  SHARDPLAN_SENTENCE("sliding_window must be 0 for zigzag to balance the work");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "with a window every token attends equally many keys, whatever its place";
  using operands = list<fact::sliding_window_operand, fact::of_attention::ring_degree_operand>;
  using presumes = list<zigzag_balances_a_ring>;
  static constexpr bool applies(const question& q) { return zigzag_balances_a_ring::needs_balance(q.plan.layout); }
  static constexpr bool holds(num window, num) { return window == 0; }
  static constexpr fix_text fix(const question&) { return {"write contiguous"}; }
};

using sequence_rules =
    list<ulysses_times_ring_is_the_context_degree, the_layout_cuts_the_row, batch_sizes_are_in_range,
         documents_fill_the_row, rows_divide_over_data_and_micro_batches, length_fits_the_positions,
         sequence_parallel_has_a_tensor_axis, zigzag_balances_a_ring, zigzag_balances_full_attention>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_SEQUENCE_HPP
