// SPDX-License-Identifier: Apache-2.0
// The comparison, the replay of choices, ledgers, and that a comparison notices what it should.
#include "verify_helpers.hpp"

using namespace verify_test;

TEST_CASE("the error is relative to the largest value, over the places that count") {
  const auto compared = [](std::vector<double> a, std::vector<double> b, std::vector<char> counts = {}, num width = 1,
                           double zero_limit = 0) {
    return compare_tensor<double>("x", {}, a, b, 1e-3, counts, width, zero_limit);
  };
  CHECK(compared({1, 2}, {1, 2}).equal);
  CHECK(compared({1, 100}, {1.05, 100}).error == doctest::Approx(5e-4));
  CHECK(compared({1, 100}, {1.05, 100}).equal);
  CHECK_FALSE(compared({1, 100}, {1.2, 100}).equal);
  CHECK(compared({1, 2, 9, 9}, {1, 2, 3, 4}, {1, 0}, 2).equal);
  CHECK_FALSE(compared({1, 2, 9, 9}, {1, 2, 3, 4}, {1, 1}, 2).equal);
  CHECK_FALSE(compared({1}, {1, 2}).equal);
  CHECK(compared({0, 0}, {0, 0}).equal);
  CHECK_FALSE(compared({1e-12, 0}, {0, 0}).equal);
  CHECK(compared({1e-12, 0}, {0, 0}, {}, 1, 1e-11).equal);
  // What is left of a sum that cancelled is as good as zero; next to it, nothing is.
  CHECK(compared({-1e-17, 0}, {1e-17, 3e-17}, {}, 1, 1e-10).equal);
  CHECK_FALSE(compared({2e-10, 0}, {1e-17, 3e-17}, {}, 1, 1e-10).equal);
  CHECK_FALSE(compared({-1e-15, 0}, {1e-15, 0}, {}, 1, 1e-10).equal);
  CHECK_FALSE(compared({-1e-17, 0}, {1e-17, 0}).equal);
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  CHECK_FALSE(compared({nan, 1}, {1, 1}).equal);
  CHECK_FALSE(compared({1, 1}, {nan, 1}).equal);
  CHECK_FALSE(compared({infinity}, {infinity}).equal);
  CHECK_FALSE(compared({1, nan}, {1, 1}, {1, 0}).equal);  // anywhere
}

TEST_CASE("in bf16 errors are of the mean square, over the places that count") {
  const std::vector<double> a{3, 100, 0, 7}, b{3, 100, 5, 7}, nothing(4, 0);
  const std::vector<char> counts{1, 1, 0, 1};
  const auto compared = [&](std::span<const double> ours, std::span<const double> theirs,
                            std::span<const char> where = {}, double zero_limit = 0) {
    return compare_tensor<double>("x", {}, ours, theirs, 5e-2, where, 1, zero_limit, "the plan's",
                                  error_measure::mean_square);
  };
  CHECK(compared(a, b).error == doctest::Approx(5 / std::sqrt(9 + 1e4 + 25 + 49)));
  CHECK(compared(a, b).equal);
  CHECK(compared(a, b, counts).error == 0);
  CHECK(compared(b, a, counts).error == 0);
  CHECK_FALSE(compared(std::vector<double>{3, 90, 5, 7}, b).equal);
  CHECK(compared(nothing, nothing).equal);
  CHECK_FALSE(compared(a, nothing, {}, 1e-3).equal);

  // What would not pass as a largest error does, and a scaled tensor does not.
  gathered_result<float> ours;
  ours.rows = 1, ours.length = 4, ours.vocab = 2, ours.num_items = 4;
  ours.logits.assign(8, 1), ours.token_loss.assign(4, 1), ours.loss = 1;
  const baseline_result<float> theirs{1, 4, 2, ours.logits, ours.token_loss, 1, 4, {}};
  ours.logits[3] = 1.06f;
  CHECK(compare<float, bf16>(ours, theirs, std::vector<char>(4, 1)).equal);
  CHECK_FALSE(compare<float>(ours, theirs, std::vector<char>(4, 1)).equal);
  for (float& x : ours.logits) x = 1.05f;
  CHECK_FALSE(compare<float, bf16>(ours, theirs, std::vector<char>(4, 1)).equal);
}

TEST_CASE("results in which nothing is different from zero are no match, unless there is nothing to predict") {
  gathered_result<double> ours;
  ours.rows = 1, ours.length = 2, ours.vocab = 3;
  ours.logits.assign(6, 0), ours.token_loss.assign(2, 0);
  baseline_result<double> theirs{1, 2, 3, ours.logits, ours.token_loss, 0, 1, {}};
  ours.num_items = 1;
  const std::vector<char> real(2, 1);
  CHECK_FALSE(compare(ours, theirs, real).equal);
  ours.num_items = theirs.num_items = 0;
  CHECK(compare(ours, theirs, real).equal);
  ours.num_items = 2;
  CHECK_FALSE(compare(ours, theirs, real).equal);
}

TEST_CASE("a plan equals the baseline in both types, and the table says so") {
  const batch_rows rows = random_rows(tiny_model(), "pp=2,cp=2/ring/zigzag,tp=2/sp"_plan, {}, 1);
  const comparison f64 = run_and_compare<double>("pp=2,cp=2/ring/zigzag,tp=2/sp,ep=4", rows, rows);
  CHECK(f64.equal);
  CHECK(run_and_compare<float>("pp=2,cp=2/ring/zigzag,tp=2/sp,ep=4", rows, rows).equal);
  const std::string table = to_table(f64);
  CHECK(says(table, {"tensor", "logits", "[4, 13, 96]", "token_loss", "1e-10", "equal"}));
  CHECK(table.find("DIFFERS") == std::string::npos);
  const auto json = to_json(f64);
  CHECK(json[0]["name"] == "logits");
  CHECK(json[0]["equal"] == true);
}

TEST_CASE("a plan that ignored an input would differ") {
  const batch_rows rows = random_rows(tiny_model(), "cp=2"_plan, {}, 1);
  const auto differs = [&](auto change, const char* tensor) {
    batch_rows changed = rows;
    change(changed);
    const comparison c = run_and_compare<double>("cp=2/ring", changed, rows);
    CHECK_FALSE(c.equal);
    return std::any_of(c.tensors.begin(), c.tensors.end(), [&](const auto& t) { return t.name == tensor && !t.equal; });
  };
  CHECK(differs([](batch_rows& b) { b.position_ids.clear(); }, "logits"));
  CHECK(differs([](batch_rows& b) { b.attention_mask.clear(); }, "logits"));  // the gaps become documents
  CHECK(differs([](batch_rows& b) { b.labels.clear(); }, "loss"));
  CHECK(differs([](batch_rows& b) { b.labels[1] = (b.labels[1] + 1) % 96; }, "token_loss"));
  CHECK(differs([](batch_rows& b) { b.input_ids[0] = (b.input_ids[0] + 1) % 96; }, "logits"));
  CHECK(differs([](batch_rows& b) { b.attention_mask[0] = 0; }, "logits"));

  const plan_spec plan = "cp=2"_plan;
  const batch_rows packed = random_rows(tiny_model(), plan, {0, 2, 1, {{5, 7}, 2}}, 1);
  batch_rows one = packed;
  one.attention_mask.assign(one.input_ids.size(), 1);
  CHECK(run_and_compare<double>("cp=2/ring/zigzag_documents", packed, packed).equal);
  CHECK_FALSE(run_and_compare<double>("cp=2/ring/zigzag_documents", one, packed).equal);
}

TEST_CASE("choices are replayed where the margin is below the bound, and nowhere else") {
  const batch_rows rows = random_rows(tiny_model(), "fsdp=2"_plan, {}, 1);
  const baseline_result<double> expected = baseline<double>(tiny()).forward(rows);
  CHECK(choices_to_replay(expected, 0).tokens == 0);
  CHECK(choices_to_replay(expected, 0).choices.empty());
  const replayed_choices some = choices_to_replay(expected, 0.01), all = choices_to_replay(expected, 2);
  CHECK((some.tokens > 0 && some.tokens < some.total));
  CHECK(all.tokens == all.total);
  CHECK(all.total == 8 * rows.rows * rows.length);
  for (const replayed_choices& replay : {some, all}) {
    const auto run =
        run_on_threads<double>(tiny(), "fsdp=2,tp=2,ep=4"_plan, rows, {0, std::chrono::seconds(60), replay.choices});
    CHECK(compare(run.result, expected, real_tokens(rows)).equal);
  }
  // Another choice is really made: it gives other results.
  replayed_choices wrong = choices_to_replay(expected, 2);
  std::vector<num>& experts = wrong.choices.front().experts;
  for (std::size_t i = 0; i < experts.size(); ++i) experts[i] = static_cast<num>(i % 2);
  const auto run =
      run_on_threads<double>(tiny(), "fsdp=2,tp=2,ep=4"_plan, rows, {0, std::chrono::seconds(60), wrong.choices});
  CHECK_FALSE(compare(run.result, expected, real_tokens(rows)).equal);
}

TEST_CASE("an illegal plan is refused with the rules that it breaks") {
  const batch_rows rows = random_rows(tiny_model(), "tp=1"_plan, {}, 0);
  std::string why;
  try {
    run_on_threads<double>(tiny(), "tp=3"_plan, rows);
  } catch (const plan_error& e) {
    why = e.what();
  }
  CHECK(says(why, {"heads_divide_over_tensor_and_ulysses", "kv_heads_divide_over_tensor", "tensor_degree=3"}));
  CHECK_THROWS_AS(run_on_threads<double>(tiny(), "fsdp=3"_plan, rows), plan_error);  // 2 rows
  batch_rows bad = rows;
  bad.input_ids[0] = 96;
  CHECK_THROWS_AS(run_on_threads<double>(tiny(), "tp=1"_plan, bad), input_error);
}

TEST_CASE("every rank's ledger comes back") {
  const batch_rows rows = random_rows(tiny_model(), "tp=2"_plan, {}, 0);
  const auto run = run_on_threads<float>(tiny(), "tp=2"_plan, rows);
  REQUIRE(run.ledgers.size() == 2);
  for (const recorder& r : run.ledgers) CHECK(r.entries().size() > 16);
}

TEST_CASE("a ledger that is not the predicted one is not equal, and the first line that differs is named") {
  const plan_spec plan = "fsdp=2,tp=2,ep=4"_plan;
  const batch_rows rows = random_rows(tiny_model(), plan, {}, 0);
  const baseline_result<double> expected = baseline<double>(tiny()).forward(rows);
  const auto run = run_on_threads<double>(tiny(), plan, rows);
  const auto compared = [&](const std::vector<recorder>& ledgers) {
    return compare_ledgers(tiny(), plan, rows, {1, 8, false, 0}, expected, ledgers);
  };
  const ledger_comparison good = compared(run.ledgers);
  CHECK(good.equal);
  CHECK(good.predicted == good.recorded);
  CHECK(says(to_text(good), {"all_to_all", "ep", "as predicted"}));

  std::vector<recorder> more = run.ledgers, other = run.ledgers;
  more[2].add({operation::all_reduce, axis::tp, 2, 64, 0, false, phase::forward, 3});
  const ledger_comparison longer = compared(more);
  CHECK_FALSE(longer.equal);
  CHECK(
      says(longer.difference, {"rank 2", "predicted nothing more", "recorded forward of layer 3 all_reduce over tp"}));
  CHECK(longer.recorded.bytes == longer.predicted.bytes + 64);
  CHECK(to_json(longer)["equal"] == false);
  CHECK(says(to_text(longer), {"DIFFERS", "DIFFER: rank 2"}));
  std::vector<ledger_entry> entries = other[1].entries();
  other[1].clear();
  const auto ours =
      std::find_if(entries.begin(), entries.end(), [](const ledger_entry& e) { return e.why == phase::forward; });
  ours->bytes += 8;
  for (const ledger_entry& e : entries) other[1].add(e);
  CHECK(says(compared(other).difference, {"rank 1", "forward"}));
}

TEST_CASE("gradients: compared one by one; a missing one is not equal, nor are gradients that are all zero") {
  const plan_spec plan = "tp=2"_plan;
  const batch_rows rows = random_rows(tiny_model(), plan, {}, 0);
  const std::vector<char> real = real_tokens(rows);
  baseline_options how;
  how.gradients = true;
  const baseline_result<double> expected = baseline<double>(tiny()).compute(rows, {}, how);
  threads_options options;
  options.run.gradients = true;
  gathered_result<double> ours = run_on_threads<double>(tiny(), plan, rows, options).result;
  comparison good = compare(ours, expected, real);
  CHECK(good.equal);
  set_shapes(good, tiny_model());
  CHECK(says(to_table(good), {"grad.*: 91 tensors", "gradient_norm"}));
  CHECK(to_json(good).size() == 4 + 1 + 91);

  const std::string name = "model.layers.3.mlp.gate.weight";
  gathered_result<double> wrong = ours;
  wrong.gradients.at(name)[5] += 1e-6;
  CHECK_FALSE(compare(wrong, expected, real).equal);
  CHECK(says(to_table(compare(wrong, expected, real)), {"grad.model.layers.3.mlp.gate.weight", "DIFFERS: 1 of 91"}));
  wrong = ours;
  wrong.gradients.erase(name);
  CHECK(says(to_table(compare(wrong, expected, real)), {"the plan has none"}));
  wrong = ours;
  wrong.gradients["model.x"] = {1};
  CHECK(says(to_table(compare(wrong, expected, real)), {"grad.model.x", "the baseline has none"}));

  baseline_result<double> zero = expected;
  wrong = ours;
  for (auto* all : {&zero.gradients, &wrong.gradients})
    for (auto& [key, values] : *all) std::fill(values.begin(), values.end(), 0);
  zero.gradient_norm = wrong.gradient_norm = 0;
  CHECK_FALSE(compare(wrong, zero, real).equal);
  // An expert without tokens: zero there, next to nothing here.
  zero = expected, wrong = ours;
  for (double& v : zero.gradients.at(name)) v = 0;
  for (double& v : wrong.gradients.at(name)) v = 1e-14;
  CHECK(compare(wrong, zero, real).equal);
  for (double& v : wrong.gradients.at(name)) v = 1e-8;
  CHECK_FALSE(compare(wrong, zero, real).equal);

  // Without any label all is zero, and equal.
  batch_rows silent = rows;
  silent.labels.clear();
  const auto nothing = run_on_threads<double>(tiny(), plan, silent, options).result;
  CHECK(nothing.gradient_norm == 0);
  CHECK(compare(nothing, baseline<double>(tiny()).compute(silent, {}, how), real).equal);
}

TEST_CASE("a factor is told where it is constant, and means something") {
  const std::vector<double> b{1, -2, 3, 0.5};
  const std::vector<num> shape{4};
  const auto told = [&](std::vector<double> v) { return diagnose(v, b, shape, false, 1e-6); };
  CHECK(told({2, -4, 6, 1}).note == "x 2.0: counted twice");
  CHECK(says(told({0.25, -0.5, 0.75, 0.125}).note, {"x 0.25", "divided by 4"}));
  CHECK(says(told({-1, 2, -3, -0.5}).note, {"of the other sign"}));
  CHECK(told({1.3, -2.6, 3.9, 0.65}).note == "x 1.3");
  CHECK_FALSE(told({2, -4, 6, 1.1}).factor.has_value());
  CHECK(told({2, -4, 6, 1.1}).note == "");
  const std::vector<double> one{3}, odd{4}, twice{6};
  CHECK(diagnose(odd, one, {}, false, 1e-6).note == "");  // one number is always a multiple
  CHECK(diagnose(twice, one, {}, false, 1e-6).factor == 2);
}
