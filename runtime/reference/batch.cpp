// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/batch.hpp"

#include <algorithm>  // count_if, find, max_element, none_of, transform
#include <climits>    // INT_MAX
#include <cmath>      // isfinite
#include <string>     // to_string

#include "runtime/error.hpp"

namespace shardplan::runtime::reference {
namespace {

void check_size(const char* field, std::size_t size, num expected) {
  if (size != 0 && static_cast<num>(size) != expected)
    throw input_error(std::string(field) + ": has " + std::to_string(size) + " values, must have " +
                      std::to_string(expected));
}

/// Every value of `field` is in [low, high], or is `exception`.
void check_range(const char* field, const std::vector<num>& values, num length, num low, num high, num exception) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const num value = values[i], index = static_cast<num>(i);
    if ((value >= low && value <= high) || value == exception) continue;
    throw input_error(std::string(field) + "[" + std::to_string(index / length) + ", " +
                      std::to_string(index % length) + "] = " + std::to_string(value) + ": must be from " +
                      std::to_string(low) + " to " + std::to_string(high) +
                      (exception < low ? " or " + std::to_string(exception) : ""));
  }
}

void check(const model_spec& m, const reference_batch& b) {
  const num tokens = checked_product(b.rows, b.length);
  if (tokens < 1 || checked_product(tokens, m.hidden_size) < 0)
    throw input_error("rows, length = " + std::to_string(b.rows) + ", " + std::to_string(b.length) +
                      ": must be at least 1 each and fit in memory");
  if (b.input_ids.empty() == b.inputs_embeds.empty())
    throw input_error("input_ids, inputs_embeds: exactly one must be given, not " +
                      std::string(b.input_ids.empty() ? "none" : "both"));
  check_size("input_ids", b.input_ids.size(), tokens);
  check_size("inputs_embeds", b.inputs_embeds.size(), tokens * m.hidden_size);
  check_size("labels", b.labels.size(), tokens);
  check_size("shift_labels", b.shift_labels.size(), tokens);
  check_size("attention_mask", b.attention_mask.size(), tokens);
  check_size("position_ids", b.position_ids.size(), tokens);
  check_size("micro_batch_of_row", b.micro_batch_of_row.size(), b.rows);

  const num last_id = m.vocab_size - 1, ignored = reference_batch::ignored_label;
  check_range("input_ids", b.input_ids, b.length, 0, last_id, 0);
  check_range("labels", b.labels, b.length, 0, last_id, ignored);
  check_range("shift_labels", b.shift_labels, b.length, 0, last_id, ignored);
  check_range("attention_mask", b.attention_mask, b.length, 0, 1, 0);
  check_range("position_ids", b.position_ids, b.length, 0, INT_MAX, 0);
  for (std::size_t i = 0; i < b.inputs_embeds.size(); ++i)
    if (!std::isfinite(b.inputs_embeds[i]))
      throw input_error("inputs_embeds[" + std::to_string(i) + "] = " + std::to_string(b.inputs_embeds[i]) +
                        ": must be finite");
}

/// Position of every token: as given, else its index in the row.
std::vector<num> positions_of(const reference_batch& b) {
  if (!b.position_ids.empty()) return b.position_ids;
  std::vector<num> positions(b.rows * b.length);
  for (num i = 0; i < b.rows * b.length; ++i) positions[i] = i % b.length;
  return positions;
}

/// Where every token's document begins: where the position is not the one after the last. With an attention mask a row
/// is one document, whatever the positions. Past and future are told by the index in the row, not by the position.
std::vector<num> documents_of(const reference_batch& b) {
  std::vector<num> documents(b.rows * b.length);
  if (b.position_ids.empty() || !b.attention_mask.empty()) return documents;
  for (num i = 0; i < b.rows * b.length; ++i)
    if (i % b.length != 0)
      documents[i] = b.position_ids[i] == b.position_ids[i - 1] + 1 ? documents[i - 1] : i % b.length;
  return documents;
}

std::vector<char> hidden_keys_of(const reference_batch& b) {
  const auto is_zero = [](num x) { return x == 0; };
  if (std::none_of(b.attention_mask.begin(), b.attention_mask.end(), is_zero)) return {};
  std::vector<char> hidden(b.attention_mask.size());
  std::transform(b.attention_mask.begin(), b.attention_mask.end(), hidden.begin(), is_zero);
  return hidden;
}

/// A token is to predict the label after it; the last one of a row predicts nothing.
std::vector<num> targets_of(const reference_batch& b) {
  if (!b.shift_labels.empty()) return b.shift_labels;
  std::vector<num> targets(b.rows * b.length, reference_batch::ignored_label);
  if (!b.labels.empty())
    for (num i = 0; i + 1 < b.rows * b.length; ++i)
      if (i % b.length != b.length - 1) targets[i] = b.labels[i + 1];
  return targets;
}

/// The numbers of the caller, renumbered from 0 in the order in which they appear.
std::vector<num> micro_batches_of(const reference_batch& b) {
  std::vector<num> seen, numbers(b.rows);
  for (std::size_t row = 0; row < b.micro_batch_of_row.size(); ++row) {
    const auto found = std::find(seen.begin(), seen.end(), b.micro_batch_of_row[row]);
    numbers[row] = found - seen.begin();
    if (found == seen.end()) seen.push_back(b.micro_batch_of_row[row]);
  }
  return numbers;
}

}  // namespace

token_info token_info_of(const model_spec& m, const reference_batch& b) {
  check(m, b);
  token_info p;
  p.rows = b.rows, p.length = b.length;
  p.positions = positions_of(b), p.document = documents_of(b), p.is_hidden = hidden_keys_of(b);
  p.targets = targets_of(b);
  p.num_targets = std::count_if(p.targets.begin(), p.targets.end(),
                                [](num target) { return target != reference_batch::ignored_label; });
  p.micro_batch = micro_batches_of(b);
  p.num_micro_batches = 1 + *std::max_element(p.micro_batch.begin(), p.micro_batch.end());
  p.divisor = b.num_items.value_or(p.num_targets);
  if (p.divisor < 0 || (p.divisor == 0 && p.num_targets > 0))
    throw input_error("num_items = " + std::to_string(p.divisor) + ": must be at least 1 for " +
                      std::to_string(p.num_targets) + " labels");
  return p;
}

}  // namespace shardplan::runtime::reference
