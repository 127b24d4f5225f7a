// SPDX-License-Identifier: Apache-2.0
// Where the rows of a run come from: a file, or a seed.
#ifndef SHARDPLAN_RUNTIME_VERIFY_INPUTS_HPP
#define SHARDPLAN_RUNTIME_VERIFY_INPUTS_HPP

#include <cstdint>
#include <filesystem>
#include <shardplan/batch.hpp>
#include <shardplan/model.hpp>
#include <shardplan/plan.hpp>
#include <string_view>
#include <vector>

#include "runtime/sharded/batch_rows.hpp"

namespace shardplan::runtime {

/// Reads `input_ids` (B, S) or `inputs_embeds` (B, S, H), and what there is of `labels`, `shift_labels`,
/// `attention_mask` and `position_ids` (B, S), the last also as (1, S) for every row, from a safetensors file; integers
/// and reals of any width. As in transformers, shift_labels go before labels. Results that stand in the same file (what
/// is_result_name says) are passed over.
/// `cu_seq_lens`, also `cu_seq_lens_q` and `cu_seq_lens_k`: where documents begin and end, 0 to rows * length, over the
/// rows one after another. They become position_ids, or agree with those that are given.
/// Throws input_error naming file, tensor and value: another tensor, another shape, a value that the model has not.
bool is_input_name(std::string_view name);
bool is_result_name(std::string_view name);  ///< logits, token_loss, loss, compare_mask, grad.NAME, ...
batch_rows read_inputs(const std::filesystem::path& file, const model_spec& model);

/// What to make up; 0 and an empty list leave it to `random_rows`.
struct random_sizes {
  num length = 0, rows = 0, micro_batches = 0;
  document_lengths documents{};  ///< packed in every row; length is then their sum
};

/// Rows that show mistakes, the same for the same arguments on every machine: a length that needs padding, two rows per
/// micro-batch and data shard, labels of which every row ignores another share (one of four rows all), and
/// position_ids that start and jump differently in every row. Rotary attention sees only differences of positions, so
/// without jumps ignored position_ids would not be noticed; the attention_mask of ones that comes with them says that
/// a jump begins no document. With documents, positions restart instead, and there is no mask.
/// Throws input_error when the logits of such rows would hold more than `max_logits` numbers.
batch_rows random_rows(const model_spec& model, const plan_spec& plan, const random_sizes& sizes, std::uint64_t seed);
inline constexpr num max_logits = num{1} << 31;

/// Sizes with nothing left open.
/// post: rows are a multiple of what the plan needs, unless they were given
random_sizes complete_sizes(const model_spec& model, const plan_spec& plan, random_sizes sizes);

/// 1 for tokens whose results count, (rows, length): those of the attention_mask, all without one.
std::vector<char> real_tokens(const batch_rows& rows);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_VERIFY_INPUTS_HPP
