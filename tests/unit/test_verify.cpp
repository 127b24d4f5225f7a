// SPDX-License-Identifier: Apache-2.0
// Inputs from files and seeds.
#include "verify_helpers.hpp"

using namespace verify_test;

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

TEST_CASE("cumulative lengths are documents: alone they make position_ids, beside them they agree") {
  const temporary_directory folder;
  const auto read = [&](std::vector<num> lengths, std::vector<num> positions, std::vector<num> mask = {}) {
    safetensors_writer w;
    w.add("input_ids", tensor_dtype::i64, {2, 4}, std::vector<num>{1, 2, 3, 4, 5, 6, 7, 8});
    const auto count = static_cast<num>(lengths.size());
    w.add("cu_seq_lens_q", tensor_dtype::i32, {count}, std::move(lengths));
    if (!positions.empty()) w.add("position_ids", tensor_dtype::i64, {2, 4}, std::move(positions));
    if (!mask.empty()) w.add("attention_mask", tensor_dtype::i64, {2, 4}, std::move(mask));
    w.write(folder.path / "in.safetensors");
    return read_inputs(folder.path / "in.safetensors", tiny_model());
  };
  CHECK(read({0, 3, 4, 8}, {}).position_ids == std::vector<num>{0, 1, 2, 0, 0, 1, 2, 3});
  CHECK(find_documents(read({0, 3, 4, 5, 6, 8}, {})) == std::vector<std::vector<num>>{{3, 1}, {1, 1, 2}});
  CHECK(read({0, 3, 4, 8}, {5, 6, 7, 0, 1, 2, 3, 4}).position_ids[0] == 5);
  const auto refused = [&](auto... arguments) { return refusal([&] { read(arguments...); }); };
  using list = std::vector<num>;
  CHECK(says(refused(list{0, 3, 8}, list{}), {"in.safetensors", "cu_seq_lens_q", "4", "row 1"}));
  CHECK(says(refused(list{0, 3, 4, 8}, list{0, 1, 2, 3, 0, 1, 2, 3}), {"[0][3]", "cu_seq_lens alone"}));
  CHECK(says(refused(list{0, 4, 8}, list{0, 1, 2, 3, 0, 1, 0, 1}), {"[1][2]", "position_ids alone"}));
  CHECK(says(refused(list{0, 3, 4, 8}, list{}, list(8, 1)), {"[0][3]", "attention_mask"}));
  CHECK(refused(list{0, 4, 8}, list{}, list(8, 1)) == "");
  const batch_rows fixture = read_inputs(data / "packed_cu" / "expected.safetensors", tiny_model());
  CHECK(find_documents(fixture)[0].size() > 1);
}
