// SPDX-License-Identifier: Apache-2.0
#include "runtime/sharded/batch_rows.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <shardplan/sequence.hpp>

#include "runtime/error.hpp"

namespace shardplan::runtime {
namespace {

template <class T>
void check_size(std::string_view field, const std::vector<T>& values, const batch_rows& b, num width = 1) {
  if (!values.empty() && static_cast<num>(values.size()) != b.rows * b.length * width)
    throw input_error(fmt::format("{} holds {} values, but {} rows of {} tokens need {}", field, values.size(), b.rows,
                                  b.length, b.rows * b.length * width));
}

template <class Good>
void check_values(std::string_view field, const std::vector<num>& values, num length, std::string_view must,
                  Good good) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!good(values[i]))
      throw input_error(fmt::format("{}[{}][{}] must be {}, but is {}", field, static_cast<num>(i) / length,
                                    static_cast<num>(i) % length, must, values[i]));
}

}  // namespace

void validate(const batch_rows& b, const model_spec& model) {
  if (b.rows < 1 || b.length < 1)
    throw input_error(
        fmt::format("a batch must hold at least one row of one token, but holds {} rows of {}", b.rows, b.length));
  if (b.input_ids.empty() == b.inputs_embeds.empty())
    throw input_error("a batch must hold exactly one of input_ids and inputs_embeds");
  if (!b.labels.empty() && !b.shift_labels.empty())
    throw input_error("a batch must hold at most one of labels and shift_labels");
  check_size("input_ids", b.input_ids, b);
  check_size("inputs_embeds", b.inputs_embeds, b, model.hidden_size);
  check_size("labels", b.labels, b);
  check_size("shift_labels", b.shift_labels, b);
  check_size("attention_mask", b.attention_mask, b);
  check_size("position_ids", b.position_ids, b);

  const std::string ids = fmt::format("in [0, {})", model.vocab_size), targets = fmt::format("-100 or {}", ids);
  const auto is_id = [&](num v) { return v >= 0 && v < model.vocab_size; };
  const auto is_target = [&](num v) { return v == ignored_target || is_id(v); };
  check_values("input_ids", b.input_ids, b.length, ids, is_id);
  check_values("labels", b.labels, b.length, targets, is_target);
  check_values("shift_labels", b.shift_labels, b.length, targets, is_target);
  check_values("attention_mask", b.attention_mask, b.length, "0 or 1", [](num v) { return v == 0 || v == 1; });
  // Beyond 2^31 a rotary angle has no digits left in single precision.
  check_values("position_ids", b.position_ids, b.length, "in [0, 2147483648)",
               [](num v) { return v >= 0 && v < (num{1} << 31); });
  for (std::size_t i = 0; i < b.inputs_embeds.size(); ++i)
    if (!std::isfinite(b.inputs_embeds[i]))
      throw input_error(fmt::format("inputs_embeds must be finite, but value {} is {}", i, b.inputs_embeds[i]));
}

batch_rows select_rows(const batch_rows& b, num first, num count) {
  batch_rows out;
  out.rows = count;
  out.length = b.length;
  const auto take = [&](const auto& from, auto& to, num width = 1) {
    if (from.empty()) return;
    const num row = b.length * width;
    to.assign(from.begin() + first * row, from.begin() + (first + count) * row);
  };
  take(b.input_ids, out.input_ids);
  if (!b.inputs_embeds.empty())
    take(b.inputs_embeds, out.inputs_embeds, static_cast<num>(b.inputs_embeds.size()) / (b.rows * b.length));
  take(b.labels, out.labels);
  take(b.shift_labels, out.shift_labels);
  take(b.attention_mask, out.attention_mask);
  take(b.position_ids, out.position_ids);
  return out;
}

std::vector<std::vector<num>> find_documents(const batch_rows& b) {
  std::vector<std::vector<num>> documents(static_cast<std::size_t>(b.rows));
  for (num row = 0; row < b.rows; ++row) {
    std::vector<num>& lengths = documents[static_cast<std::size_t>(row)];
    lengths.push_back(1);
    for (num i = 1; i < b.length; ++i) {
      const auto at = static_cast<std::size_t>(row * b.length + i);
      const bool same =
          b.position_ids.empty() || !b.attention_mask.empty() || b.position_ids[at] == b.position_ids[at - 1] + 1;
      if (same)
        ++lengths.back();
      else
        lengths.push_back(1);
    }
  }
  return documents;
}

num count_targets(const batch_rows& b) {
  num count = 0;
  for (num row = 0; row < b.rows; ++row)
    for (num i = 0; i < b.length; ++i) {
      const auto at = static_cast<std::size_t>(row * b.length + i);
      if (!b.shift_labels.empty()) count += b.shift_labels[at] != ignored_target ? 1 : 0;
      if (!b.labels.empty() && i > 0) count += b.labels[at] != ignored_target ? 1 : 0;  // the first is nobody's target
    }
  return count;
}

std::uint64_t digest(const batch_rows& b) {
  std::uint64_t hash = 14695981039346656037ull;  // FNV-1a, over whole words
  const auto mix = [&](std::uint64_t word) { hash = (hash ^ word) * 1099511628211ull, hash ^= hash >> 29; };
  const auto field = [&](const auto& values) {
    mix(values.size());
    for (const auto v : values) {
      std::uint64_t word = 0;
      std::memcpy(&word, &v, sizeof v);
      mix(word);
    }
  };
  mix(static_cast<std::uint64_t>(b.rows));
  mix(static_cast<std::uint64_t>(b.length));
  field(b.input_ids), field(b.inputs_embeds), field(b.labels), field(b.shift_labels), field(b.attention_mask);
  field(b.position_ids);
  return hash;
}

}  // namespace shardplan::runtime
