// SPDX-License-Identifier: Apache-2.0
// The forward of the baseline: what `transformers` computed (tests/data), what masks, positions and windows do.
#include <doctest/doctest.h>

#include "reference_helpers.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::reference;

namespace {

template <class T>
reference_result<T> forward_of(const std::filesystem::path& folder, const reference_batch& batch) {
  return reference_model<T>(checkpoint::open(folder)).forward(batch);
}

}  // namespace

TEST_CASE_TEMPLATE("every fixture is reproduced", T, float, double) {
  const auto folders = fixture_folders();
  REQUIRE(folders.size() >= 16);
  for (const auto& folder : folders) {
    const fixture f(folder);
    const reference_result<T> result = forward_of<T>(folder, f.batch);
    const auto expected = [&](const char* name) { return read_as<double>(f.expected.at(name)); };
    const double logits = error_of(result.logits, expected("logits"), f.compared);
    const double token_loss = error_of(result.token_loss, expected("token_loss"), f.compared);
    const double loss = error_of(std::vector<T>{result.loss}, expected("loss"));
    MESSAGE(f.name, " ", sizeof(T) == 4 ? "f32" : "f64", ": logits ", logits, ", token_loss ", token_loss, ", loss ",
            loss, ", margin ", result.smallest_margin);
    INFO(f.name);
    CHECK(logits <= 1e-5);
    CHECK(token_loss <= 1e-5);
    CHECK(loss <= 1e-5);
    CHECK((f.expected.find("aux_loss") != nullptr) == (result.balance_loss != 0));
    if (f.expected.find("aux_loss") != nullptr)
      CHECK(error_of(std::vector<T>{result.balance_loss}, expected("aux_loss")) <= 1e-5);
    CHECK(result.smallest_margin > 1e-5);
  }
}

TEST_CASE("the result says where every token went") {
  const fixture f(data / "sparse_step");
  const auto result = forward_of<double>(data / "sparse_step", f.batch);
  const model_spec m = read_config(data / "sparse_step").spec;
  REQUIRE(result.choices.size() == 2);  // of 6 layers each second one, without layer 3
  CHECK(result.choices[0].layer == 1);
  CHECK(result.choices[1].layer == 5);
  double smallest = INFINITY;
  for (const layer_choices& c : result.choices) {
    CHECK(c.experts.size() == 3 * 11 * 2);
    for (num e : c.experts) CHECK((e >= 0 && e < m.num_experts));
    for (std::size_t i = 0; i < c.experts.size(); i += 2) CHECK(c.experts[i] != c.experts[i + 1]);
    for (double margin : c.margins) smallest = std::min(smallest, margin);
  }
  CHECK(result.smallest_margin == smallest);
}

TEST_CASE_TEMPLATE("two runs agree to the last bit", T, float, double) {
  const fixture f(data / "tiny");
  const reference_model<T> model(checkpoint::open(data / "tiny"));
  const auto a = model.forward(f.batch);
  const std::vector<char> shift_the_heap(1000 + 8);
  const auto b = model.forward(f.batch);
  CHECK(a.logits == b.logits);
  CHECK(a.token_loss == b.token_loss);
  CHECK(a.loss == b.loss);
}

TEST_CASE("embeddings may be given instead of ids") {
  const fixture f(data / "tiny");
  const reference_model<double> model(checkpoint::open(data / "tiny"));
  reference_batch batch = f.batch;
  const auto& table = model.weights().at(parameter_kind::embed_tokens);
  for (num id : batch.input_ids)
    batch.inputs_embeds.insert(batch.inputs_embeds.end(), table.row(id), table.row(id) + table.cols());
  batch.input_ids.clear();
  CHECK(model.forward(batch).logits == model.forward(f.batch).logits);
}

TEST_CASE("a mask and positions mean what they mean to transformers") {
  const reference_model<double> model(checkpoint::open(data / "tiny"));
  const num V = model.config().spec.vocab_size;
  const auto last_logits = [&](const reference_batch& batch, num count) {
    const auto logits = model.forward(batch).logits;
    return std::vector<double>(logits.end() - count * V, logits.end());
  };
  reference_batch alone = row_of({7, 8, 9});
  const auto expected = last_logits(alone, 3);

  reference_batch packed = row_of({1, 2, 3, 7, 8, 9});
  packed.position_ids = {0, 1, 2, 0, 1, 2};
  CHECK(error_of(last_logits(packed, 3), expected) <= 1e-12);
  // With a mask, even one that hides nothing, a row is one document.
  packed.attention_mask = {1, 1, 1, 1, 1, 1};
  CHECK(error_of(last_logits(packed, 3), expected) > 1e-3);
  packed.attention_mask = {0, 0, 0, 1, 1, 1};
  CHECK(error_of(last_logits(packed, 3), expected) <= 1e-12);
  // Without positions padding moves the tokens, which rotary embedding does not notice; hidden rows stay finite.
  packed.position_ids.clear();
  const auto padded = model.forward(packed);
  CHECK(error_of(last_logits(packed, 3), expected) <= 1e-12);
  for (double x : padded.logits) REQUIRE(std::isfinite(x));
  // A jump by two begins a document; a late start does not.
  packed.attention_mask.clear();
  packed.position_ids = {4, 5, 6, 8, 9, 10};
  CHECK(error_of(last_logits(packed, 3), expected) <= 1e-12);
  packed.position_ids = {4, 5, 6, 7, 8, 9};
  CHECK(error_of(last_logits(packed, 6), last_logits(row_of({1, 2, 3, 7, 8, 9}), 6)) <= 1e-12);
}

TEST_CASE("hidden tokens do not count for the smallest margin") {
  const reference_model<double> model(checkpoint::open(data / "tiny"));
  bool hidden_is_closer = false;
  for (num id = 0; id < 20; ++id) {
    reference_batch batch = row_of({id, 50, 51});
    batch.attention_mask = {0, 1, 1};
    const auto result = model.forward(batch);
    double hidden = INFINITY, real = INFINITY;
    for (const layer_choices& c : result.choices) {
      hidden = std::min(hidden, c.margins[0]);
      real = std::min({real, c.margins[1], c.margins[2]});
    }
    CHECK(result.smallest_margin == real);
    hidden_is_closer |= hidden < real;
  }
  CHECK(hidden_is_closer);
}

TEST_CASE("nothing sees the future") {
  const reference_model<double> model(checkpoint::open(data / "tiny"));
  reference_batch a = row_of({1, 2, 3, 4, 5, 6}), b = row_of({1, 2, 3, 4, 50, 60});
  const auto before = model.forward(a).logits, after = model.forward(b).logits;
  const num V = model.config().spec.vocab_size;
  const auto first = [&](const auto& logits) { return std::vector<double>(logits.begin(), logits.begin() + 4 * V); };
  CHECK(error_of(first(before), first(after)) <= 1e-13);
}

TEST_CASE("each layer has its window") {
  model_config config = small_model();
  config.spec.num_hidden_layers = 1;
  const reference_batch batch = random_batch(11, 2, 9);
  const auto logits = [&](num window, bool full) {
    config.spec.sliding_window = window;
    config.spec.full_attention_layers = {};
    if (full) config.spec.full_attention_layers.insert(0);
    return random_model<double>(config).forward(batch).logits;
  };
  CHECK(error_of(logits(3, false), logits(0, false)) > 1e-3);
  CHECK(logits(3, true) == logits(0, false));

  config.spec.num_hidden_layers = 2;  // full, then 3, is neither 3, then full, nor both 3
  config.spec.sliding_window = 3;
  std::vector<std::vector<double>> all;
  for (int layers : {0, 1, 2, 3}) {
    config.spec.full_attention_layers = {};
    for (num layer : {0, 1})
      if (layers >> layer & 1) config.spec.full_attention_layers.insert(layer);
    all.push_back(random_model<double>(config).forward(batch).logits);
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < i; ++j) CHECK(error_of(all[i], all[j]) > 1e-3);
}

TEST_CASE("without norms of queries and keys their weights reach the scores as they are") {
  model_config config = small_model();
  config.spec.head_norm = false;
  const reference_batch batch = random_batch(11, 2, 9);
  reference_model<double> plain = random_model<double>(config);
  CHECK_FALSE(plain.weights().has(parameter_kind::q_norm, 0));
  const auto before = plain.forward(batch).logits;
  config.spec.head_norm = true;
  CHECK(error_of(random_model<double>(config).forward(batch).logits, before) > 1e-3);
  // Queries twice as long and keys half as long make the same scores; that is so without norms only.
  for (double& x : plain.weights().at(parameter_kind::q_proj, 1).all()) x *= 2;
  CHECK(error_of(plain.forward(batch).logits, before) > 1e-3);
  for (double& x : plain.weights().at(parameter_kind::k_proj, 1).all()) x /= 2;
  CHECK(error_of(plain.forward(batch).logits, before) <= 1e-13);
}

TEST_CASE("rows longer than a block of attention") {
  // 300 queries are three blocks; one sequence in a row and in two packed documents is the same as alone.
  const reference_model<double> model(checkpoint::open(data / "tiny"));
  const num V = model.config().spec.vocab_size;
  std::vector<num> ids(300), twice;
  for (num i = 0; i < 300; ++i) ids[i] = (i * 37 + i * i % 11) % V;
  const auto alone = model.forward(row_of(ids));
  twice = ids;
  twice.insert(twice.end(), ids.begin(), ids.end());
  reference_batch packed = row_of(twice);
  for (num i = 0; i < 600; ++i) packed.position_ids.push_back(i % 300);
  auto logits = model.forward(packed).logits;
  CHECK(error_of(std::vector<double>(logits.begin(), logits.begin() + 300 * V), alone.logits) <= 1e-11);
  CHECK(error_of(std::vector<double>(logits.begin() + 300 * V, logits.end()), alone.logits) <= 1e-11);
  CHECK(error_of(forward_of<float>(data / "tiny", row_of(ids)).logits, alone.logits) <= 2e-5);
}

TEST_CASE("the loss is a sum over labels, divided by a count") {
  const reference_model<double> model(checkpoint::open(data / "tiny"));
  reference_batch batch = row_of({1, 2, 3, 4});
  const auto unlabelled = model.forward(batch);
  CHECK(unlabelled.loss == 0);
  CHECK(unlabelled.num_items == 0);
  CHECK(unlabelled.token_loss == std::vector<double>(4));

  batch.labels = {-100, 2, -100, 4};
  const auto shifted = model.forward(batch);
  CHECK(shifted.num_items == 2);
  CHECK(shifted.token_loss[0] > 0);
  CHECK(shifted.token_loss[1] == 0);
  CHECK(shifted.token_loss[2] > 0);
  CHECK(shifted.token_loss[3] == 0);
  CHECK(shifted.loss == doctest::Approx((shifted.token_loss[0] + shifted.token_loss[2]) / 2).epsilon(1e-15));

  batch.shift_labels = {2, -100, 4, -100};
  batch.labels = {5, 6, 7, 8};  // no longer looked at
  CHECK(model.forward(batch).token_loss == shifted.token_loss);

  batch.num_items = 8;
  CHECK(model.forward(batch).loss == doctest::Approx(shifted.loss / 4).epsilon(1e-15));
  CHECK(model.forward(batch).num_items == 8);

  batch.shift_labels = {-100, -100, -100, -100};
  batch.num_items.reset();
  CHECK(model.forward(batch).loss == 0);
  batch.num_items = 0;
  CHECK(model.forward(batch).loss == 0);
}
