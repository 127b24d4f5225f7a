// SPDX-License-Identifier: Apache-2.0
// What a batch means for every token, and which batches and models the baseline refuses.
#include <doctest/doctest.h>
#include <unistd.h>  // getpid

#include "reference_helpers.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::reference;

namespace {

/// The text of the input_error that `f` throws; empty when it does not.
template <class F>
std::string refusal_of(F&& f) {
  try {
    f();
  } catch (const input_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("what follows from a batch for every token") {
  model_spec m;
  m.vocab_size = 10;
  reference_batch batch;
  batch.rows = 2, batch.length = 4;
  batch.input_ids = batch.labels = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto first_keys = [&](num window) {
    const token_info tokens = token_info_of(m, batch);
    std::vector<num> first;
    for (num i = 0; i < tokens.num_tokens(); ++i) first.push_back(tokens.first_key(i, window));
    return first;
  };
  const token_info plain = token_info_of(m, batch);
  CHECK(plain.positions == std::vector<num>{0, 1, 2, 3, 0, 1, 2, 3});
  CHECK(first_keys(0) == std::vector<num>{0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(plain.is_hidden.empty());
  CHECK(plain.targets == std::vector<num>{2, 3, 4, -100, 6, 7, 8, -100});
  CHECK(plain.num_targets == 6);
  CHECK(plain.micro_batch == std::vector<num>{0, 0});
  CHECK(plain.num_micro_batches == 1);
  batch.micro_batch_of_row = {9, 4};
  CHECK(token_info_of(m, batch).micro_batch == std::vector<num>{0, 1});
  CHECK(token_info_of(m, batch).num_micro_batches == 2);

  batch.position_ids = {5, 6, 0, 1, 3, 4, 5, 6};
  CHECK(token_info_of(m, batch).positions == batch.position_ids);
  CHECK(first_keys(0) == std::vector<num>{0, 0, 2, 2, 0, 0, 0, 0});
  CHECK(first_keys(3) == std::vector<num>{0, 0, 2, 2, 0, 0, 0, 1});
  batch.attention_mask = {1, 1, 1, 0, 0, 1, 1, 1};
  CHECK(first_keys(3) == std::vector<num>{0, 0, 0, 1, 0, 0, 0, 1});
  CHECK(token_info_of(m, batch).is_hidden == std::vector<char>{0, 0, 0, 1, 1, 0, 0, 0});
  CHECK(token_info_of(m, batch).positions == batch.position_ids);
}

TEST_CASE("what makes no sense is refused by name") {
  const reference_model<float> model(checkpoint::open(data / "tiny"));
  const reference_batch good = row_of({1, 2, 3, 4});
  const auto refused = [&](auto change) {
    reference_batch batch = good;
    change(batch);
    return refusal_of([&] { model.forward(batch); });
  };
  using batch = reference_batch;
  CHECK(refused([](batch&) {}) == "");
  CHECK(refused([](batch& b) { b.input_ids[2] = 96; }) == "input_ids[0, 2] = 96: must be from 0 to 95");
  CHECK(refused([](batch& b) { b.input_ids[0] = -1; }) == "input_ids[0, 0] = -1: must be from 0 to 95");
  CHECK(refused([](batch& b) { b.labels = {1, 2, 3, -7}; }) == "labels[0, 3] = -7: must be from 0 to 95 or -100");
  CHECK(refused([](batch& b) {
          b.shift_labels = {1, 96, 3, 4};
        }) == "shift_labels[0, 1] = 96: must be from 0 to 95 or -100");
  CHECK(refused([](batch& b) { b.attention_mask = {1, 2, 1, 1}; }) == "attention_mask[0, 1] = 2: must be from 0 to 1");
  CHECK(refused([](batch& b) { b.position_ids = {0, 1, 2, -3}; }).starts_with("position_ids[0, 3] = -3: must be"));
  CHECK(refused([](batch& b) { b.labels = {1, 2, 3}; }) == "labels: has 3 values, must have 4");
  CHECK(refused([](batch& b) { b.input_ids.push_back(1); }) == "input_ids: has 5 values, must have 4");
  CHECK(refused([](batch& b) { b.attention_mask = {1}; }) == "attention_mask: has 1 values, must have 4");
  CHECK(refused([](batch& b) { b.position_ids = {1}; }) == "position_ids: has 1 values, must have 4");
  CHECK(refused([](batch& b) { b.shift_labels = {1}; }) == "shift_labels: has 1 values, must have 4");
  CHECK(refused([](batch& b) { b.micro_batch_of_row = {1, 2}; }) == "micro_batch_of_row: has 2 values, must have 1");
  CHECK(refused([](batch& b) { b.rows = 0; }).starts_with("rows, length = 0, 4: must be at least 1"));
  CHECK(refused([](batch& b) { b.length = -4; }).starts_with("rows, length = 1, -4: must be at least 1"));
  CHECK(refused([](batch& b) { b.input_ids.clear(); }).starts_with("input_ids, inputs_embeds: exactly one"));
  CHECK(refused([](batch& b) { b.inputs_embeds.resize(4 * 32); }).starts_with("input_ids, inputs_embeds: exactly one"));
  CHECK(refused([](batch& b) {
          b.input_ids.clear();
          b.inputs_embeds.resize(4 * 32);
          b.inputs_embeds[5] = INFINITY;
        }) == "inputs_embeds[5] = inf: must be finite");
  CHECK(refused([](batch& b) {
          b.input_ids.clear();
          b.inputs_embeds.resize(4 * 31);
        }) == "inputs_embeds: has 124 values, must have 128");
  CHECK(refused([](batch& b) { b.num_items = -1; }).starts_with("num_items = -1: must be at least 1"));
  CHECK(refused([](batch& b) { b.labels = {1, 2, 3, 4}, b.num_items = 0; }).starts_with("num_items = 0: must be"));
}

TEST_CASE("a model that makes no sense is refused") {
  model_config config = read_config(data / "tied");
  const auto refused = [&](auto change) {
    model_config changed = config;
    change(changed.spec);
    const auto folder = std::filesystem::temp_directory_path() / ("shardplan_model_" + std::to_string(getpid()));
    std::filesystem::remove_all(folder);
    write_random_checkpoint(folder, changed);
    const std::string text = refusal_of([&] { reference_model<float>(checkpoint::open(folder)); });
    std::filesystem::remove_all(folder);
    return text;
  };
  CHECK(refused([](model_spec&) {}) == "");
  CHECK(refused([](model_spec& m) { m.num_key_value_heads = 3; }) ==
        "num_key_value_heads = 3: must divide num_attention_heads 4");
  CHECK(refused([](model_spec& m) { m.head_dim = 5; }) == "head_dim = 5: must be even: rotary embedding turns pairs");
  CHECK(refused([](model_spec& m) { m.num_experts_per_tok = 5; }) ==
        "num_experts_per_tok = 5: must be from 1 to num_experts 4");
}
