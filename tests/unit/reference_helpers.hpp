// SPDX-License-Identifier: Apache-2.0
// What the tests of the baseline share: the fixtures of tests/data, models of random weights, comparison.
#ifndef SHARDPLAN_TESTS_UNIT_REFERENCE_HELPERS_HPP
#define SHARDPLAN_TESTS_UNIT_REFERENCE_HELPERS_HPP

#include <doctest/doctest.h>

#include <algorithm>   // copy, fill, max, min, sort
#include <array>       // array
#include <cmath>       // abs, exp, isfinite, log, sqrt
#include <filesystem>  // directory_iterator
#include <limits>      // numeric_limits
#include <string>      // string, to_string
#include <vector>      // vector

#include "runtime/checkpoint/init.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/error.hpp"
#include "runtime/reference/ops.hpp"
#include "runtime/reference/reference.hpp"

namespace shardplan::runtime::reference {

// ---- the fixtures

inline const std::filesystem::path data = SHARDPLAN_TEST_DATA;

struct fixture {
  std::string name;
  safetensors_file expected;
  reference_batch batch;
  std::vector<num> compared;  // (B, S): 1 where outputs are to be compared; empty: everywhere

  explicit fixture(const std::filesystem::path& folder)
      : name(folder.filename()), expected(safetensors_file::open(folder / "expected.safetensors")) {
    batch.rows = expected.at("labels").shape[0];
    batch.length = expected.at("labels").shape[1];
    batch.input_ids = integers("input_ids");
    if (const tensor_entry* embeds = expected.find("inputs_embeds")) batch.inputs_embeds = read_as<double>(*embeds);
    batch.labels = integers("labels");
    batch.shift_labels = integers("shift_labels");
    batch.attention_mask = integers("attention_mask");
    batch.position_ids = integers("position_ids");
    compared = integers("compare_mask");
  }
  std::vector<num> integers(const char* tensor) const {
    const tensor_entry* entry = expected.find(tensor);
    return entry == nullptr ? std::vector<num>() : read_as<num>(*entry);
  }
};

/// Folders of fixtures, sorted.
inline std::vector<std::filesystem::path> fixture_folders() {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(data))
    if (std::filesystem::exists(entry.path() / "expected.safetensors")) folders.push_back(entry.path());
  std::sort(folders.begin(), folders.end());
  return folders;
}

// ---- comparison

/// max|a - b| / max|b|, over the positions of `compared`; infinite where a number is not finite.
template <class A, class B>
double error_of(const A& a, const B& b, const std::vector<num>& compared = {}) {
  REQUIRE(a.size() == b.size());
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!compared.empty() && compared[i * compared.size() / a.size()] == 0) continue;
    if (!std::isfinite(a[i])) return INFINITY;
    difference = std::max(difference, std::abs(double(a[i]) - double(b[i])));
    largest = std::max(largest, std::abs(double(b[i])));
  }
  return difference / largest;
}

template <class T>
double largest_of(std::span<const T> values) {
  double largest = 0;
  for (T x : values) largest = std::max(largest, std::abs(double(x)));
  return largest;
}

template <class T>
void check_close(std::span<const T> a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < b.size(); ++i) {
    INFO("index ", i);
    CHECK(a[i] == doctest::Approx(b[i]).epsilon(sizeof(T) == 4 ? 1e-6 : 1e-14));
  }
}

// ---- inputs

/// A batch of one row.
inline reference_batch row_of(std::vector<num> ids) {
  reference_batch batch;
  batch.rows = 1, batch.length = static_cast<num>(ids.size());
  batch.input_ids = std::move(ids);
  return batch;
}

/// `rows` rows of tokens and labels below `vocab`, without a pattern.
inline reference_batch random_batch(num vocab, num rows, num length) {
  reference_batch batch;
  batch.rows = rows, batch.length = length;
  for (num i = 0; i < rows * length; ++i) batch.input_ids.push_back((i * i * 7 + i * 3 + i / 5) % vocab);
  batch.labels = batch.input_ids;
  return batch;
}

template <class T>
tensor<T> make_tensor(num rows, num cols, const std::vector<double>& values) {
  REQUIRE(rows * cols == static_cast<num>(values.size()));
  tensor<T> x(rows, cols);
  std::copy(values.begin(), values.end(), x.all().begin());
  return x;
}

/// Two layers of 5 experts; 4 query heads on 2 key/value heads, together wider than the hidden size.
inline model_config small_model() {
  model_config config;
  model_spec& m = config.spec;
  m.num_hidden_layers = 2, m.hidden_size = 12, m.vocab_size = 11;
  m.num_attention_heads = 4, m.num_key_value_heads = 2, m.head_dim = 6;
  m.intermediate_size = 7, m.moe_intermediate_size = 5, m.num_experts = 5, m.num_experts_per_tok = 2;
  config.norm_topk_prob = true;
  config.rms_norm_eps = 0.1;  // large enough to matter
  return config;
}

/// Weights far from ties and saturation; norms around one, biases not zero.
template <class T>
reference_model<T> random_model(const model_config& config, std::uint64_t seed = 0) {
  parameter_set<T> weights(config.spec);
  weights.for_each([&](const parameter& p, std::span<T> values) {
    const normal_stream normal(seed, name_of(p).view());
    const auto kind = class_of(p.kind);
    const bool is_norm = kind == parameter_class::norm || kind == parameter_class::head_norm;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = T((is_norm ? 1 : 0) + 0.4 * normal(num(i)));
  });
  return {config, std::move(weights)};
}

}  // namespace shardplan::runtime::reference
#endif  // SHARDPLAN_TESTS_UNIT_REFERENCE_HELPERS_HPP
