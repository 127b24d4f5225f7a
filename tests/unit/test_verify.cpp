// SPDX-License-Identifier: Apache-2.0
// Inputs from files and seeds, the comparison, the replay of choices, and that a comparison notices what it should.
#include <doctest/doctest.h>
#include <stdlib.h>  // mkdtemp

#include <algorithm>
#include <filesystem>
#include <limits>
#include <shardplan/plan_text.hpp>
#include <string>

#include "runtime/checkpoint/safetensors_writer.hpp"
#include "runtime/cli/threads_engine.hpp"
#include "runtime/error.hpp"
#include "runtime/verify/inputs.hpp"
#include "runtime/verify/report.hpp"

namespace {

using namespace shardplan;
using namespace shardplan::literals;
using namespace shardplan::runtime;

const std::filesystem::path data = SHARDPLAN_TEST_DATA;

const checkpoint& tiny() {
  static const checkpoint opened = checkpoint::open(data / "tiny");
  return opened;
}
const model_spec& tiny_model() { return tiny().config().spec; }

struct temporary_directory {
  std::filesystem::path path;
  temporary_directory() {
    std::string name = (std::filesystem::temp_directory_path() / "shardplan_verify_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path = name;
  }
  ~temporary_directory() { std::filesystem::remove_all(path); }
};

/// What an input_error says; empty when there was none.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const input_error& e) {
    return e.what();
  }
  return "";
}

bool says(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (text.find(word) == std::string::npos) {
      MESSAGE("'" << text << "' does not say '" << word << "'");
      return false;
    }
  return true;
}

template <class T>
comparison run_and_compare(const char* plan, const batch_rows& ours, const batch_rows& theirs) {
  const baseline_result<T> expected = baseline<T>(tiny()).forward(theirs);
  const threads_run<T> run = run_on_threads<T>(tiny(), parse_plan(plan).plan, ours);
  return compare(run.result, expected, real_tokens(theirs));
}

}  // namespace

TEST_CASE("random rows are the same for the same arguments, and others for another seed") {
  const plan_spec plan = "cp=2/ring"_plan;
  const batch_rows a = random_rows(tiny_model(), plan, {}, 3), b = random_rows(tiny_model(), plan, {}, 3);
  CHECK(digest(a) == digest(b));
  CHECK(digest(a) != digest(random_rows(tiny_model(), plan, {}, 4)));
}

TEST_CASE("random rows are legal, need padding, and have two rows per micro-batch and data shard") {
  for (const char* text : {"tp=1", "cp=2", "cp=4/ring/zigzag,tp=2/sp", "pp=4,fsdp=2,dp_replicate=2",
                           "cp=16/ring/zigzag", "cp=13/ring", "pp=2,cp=3/ring/zigzag,tp=2/sp"}) {
    CAPTURE(text);
    const plan_spec plan = parse_plan(text).plan;
    const batch_rows rows = random_rows(tiny_model(), plan, {}, 0);
    validate(rows, tiny_model());
    CHECK(rows.rows == 2 * num_data_shards(plan) * plan.pp);
    CHECK(rows.length > plan.cp);
    if (plan.cp > 1) CHECK(rows.length % plan.cp != 0);
  }
  const batch_rows given = random_rows(tiny_model(), "cp=2"_plan, {10, 3, 1, {}}, 0);
  CHECK(given.rows == 3);
  CHECK(given.length == 10);
}

TEST_CASE("random rows ignore labels unequally, and their positions have gaps that are no documents") {
  const batch_rows rows = random_rows(tiny_model(), "tp=1"_plan, {40, 4, 1, {}}, 0);
  std::vector<num> ignored, gaps;
  for (num row = 0; row < rows.rows; ++row) {
    const auto first = rows.labels.begin() + row * rows.length;
    ignored.push_back(std::count(first, first + rows.length, -100));
    num of_row = 0;
    for (num i = 1; i < rows.length; ++i) {
      const auto at = static_cast<std::size_t>(row * rows.length + i);
      of_row += rows.position_ids[at] != rows.position_ids[at - 1] + 1 ? 1 : 0;
    }
    gaps.push_back(of_row);
  }
  CHECK(ignored[0] == 0);
  CHECK(ignored[3] == rows.length);
  CHECK((ignored[1] > 0 && ignored[1] < ignored[2] && ignored[2] < rows.length));
  CHECK(gaps == std::vector<num>{1, 1, 1, 1});
  CHECK(rows.attention_mask == std::vector<num>(160, 1));
  CHECK(find_documents(rows)[0] == std::vector<num>{40});
}

TEST_CASE("packed random rows are their documents, without a mask") {
  const batch_rows rows = random_rows(tiny_model(), "tp=1"_plan, {0, 2, 1, {{5, 7}, 2}}, 0);
  CHECK(rows.length == 12);
  CHECK(rows.attention_mask.empty());
  CHECK(find_documents(rows) == std::vector<std::vector<num>>(2, {5, 7}));
}

TEST_CASE("rows that would need too much memory are refused") {
  CHECK(says(refusal([] {
               random_rows(tiny_model(), "tp=1"_plan, {max_degree, max_degree, 1, {}}, 0);
             }),
             {"2147483647 rows", "--batch"}));
  CHECK(says(refusal([] { random_rows(tiny_model(), "fsdp=2147483647"_plan, {0, 0, max_degree, {}}, 0); }), {"rows"}));
}

TEST_CASE("inputs are read from a fixture, and its results passed over") {
  const batch_rows rows = read_inputs(data / "tiny" / "expected.safetensors", tiny_model());
  CHECK(rows.rows == 4);
  CHECK(rows.length == 16);
  CHECK(rows.labels.size() == 64);
  const model_spec biased = checkpoint::open(data / "attention_bias").config().spec;
  const batch_rows both = read_inputs(data / "attention_bias" / "expected.safetensors", biased);
  CHECK(both.labels.empty());
  CHECK(both.shift_labels.size() == 22);
}

TEST_CASE("inputs of any width, embeddings, and positions shared by all rows") {
  const temporary_directory folder;
  const auto file = folder.path / "in.safetensors";
  safetensors_writer writer;
  writer.add("input_ids", tensor_dtype::i32, {2, 3}, std::vector<num>{1, 2, 3, 4, 5, 6});
  writer.add("attention_mask", tensor_dtype::boolean, {2, 3}, std::vector<num>{1, 1, 1, 1, 1, 0});
  writer.add("position_ids", tensor_dtype::u8, {1, 3}, std::vector<num>{4, 5, 6});
  writer.write(file);
  const batch_rows rows = read_inputs(file, tiny_model());
  CHECK(rows.input_ids == std::vector<num>{1, 2, 3, 4, 5, 6});
  CHECK(rows.position_ids == std::vector<num>{4, 5, 6, 4, 5, 6});
  CHECK(real_tokens(rows) == std::vector<char>{1, 1, 1, 1, 1, 0});

  safetensors_writer embeds;
  embeds.add("inputs_embeds", tensor_dtype::bf16, {1, 2, 32}, std::vector<float>(64, 0.5f));
  embeds.write(file);
  CHECK(read_inputs(file, tiny_model()).inputs_embeds == std::vector<double>(64, 0.5));
}

TEST_CASE("what does not fit is refused by file, tensor and value") {
  const temporary_directory folder;
  const auto file = folder.path / "in.safetensors";
  const auto refused = [&](auto add, bool with_ids = true) {
    safetensors_writer writer;
    if (with_ids) writer.add("input_ids", tensor_dtype::i64, {2, 3}, std::vector<num>{1, 2, 3, 4, 5, 6});
    add(writer);
    writer.write(file);
    return refusal([&] { read_inputs(file, tiny_model()); });
  };
  const auto ids = [](const char* name, std::vector<num> shape, std::vector<num> values) {
    return [=](safetensors_writer& w) { w.add(name, tensor_dtype::i64, shape, values); };
  };
  CHECK(refused([](safetensors_writer&) {}) == "");
  CHECK(says(refused(ids("input_idz", {1}, {1})), {"in.safetensors", "input_idz", "input_ids"}));
  CHECK(says(refused([](safetensors_writer&) {}, false), {"in.safetensors", "input_ids", "none"}));
  CHECK(says(refused([](safetensors_writer& w) {
               w.add("inputs_embeds", tensor_dtype::f32, {2, 3, 32}, std::vector<float>(192));
             }),
             {"in.safetensors", "inputs_embeds", "both"}));
  CHECK(says(refused(ids("labels", {2, 4}, std::vector<num>(8))), {"in.safetensors", "labels", "[2, 3]", "[2, 4]"}));
  CHECK(says(refused(ids("labels", {1, 3}, std::vector<num>(3))), {"labels", "[2, 3]", "[1, 3]"}));
  CHECK(says(refused(ids("labels", {2, 3}, {1, 2, 3, 4, 5, 96})), {"in.safetensors", "labels[1][2]", "96"}));
  CHECK(says(refused(ids("attention_mask", {2, 3}, {1, 2, 1, 1, 1, 1})), {"attention_mask[0][1]", "2"}));
  CHECK(says(refused(ids("position_ids", {2, 3}, {0, 1, 2, 0, -1, 2})), {"position_ids[1][1]", "-1"}));
  CHECK(says(refused(ids("input_ids", {2, 3}, {0, 1, 2, 0, -1, 2}), false), {"input_ids[1][1]", "-1"}));
  CHECK(says(refused(ids("input_ids", {6}, std::vector<num>(6)), false), {"input_ids", "[6]"}));
  CHECK(says(refused(ids("input_ids", {0, 3}, {}), false), {"input_ids", "[0, 3]"}));
  CHECK(says(refused(
                 [](safetensors_writer& w) {
                   w.add("input_ids", tensor_dtype::f32, {1, 1}, std::vector<float>{1});
                 },
                 false),
             {"input_ids", "integer", "F32"}));
  CHECK(says(refused(
                 [](safetensors_writer& w) {
                   w.add("inputs_embeds", tensor_dtype::f32, {1, 2, 3}, std::vector<float>(6));
                 },
                 false),
             {"inputs_embeds", "[1, 2, 32]", "[1, 2, 3]"}));
}

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
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  CHECK_FALSE(compared({nan, 1}, {1, 1}).equal);
  CHECK_FALSE(compared({1, 1}, {nan, 1}).equal);
  CHECK_FALSE(compared({infinity}, {infinity}).equal);
  CHECK_FALSE(compared({1, nan}, {1, 1}, {1, 0}).equal);  // anywhere
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
  CHECK(choices_to_replay(expected, 0).choices.experts.empty());
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
  for (std::size_t i = 0; i < wrong.choices.experts.size(); ++i) wrong.choices.experts[i] = static_cast<num>(i % 2);
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
