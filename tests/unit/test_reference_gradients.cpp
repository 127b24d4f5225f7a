// SPDX-License-Identifier: Apache-2.0
// The backward of the baseline: against what `transformers` computed (tests/data), and against finite differences of
// the forward; the auxiliary loss.
#include <doctest/doctest.h>

#include "reference_helpers.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::reference;

namespace {

/// The largest gradient of all parameters.
template <class T>
double largest_of(const parameter_set<T>& gradients) {
  double largest = 0;
  gradients.for_each(
      [&](const parameter&, std::span<const T> values) { largest = std::max(largest, reference::largest_of(values)); });
  return largest;
}

// ---- finite differences

struct configuration {
  std::string name;
  model_config config;
  reference_batch batch;
};

std::vector<configuration> configurations() {
  std::vector<configuration> all;
  const auto add = [&](const char* name, num rows, num length, auto change) {
    configuration c{name, small_model(), random_batch(11, rows, length)};
    change(c.config, c.config.spec, c.batch);
    all.push_back(std::move(c));
  };
  add("plain", 2, 7, [](model_config&, model_spec&, reference_batch&) {});
  add("no eps", 2, 7, [](model_config& c, model_spec&, reference_batch&) { c.rms_norm_eps = 0; });
  add("sliding", 2, 7,
      [](model_config&, model_spec& m, reference_batch&) { m.sliding_window = 3, m.full_attention_layers.insert(1); });
  add("packed", 2, 7, [](model_config&, model_spec&, reference_batch& b) {
    b.position_ids = {0, 1, 2, 0, 0, 1, 2, 4, 5, 6, 7, 8, 0, 1};
  });
  add("tied", 2, 7, [](model_config&, model_spec& m, reference_batch&) { m.tie_word_embeddings = true; });
  add("biases", 2, 7, [](model_config&, model_spec& m, reference_batch&) { m.attention_bias = true; });
  add("dense, no norms of heads, biases", 2, 7, [](model_config&, model_spec& m, reference_batch&) {
    m.num_experts = m.num_experts_per_tok = 0;
    m.head_norm = false, m.attention_bias = true;
  });
  add("weights as they are, 3 of 5", 2, 7,
      [](model_config& c, model_spec& m, reference_batch&) { c.norm_topk_prob = false, m.num_experts_per_tok = 3; });
  add("1 of 5", 2, 7,
      [](model_config& c, model_spec& m, reference_batch&) { c.norm_topk_prob = false, m.num_experts_per_tok = 1; });
  add("masks", 3, 6, [](model_config&, model_spec&, reference_batch& b) {
    b.attention_mask = {1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    b.labels[0] = b.labels[4] = b.labels[5] = b.labels[6] = b.labels[7] = b.labels[8] = -100;
    b.labels[15] = -100;
  });
  add("auxiliary", 4, 5, [](model_config& c, model_spec& m, reference_batch& b) {
    m.num_hidden_layers = 3, m.mlp_only_layers.insert(1);
    c.output_router_logits = true, c.router_aux_loss_coef = 0.7;
    b.attention_mask.assign(20, 1), b.attention_mask[4] = b.attention_mask[10] = b.attention_mask[11] = 0;
    b.labels[4] = b.labels[10] = b.labels[11] = b.labels[12] = -100;
    b.micro_batch_of_row = {7, 3, 7, 7};
  });
  add("embeddings given, tied", 1, 4, [](model_config&, model_spec& m, reference_batch& b) {
    m.tie_word_embeddings = true;
    b.input_ids.clear();
    for (int i = 0; i < 4 * 12; ++i) b.inputs_embeds.push_back(std::sin(i * i));
  });
  add("a count of items, shifted labels", 2, 4, [](model_config&, model_spec&, reference_batch& b) {
    b.num_items = 31, b.shift_labels = {3, -100, 5, 6, -100, -100, -100, 1};
  });
  add("yarn", 2, 7, [](model_config& c, model_spec& m, reference_batch&) {
    m.head_dim = 8, m.scaled_rotary = true;
    c.rope.type = rope_config::scaling::yarn, c.rope.theta = 20, c.rope.factor = 4, c.rope.original_max_positions = 16;
    c.rope.attention_factor = 1.4;
  });
  add("longer than a block of queries", 1, 150,
      [](model_config&, model_spec& m, reference_batch&) { m.num_hidden_layers = 1; });
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("the gradients of every fixture are those of transformers", T, float, double) {
  for (const auto& folder : fixture_folders()) {
    const fixture f(folder);
    INFO(f.name);
    const reference_model<T> model(checkpoint::open(folder));
    const auto all = model.gradients(f.batch);
    CHECK(all.result.logits == model.forward(f.batch).logits);
    CHECK(all.result.loss == model.forward(f.batch).loss);

    const double largest = largest_of(all.gradients);
    double worst = 0, squares = 0;
    num compared = 0;
    all.gradients.for_each([&](const parameter& p, std::span<const T> ours) {
      const auto name = name_of(p);
      INFO(name.view());
      const auto theirs = read_as<double>(f.expected.at("grad." + std::string(name.view())));
      ++compared;
      for (double x : theirs) squares += x * x;
      if (reference::largest_of(std::span<const double>(theirs)) == 0) {
        CHECK(reference::largest_of(ours) <= 1e-10 * largest);
        return;
      }
      const double error = error_of(ours, theirs);
      worst = std::max(worst, error);
      CHECK(error <= (sizeof(T) == 4 ? 1e-4 : 1e-5));
    });
    const auto names = f.expected.names();
    CHECK(compared == std::count_if(names.begin(), names.end(), [](const auto& n) { return n.starts_with("grad."); }));
    CHECK(all.norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-5));
    MESSAGE(f.name, " ", sizeof(T) == 4 ? "f32" : "f64", ": worst of ", compared, " gradients ", worst);
  }
}

TEST_CASE("gradients are finite differences of the loss") {
  for (const configuration& c : configurations()) {
    reference_model<double> model = random_model<double>(c.config);
    const auto all = model.gradients(c.batch);
    INFO(c.name);
    REQUIRE(all.result.loss == model.forward(c.batch).loss);
    REQUIRE(all.result.smallest_margin > 1e-4);  // no difference crosses a tie
    double worst = 0;
    num checked = 0;
    model.weights().for_each([&](const parameter& p, std::span<double> weights) {
      const auto gradient = all.gradients.at(p.kind, p.layer).all();
      const double scale = std::max(reference::largest_of(gradient), 1e-3 * largest_of(all.gradients));
      const auto steepest = std::max_element(gradient.begin(), gradient.end(),
                                             [](double a, double b) { return std::abs(a) < std::abs(b); });
      std::vector<std::size_t> sample = {std::size_t(steepest - gradient.begin())};
      for (std::size_t i = 1; i <= 6; ++i) sample.push_back((i * 7919 + i * i * 104729) % weights.size());
      for (std::size_t i : sample) {
        const double weight = weights[i], h = 1e-5;
        weights[i] = weight + h;
        const double above = model.forward(c.batch).loss;
        weights[i] = weight - h;
        const double below = model.forward(c.batch).loss;
        weights[i] = weight;
        const double error = std::abs((above - below) / (2 * h) - gradient[i]) / scale;
        INFO(name_of(p).view(), " [", i, "]");
        CHECK(error <= 1e-6);
        worst = std::max(worst, error);
        ++checked;
      }
    });
    MESSAGE(c.name, ": ", checked, " elements, worst ", worst);
  }
}

TEST_CASE("the gradient of single precision is that of double") {
  for (const configuration& c : configurations()) {
    INFO(c.name);
    const auto all = random_model<double>(c.config).gradients(c.batch);
    const auto f32 = random_model<float>(c.config).gradients(c.batch);
    all.gradients.for_each([&](const parameter& p, std::span<const double> expected) {
      INFO(name_of(p).view());
      if (reference::largest_of(expected) > 1e-6 * largest_of(all.gradients))
        CHECK(error_of(f32.gradients.at(p.kind, p.layer).all(), expected) <= 1e-4);
    });
  }
}

TEST_CASE_TEMPLATE("without a label there is no loss and no gradient, auxiliary loss or not", T, float, double) {
  for (bool auxiliary : {false, true}) {
    model_config config = small_model();
    config.output_router_logits = auxiliary;
    const auto model = random_model<T>(config);
    reference_batch batch = random_batch(11, 2, 5);
    const auto is_nothing = [&] {
      const auto all = model.gradients(batch);
      return all.result.loss == 0 && all.norm == 0 && largest_of(all.gradients) == 0 &&
             (all.result.balance_loss > 0) == auxiliary;
    };
    CHECK_FALSE(is_nothing());
    batch.labels.assign(10, -100);
    CHECK(is_nothing());
    batch.num_items = 7;
    CHECK(is_nothing());
    batch.num_items.reset();
    batch.labels.clear();
    CHECK(is_nothing());
  }
}

TEST_CASE("the embedding has no gradient where embeddings are given, or where no token is") {
  const auto model = random_model<double>(small_model());
  reference_batch batch = row_of({3, 5, 3});
  batch.labels = {3, 5, 3};
  const auto by_id = model.gradients(batch);
  const auto& table = by_id.gradients.at(parameter_kind::embed_tokens);
  for (num id = 0; id < 11; ++id) {
    const double largest = largest_of(std::span<const double>(table.row(id), 12));
    CHECK((largest > 0) == (id == 3 || id == 5));
  }
  for (num id : batch.input_ids) {
    const double* row = model.weights().at(parameter_kind::embed_tokens).row(id);
    batch.inputs_embeds.insert(batch.inputs_embeds.end(), row, row + 12);
  }
  batch.input_ids.clear();
  const auto given = model.gradients(batch);
  CHECK(largest_of(given.gradients.at("model.embed_tokens.weight")) == 0);
  CHECK(given.gradients.at(parameter_kind::lm_head).all()[5] == by_id.gradients.at(parameter_kind::lm_head).all()[5]);
  CHECK_THROWS_AS(given.gradients.at("model.embed_tokens"), std::out_of_range);
}

TEST_CASE("gradients are plain sums over rows") {
  // The loss is divided by the count of all labels, whatever their rows: so are the gradients.
  const auto model = random_model<double>(small_model());
  const reference_batch both = random_batch(11, 2, 6);
  const auto whole = model.gradients(both);
  parameter_set<double> sum(small_model().spec);
  for (num row : {0, 1}) {
    reference_batch alone = row_of({both.input_ids.begin() + row * 6, both.input_ids.begin() + row * 6 + 6});
    alone.labels = alone.input_ids;
    alone.num_items = 10;
    const auto part = model.gradients(alone);
    sum.for_each([&](const parameter& p, std::span<double> values) {
      const auto more = part.gradients.at(p.kind, p.layer).all();
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += more[i];
    });
  }
  sum.for_each([&](const parameter& p, std::span<double> values) {
    CHECK(error_of(values, whole.gradients.at(p.kind, p.layer).all()) <= 1e-12);
  });
}

// ---- the auxiliary loss

TEST_CASE("the auxiliary loss multiplies means over layers and tokens") {
  // Two layers, two tokens, one of three experts each: expert 0 thrice, expert 2 once.
  token_info tokens;
  tokens.rows = 1, tokens.length = 2, tokens.micro_batch = {0};
  routing<double> first, second;
  first.top_k = second.top_k = 1;
  first.experts = {0, 0}, second.experts = {2, 0};
  first.probabilities = make_tensor<double>(2, 3, {0.6, 0.3, 0.1, 0.8, 0.1, 0.1});
  second.probabilities = make_tensor<double>(2, 3, {0.2, 0.2, 0.6, 0.4, 0.4, 0.2});
  balance_sums sums(tokens, 3);
  sums.add(tokens, first);
  sums.add(tokens, second);
  CHECK(balance_loss(sums) == doctest::Approx(3 * (3 / 4.0 * (2.0 / 4) + 1 / 4.0 * (1.0 / 4))).epsilon(1e-15));

  tensor<double> d(2, 3);
  balance_loss_backward(tokens, sums, 10, d);
  const double often = 10 * 3 * (3 / 4.0) / 4, once = 10 * 3 * (1 / 4.0) / 4;
  check_close<double>(d.all(), {often, 0, once, often, 0, once});

  tokens.is_hidden = {0, 1};
  balance_sums half(tokens, 3);
  half.add(tokens, first);
  half.add(tokens, second);
  CHECK(balance_loss(half) == doctest::Approx(3 * (1 / 2.0 * (0.8 / 2) + 1 / 2.0 * (0.7 / 2))).epsilon(1e-15));
  tensor<double> of_half(2, 3);
  balance_loss_backward(tokens, half, 10, of_half);
  check_close<double>(of_half.all(), {7.5, 0, 7.5, 0, 0, 0});
}

TEST_CASE("the auxiliary loss is averaged over micro-batches") {
  model_config config = small_model();
  config.output_router_logits = true, config.router_aux_loss_coef = 0.25;
  const auto model = random_model<double>(config);
  const reference_batch whole = random_batch(11, 4, 6);
  const auto balance_of_rows = [&](std::vector<num> rows) {
    reference_batch part;
    part.rows = static_cast<num>(rows.size()), part.length = 6;
    for (num row : rows)
      part.input_ids.insert(part.input_ids.end(), &whole.input_ids[row * 6], &whole.input_ids[row * 6] + 6);
    return model.forward(part).balance_loss;
  };
  reference_batch batch = whole;
  const double one = model.forward(batch).balance_loss;
  CHECK(one == doctest::Approx(balance_of_rows({0, 1, 2, 3})).epsilon(1e-13));
  batch.micro_batch_of_row = {5, 5, 5, 5};
  CHECK(model.forward(batch).balance_loss == one);
  batch.micro_batch_of_row = {0, 1, 0, 1};
  const double alternating = (balance_of_rows({0, 2}) + balance_of_rows({1, 3})) / 2;
  CHECK(model.forward(batch).balance_loss == doctest::Approx(alternating).epsilon(1e-13));
  CHECK(std::abs(alternating - one) > 1e-4);
  batch.micro_batch_of_row = {8, 2, 2, 2};
  const double uneven = (balance_of_rows({0}) + balance_of_rows({1, 2, 3})) / 2;
  CHECK(model.forward(batch).balance_loss == doctest::Approx(uneven).epsilon(1e-13));

  config.output_router_logits = false;
  const auto without = random_model<double>(config).forward(batch);
  CHECK(without.balance_loss == 0);
  CHECK(model.forward(batch).loss == doctest::Approx(without.loss + 0.25 * uneven).epsilon(1e-14));
  // The count of items divides the cross-entropy alone.
  batch.num_items = 1000;
  CHECK(model.forward(batch).loss == doctest::Approx(without.loss * 20 / 1000 + 0.25 * uneven).epsilon(1e-14));
  // A micro-batch of hidden rows alone has nothing to balance, and counts.
  batch.attention_mask.assign(24, 1);
  std::fill(batch.attention_mask.begin(), batch.attention_mask.begin() + 6, 0);
  CHECK(model.forward(batch).balance_loss == doctest::Approx(balance_of_rows({1, 2, 3}) / 2).epsilon(1e-13));
}

TEST_CASE("the auxiliary loss of a router that does not tell experts apart is the number of experts per token") {
  model_config config = small_model();
  config.output_router_logits = true;
  auto model = random_model<double>(config);
  for (num layer : {0, 1}) {
    auto router = model.weights().at(parameter_kind::router, layer).all();
    std::fill(router.begin(), router.end(), 0.0);
  }
  CHECK(model.forward(random_batch(11, 2, 6)).balance_loss == doctest::Approx(2).epsilon(1e-14));
}
