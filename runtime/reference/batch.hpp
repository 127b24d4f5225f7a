// SPDX-License-Identifier: Apache-2.0
// What the baseline is asked: rows of tokens with their labels, as `transformers` takes them; and what follows from
// them for every token before anything is computed.
#ifndef SHARDPLAN_RUNTIME_REFERENCE_BATCH_HPP
#define SHARDPLAN_RUNTIME_REFERENCE_BATCH_HPP

#include <algorithm>  // max
#include <optional>   // optional
#include <shardplan/model.hpp>
#include <vector>  // vector

namespace shardplan::runtime {

/// B rows of S tokens. A vector that is empty was not given.
struct reference_batch {
  static constexpr num ignored_label = -100;

  num rows = 0, length = 0;               ///< B, S
  std::vector<num> input_ids{};           ///< (B, S), or
  std::vector<double> inputs_embeds{};    ///< (B, S, H): exactly one of them
  std::vector<num> labels{};              ///< (B, S): the token's own id; shifted here
  std::vector<num> shift_labels{};        ///< (B, S): the id that the token is to predict; goes before labels
  std::vector<num> attention_mask{};      ///< (B, S): 0 hides the token, as a key, from all
  std::vector<num> position_ids{};        ///< (B, S): rotary positions; where they jump, a new document begins
  std::optional<num> num_items{};         ///< what the summed loss is divided by; else the number of labels
  std::vector<num> micro_batch_of_row{};  ///< (B): any number per micro-batch; else all rows are one
};

namespace reference {

/// The batch per token, (B, S) but where another shape is given.
struct token_info {
  num rows = 0, length = 0;
  std::vector<num> positions;        ///< rotary position
  std::vector<num> document;         ///< index in the row of the first token of its document
  std::vector<char> is_hidden;       ///< keys that nobody sees; empty when there are none
  std::vector<num> targets;          ///< id to predict, or ignored_label
  num num_targets = 0, divisor = 0;  ///< how many are not ignored; what the loss is divided by
  std::vector<num> micro_batch;      ///< (B): numbered from 0
  num num_micro_batches = 1;

  num num_tokens() const { return rows * length; }
  bool hidden(num token) const { return !is_hidden.empty() && is_hidden[token]; }
  /// Index in the row of the first key that the query `token` sees; the last is the token itself. A window of 0 is
  /// none.
  num first_key(num token, num window) const {
    return window > 0 ? std::max(document[token], token % length - window + 1) : document[token];
  }
};

/// Checks `batch` and works out the above. Throws input_error naming field, index and value.
token_info token_info_of(const model_spec& m, const reference_batch& batch);

}  // namespace reference
}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_REFERENCE_BATCH_HPP
