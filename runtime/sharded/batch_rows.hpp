// SPDX-License-Identifier: Apache-2.0
// Rows as a caller has them, whole and uncut, and the documents found in them.
#ifndef SHARDPLAN_RUNTIME_SHARDED_BATCH_ROWS_HPP
#define SHARDPLAN_RUNTIME_SHARDED_BATCH_ROWS_HPP

#include <cstdint>
#include <shardplan/batch.hpp>
#include <shardplan/model.hpp>
#include <vector>

namespace shardplan::runtime {

/// Rows of one length, in the tensors' usual row-major order (rows, length). Exactly one of input_ids and inputs_embeds
/// is given, at most one of labels and shift_labels; what is not given is empty.
struct batch_rows {
  num rows = 0, length = 0;
  std::vector<num> input_ids;
  std::vector<double> inputs_embeds;  ///< (rows, length, hidden)
  std::vector<num> labels;            ///< of the token itself; shifted inside
  std::vector<num> shift_labels;      ///< already shifted: what each token must predict
  std::vector<num> attention_mask;    ///< 1: may be attended to
  std::vector<num> position_ids;      ///< absent: 0, 1, ...
};

/// Throws input_error naming the field, place and value of what does not fit the model or the other fields.
void validate(const batch_rows& batch, const model_spec& model);

/// Rows [first, first + count) of the batch.
batch_rows select_rows(const batch_rows& batch, num first, num count);

/// Real lengths of the documents of each row. A document ends where position_ids do not step by one; rows that come
/// with an attention_mask are one document, as in transformers.
std::vector<std::vector<num>> find_documents(const batch_rows& batch);

/// Real targets: labels that, once shifted, some token must predict.
num count_targets(const batch_rows& batch);

/// A number that differs, but for chance, when any value of the rows differs.
std::uint64_t digest(const batch_rows& batch);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_BATCH_ROWS_HPP
