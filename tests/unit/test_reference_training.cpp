// SPDX-License-Identifier: Apache-2.0
// Training of the baseline against torch.
#include <doctest/doctest.h>

#include "reference_helpers.hpp"
#include "runtime/reference/training.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::reference;

TEST_CASE_TEMPLATE("AdamW is that of torch", T, float, double) {
  // torch.optim.AdamW(lr=0.1, betas=(0.8, 0.95), eps=0.01, weight_decay=0.3) on three weights, in f64.
  const reference_adamw options{
      .learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 0.01, .weight_decay = 0.3};
  const double gradients[3][3] = {{1, -0.02, 0}, {0.5, 0.04, 0.001}, {-3, 0.01, 0.002}};
  const double expected[3][3] = {{0.385990099009901, -1.8733333333333333, 0.2425},
                                 {0.28350360469058444, -1.84898165866041, 0.23004069988670586},
                                 {0.3173786704556135, -1.8264317096704898, 0.21299978637623743}};
  std::array<T, 3> weights = {T(0.5), T(-2), T(0.25)}, first{}, second{};
  for (num step = 1; step <= 3; ++step) {
    std::array<T, 3> gradient;
    std::copy_n(gradients[step - 1], 3, gradient.begin());
    adamw<T>(options, step, gradient, weights, first, second);
    for (int i = 0; i < 3; ++i)
      CHECK(weights[i] == doctest::Approx(expected[step - 1][i]).epsilon(sizeof(T) == 4 ? 1e-6 : 1e-14));
  }
  // The first step by hand: 0.5 (1 - 0.03) - 0.1 * 1 / (1 + 0.01).
  CHECK(expected[0][0] == doctest::Approx(0.485 - 0.1 / 1.01).epsilon(1e-15));
  CHECK(second[0] == doctest::Approx(0.05 * (0.95 * 0.95 + 0.95 * 0.25 + 9)).epsilon(1e-6));
}

TEST_CASE_TEMPLATE("four steps of tiny are those of transformers and torch", T, float, double) {
  // Qwen3MoeForCausalLM in f32 (eager attention and experts) with torch.optim.AdamW(lr=1e-2, betas=(0.9, 0.95),
  // eps=1e-5, weight_decay=0.1), the inputs of the fixture in every step.
  const reference_adamw options{
      .learning_rate = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-5, .weight_decay = 0.1};
  const double losses[] = {5.404637813568115, 4.084965229034424, 3.289130926132202, 2.820448398590088};
  const double norms[] = {4.181225295853469, 2.3112092235138704, 1.4755794311773618, 1.3548091517220304};
  const fixture f(data / "tiny");
  reference_training<T> training(reference_model<T>(checkpoint::open(data / "tiny")), options);
  for (int step = 0; step < 4; ++step) {
    INFO("step ", step);
    const auto all = training.step(f.batch);
    CHECK(all.result.loss == doctest::Approx(losses[step]).epsilon(1e-5));
    CHECK(all.norm == doctest::Approx(norms[step]).epsilon(1e-4));
  }
  CHECK(training.num_steps() == 4);
  const auto norm = training.model().weights().at("model.norm.weight");
  CHECK(norm[0] == doctest::Approx(0.9659916162490845).epsilon(1e-5));
  CHECK(norm[1] == doctest::Approx(1.0298875570297241).epsilon(1e-5));
}

TEST_CASE("a step returns what was before it, and moves every parameter") {
  model_config config = small_model();
  config.spec.attention_bias = true, config.spec.mlp_only_layers.insert(1);
  const reference_batch batch = random_batch(11, 2, 7);
  const reference_model<double> model = random_model<double>(config);
  const reference_adamw options{.learning_rate = 0.01};
  reference_training<double> training(model, options);

  const auto before = model.gradients(batch), first = training.step(batch);
  CHECK(first.result.logits == before.result.logits);
  CHECK(first.norm == before.norm);
  model.weights().for_each([&](const parameter& p, std::span<const double> weights) {
    INFO(name_of(p).view());
    const auto gradient = before.gradients.at(p.kind, p.layer).all(),
               after = training.model().weights().at(p.kind, p.layer).all();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double g = gradient[i];
      CHECK(after[i] == doctest::Approx(weights[i] * (1 - 1e-4) - 0.01 * g / (std::abs(g) + 1e-8)).epsilon(1e-9));
      CHECK(training.first_moments().at(p.kind, p.layer).all()[i] == doctest::Approx(0.1 * g).epsilon(1e-12));
      CHECK(training.second_moments().at(p.kind, p.layer).all()[i] == doctest::Approx(0.001 * g * g).epsilon(1e-12));
    }
  });
}

TEST_CASE("two steps are more than one, and remember it") {
  const reference_batch batch = random_batch(11, 2, 7);
  const reference_adamw options{.learning_rate = 0.01};
  reference_training<double> training(random_model<double>(small_model()), options);
  const auto first = training.step(batch);
  reference_training<double> forgetful(training.model(), options);
  const auto after_one = training.model().weights();
  const auto second = training.step(batch);
  CHECK(second.result.loss < first.result.loss);
  CHECK(forgetful.step(batch).result.loss == second.result.loss);
  after_one.for_each([&](const parameter& p, std::span<const double> weights) {
    INFO(name_of(p).view());
    const auto after_two = training.model().weights().at(p.kind, p.layer).all();
    const auto without_moments = forgetful.model().weights().at(p.kind, p.layer).all();
    CHECK(error_of(after_two, weights) > 1e-5);
    CHECK(error_of(after_two, without_moments) > 1e-6);
  });
  for (int i = 0; i < 60; ++i) training.step(batch);
  CHECK(training.step(batch).result.loss < 0.2 * first.result.loss);
}
