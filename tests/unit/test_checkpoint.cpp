// SPDX-License-Identifier: Apache-2.0
// Checkpoint directories: every layout of files gives the same parameters, every defect is named; random checkpoints.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint_helpers.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/init.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/checkpoint/safetensors_writer.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::tests;

namespace {

namespace fs = std::filesystem;

/// Two layers, the first of experts and the second dense; no two sizes are equal.
model_config small_config() {
  model_config c;
  model_spec& m = c.spec;
  m.num_hidden_layers = 2;
  m.hidden_size = 10;
  m.num_attention_heads = 4;
  m.num_key_value_heads = 2;
  m.head_dim = 6;
  m.intermediate_size = 7;
  m.moe_intermediate_size = 5;
  m.num_experts = 3;
  m.num_experts_per_tok = 2;
  m.vocab_size = 11;
  m.max_position_embeddings = 64;
  m.mlp_only_layers.insert(1);
  return c;
}

/// A tensor of a checkpoint to be; values count up, so that every element of a checkpoint differs.
struct raw_tensor {
  std::string name;
  std::vector<num> shape;
  std::vector<double> values;
  tensor_dtype dtype = tensor_dtype::f64;
  std::string file = "model.safetensors";
};

std::vector<raw_tensor> raw_tensors(const model_spec& m, bool per_expert) {
  std::vector<raw_tensor> tensors;
  double next = 1;
  for_each_parameter(m, [&](const parameter& p) {
    std::vector<double> values(static_cast<std::size_t>(p.size()));
    for (double& v : values) v = next++;
    const std::string name(name_of(p).view());
    const bool gate_up = p.kind == parameter_kind::experts_gate_up, down = p.kind == parameter_kind::experts_down;
    if (!per_expert || (!gate_up && !down)) {
      tensors.push_back({name, {p.shape.begin(), p.shape.end()}, std::move(values)});
      return;
    }
    auto from = values.begin();
    for (num e = 0; e < m.num_experts; ++e) {
      const std::string expert = "model.layers." + std::to_string(p.layer) + ".mlp.experts." + std::to_string(e);
      for (const char* part : {".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"}) {
        if (down != (std::string_view(part) == ".down_proj.weight")) continue;
        const std::vector<num> shape = down ? std::vector<num>{m.hidden_size, m.moe_intermediate_size}
                                            : std::vector<num>{m.moe_intermediate_size, m.hidden_size};
        const auto to = from + shape[0] * shape[1];
        tensors.push_back({expert + part, shape, {from, to}});
        from = to;
      }
    }
  });
  return tensors;
}

/// Writes tensors to the files they name; with `index`, also which tensor is in which.
void write_checkpoint(const fs::path& directory, const model_config& config, const std::vector<raw_tensor>& tensors,
                      bool index = false) {
  write_config(directory, config, tensor_dtype::f64);
  std::map<std::string, safetensors_writer> files;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const raw_tensor& t : tensors) {
    if (is_floating(t.dtype))
      files[t.file].add(t.name, t.dtype, t.shape, t.values);
    else
      files[t.file].add(t.name, t.dtype, t.shape, std::vector<std::int64_t>(t.values.size()));
    weight_map[t.name] = t.file;
  }
  for (const auto& [name, writer] : files) writer.write(directory / name);
  if (index) write_text(directory / "model.safetensors.index.json", nlohmann::json{{"weight_map", weight_map}}.dump());
}

template <class T>
std::vector<T> read_part_of(const checkpoint& c, const parameter& p, const region& r) {
  std::vector<T> out(static_cast<std::size_t>(r.size()));
  c.read(p, r, std::span(out));
  return out;
}

std::vector<std::vector<double>> read_all(const checkpoint& c) {
  std::vector<std::vector<double>> all;
  for_each_parameter(c.config().spec,
                     [&](const parameter& p) { all.push_back(read_part_of<double>(c, p, p.whole())); });
  return all;
}

/// What opening says, behind the directory.
std::string error_of(const fs::path& directory) {
  const std::string message = message_of([&] { checkpoint::open(directory); });
  const std::string prefix = directory.string();
  return message.starts_with(prefix) ? message.substr(prefix.size()) : message;
}

std::string error_of(const std::vector<raw_tensor>& tensors, const model_config& config = small_config()) {
  const temporary_directory directory;
  write_checkpoint(directory.path, config, tensors);
  return error_of(directory.path);
}

raw_tensor& find(std::vector<raw_tensor>& tensors, const std::string& name) {
  return *std::find_if(tensors.begin(), tensors.end(), [&](const raw_tensor& t) { return t.name == name; });
}

void drop(std::vector<raw_tensor>& tensors, const std::string& name) {
  std::erase_if(tensors, [&](const raw_tensor& t) { return t.name == name; });
}

}  // namespace

TEST_CASE("every layout of files gives the same parameters") {
  const model_config config = small_config();
  const auto fused = raw_tensors(config.spec, false), single = raw_tensors(config.spec, true);
  std::vector<raw_tensor> sharded = single, mixed = fused;
  for (std::size_t i = 0; i < sharded.size(); ++i) sharded[i].file = "part-" + std::to_string(i * 7 % 3);
  // Fused gates and ups beside downs per expert.
  drop(mixed, "model.layers.0.mlp.experts.down_proj");
  for (const raw_tensor& t : single)
    if (t.name.find("experts") != std::string::npos && t.name.find("down") != std::string::npos) mixed.push_back(t);

  std::vector<std::vector<double>> expected;
  for (const raw_tensor& t : fused) expected.push_back(t.values);
  for (const auto& [tensors, index] : {std::pair(fused, false), {single, false}, {sharded, true}, {mixed, false}}) {
    const temporary_directory directory;
    write_checkpoint(directory.path, config, tensors, index);
    const checkpoint c = checkpoint::open(directory.path);
    CHECK(c.config() == config);
    CHECK(c.directory() == directory.path);
    CHECK(read_all(c) == expected);
  }
}

TEST_CASE("a part of a parameter is what indexing it gives, in every layout") {
  const model_config config = small_config();
  for (const bool per_expert : {false, true}) {
    const temporary_directory directory;
    write_checkpoint(directory.path, config, raw_tensors(config.spec, per_expert));
    const checkpoint c = checkpoint::open(directory.path);
    random_numbers random;
    for_each_parameter(config.spec, [&](const parameter& p) {
      const std::vector<double> whole = read_part_of<double>(c, p, p.whole());
      for (int repeat = 0; repeat < 100; ++repeat) {
        region r;
        for (const num extent : p.shape) {
          const auto some = [&] {
            const num begin = random.below(extent + 1);
            return dim_range{begin, begin + random.below(extent - begin + 1)};
          };
          r.dims.push_back(repeat % 4 == 0 ? dim_part(0, extent) : dim_part(some(), repeat % 2 ? some() : dim_range{}));
        }
        std::vector<double> expected;
        std::vector<num> at(p.shape.size(), 0);
        for (num i = 0; i < r.size(); ++i) {
          num rest = i, index = 0, stride = 1;
          for (std::size_t d = p.shape.size(); d-- > 0;) {
            index += r.dims[d].at(rest % r.dims[d].size()) * stride;
            rest /= r.dims[d].size();
            stride *= p.shape[d];
          }
          expected.push_back(whole[static_cast<std::size_t>(index)]);
        }
        REQUIRE(read_part_of<double>(c, p, r) == expected);
        REQUIRE(read_part_of<float>(c, p, r) == std::vector<float>(expected.begin(), expected.end()));
      }
    });
  }
}

TEST_CASE("gate and up rows of one rank are one part of two ranges") {
  const model_config config = small_config();
  const temporary_directory directory;
  write_checkpoint(directory.path, config, raw_tensors(config.spec, true));
  const checkpoint c = checkpoint::open(directory.path);
  const parameter p = make_parameter(config.spec, parameter_kind::experts_gate_up, 0);  // (3, 2*5, 10)
  region r = p.whole();
  r.dims[0] = {1, 2};
  r.dims[1] = dim_part(dim_range{2, 4}, dim_range{7, 9});
  const auto expert = read_part_of<double>(c, p, p.whole());
  const auto part = read_part_of<double>(c, p, r);
  CHECK(part.front() == expert[100 + 20]);
  CHECK(part[20] == expert[100 + 70]);
  CHECK(part.size() == 40);
}

TEST_CASE("a part that is none is refused") {
  const model_config config = small_config();
  for (const bool per_expert : {false, true}) {
    const temporary_directory directory;
    write_checkpoint(directory.path, config, raw_tensors(config.spec, per_expert));
    const checkpoint c = checkpoint::open(directory.path);
    const parameter p = make_parameter(config.spec, parameter_kind::experts_gate_up, 0);
    std::vector<double> out(static_cast<std::size_t>(p.size()));
    const auto with = [&](std::size_t d, dim_part part) {
      region r = p.whole();
      r.dims[d] = part;
      return r;
    };
    CHECK_NOTHROW(c.read(p, p.whole(), std::span(out)));
    CHECK_THROWS_AS(c.read(p, with(0, {1, 4}), std::span(out)), std::logic_error);
    CHECK_THROWS_AS(c.read(p, with(0, {-1, 2}), std::span(out)), std::logic_error);
    CHECK_THROWS_AS(c.read(p, with(1, {1, 11}), std::span(out)), std::logic_error);
    CHECK_THROWS_AS(c.read(p, with(2, {-1, 9}), std::span(out)), std::logic_error);
    CHECK_THROWS_AS(c.read(p, with(2, {0, 9}), std::span(out)), std::logic_error);
    CHECK_THROWS_AS(c.read(p, region{}, std::span<double>{}), std::logic_error);
    for (const auto& [kind, layer] : {std::pair(parameter_kind::mlp_up, num{0}),
                                      {parameter_kind::q_bias, num{0}},
                                      {parameter_kind::q_proj, num{2}},
                                      {parameter_kind::q_proj, num{-2}}}) {
      const parameter none = make_parameter(config.spec, kind, layer);
      CHECK_THROWS_AS(c.read(none, none.whole(), std::span(out)), std::logic_error);
    }
  }
}

TEST_CASE("copies of a checkpoint read at the same time") {
  const model_config config = small_config();
  const temporary_directory directory;
  write_checkpoint(directory.path, config, raw_tensors(config.spec, true));
  std::vector<std::vector<double>> results[3];
  {
    const checkpoint c = checkpoint::open(directory.path);
    std::vector<std::thread> threads;
    for (auto& result : results) threads.emplace_back([c, &result] { result = read_all(c); });
    for (std::thread& t : threads) t.join();
  }
  CHECK(results[0].size() > 10);
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("the checkpoints of the test data open and hold numbers") {
  int opened = 0;
  for (const auto& entry : fs::directory_iterator(SHARDPLAN_TEST_DATA)) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    CAPTURE(entry.path().string());
    const checkpoint c = checkpoint::open(entry.path());
    for (const auto& values : read_all(c)) {
      CHECK(std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); }));
      CHECK(std::any_of(values.begin(), values.end(), [](double v) { return v != 0; }));
    }
    const safetensors_file expected = safetensors_file::open(entry.path() / "expected.safetensors");
    CHECK(std::isfinite(read_as<double>(expected.at("loss")).front()));
    CHECK((expected.find("input_ids") != nullptr) != (expected.find("inputs_embeds") != nullptr));
    ++opened;
  }
  CHECK(opened >= 15);
}

TEST_CASE("defects of parameters are listed, all of them in one message") {
  const model_spec m = small_config().spec;
  const auto good = raw_tensors(m, true);
  CHECK(error_of(good) == "no error");
  const std::string file = "/model.safetensors: ";

  auto missing = good;
  for (const char* name : {"model.norm.weight", "lm_head.weight", "model.layers.0.mlp.experts.1.up_proj.weight",
                           "model.layers.1.mlp.up_proj.weight"})
    drop(missing, name);
  CHECK(error_of(missing) == file +
                                 "4 parameters are missing: model.layers.0.mlp.experts.1.up_proj.weight, "
                                 "model.layers.1.mlp.up_proj.weight, model.norm.weight, ...");

  auto shape = good;
  find(shape, "model.layers.0.self_attn.q_proj.weight").shape = {10, 24};
  find(shape, "model.norm.weight").shape = {1, 10};
  find(shape, "model.layers.0.mlp.experts.2.down_proj.weight").shape = {5, 10};
  CHECK(error_of(shape) == file +
                               "3 tensors have another shape than config.json says: "
                               "model.layers.0.self_attn.q_proj.weight is [10, 24], must be [24, 10], "
                               "model.layers.0.mlp.experts.2.down_proj.weight is [5, 10], must be [10, 5], "
                               "model.norm.weight is [1, 10], must be [10]");

  auto dtype = good;
  find(dtype, "model.norm.weight").dtype = tensor_dtype::i32;
  CHECK(error_of(dtype) == file + "1 tensors are not F64, F32, F16 or BF16: model.norm.weight is I32");

  auto unexpected = good;
  unexpected.push_back({"model.layers.2.mlp.gate.weight", {1}, {1}});
  unexpected.push_back({"model.layers.0.mlp.experts.3.up_proj.weight", {1}, {1}});
  unexpected.push_back({"a", {1}, {1}});
  unexpected.push_back({"b", {1}, {1}});
  CHECK(error_of(unexpected) == file +
                                    "4 unexpected tensors: \"a\", \"b\", "
                                    "\"model.layers.0.mlp.experts.3.up_proj.weight\", ...");

  auto both = missing;
  both.push_back({"extra", {1}, {1}});
  find(both, "model.layers.0.mlp.gate.weight").shape = {10, 3};
  const std::string message = error_of(both);
  CHECK(message.find("4 parameters are missing") != std::string::npos);
  CHECK(message.find("; 1 tensors have another shape than config.json says: model.layers.0.mlp.gate.weight is [10, 3]"
                     ", must be [3, 10]; 1 unexpected tensors: \"extra\"") != std::string::npos);
}

TEST_CASE("experts that are there twice, or not at all, are refused") {
  const model_spec m = small_config().spec;
  auto twice = raw_tensors(m, true);
  for (const raw_tensor& t : raw_tensors(m, false))
    if (t.name == "model.layers.0.mlp.experts.down_proj") twice.push_back(t);
  CHECK(error_of(twice).find("3 unexpected tensors: \"model.layers.0.mlp.experts.0.down_proj.weight\"") !=
        std::string::npos);

  auto none = raw_tensors(m, false);
  drop(none, "model.layers.0.mlp.experts.down_proj");
  drop(none, "model.layers.0.mlp.experts.gate_up_proj");
  CHECK(error_of(none) ==
        "/model.safetensors: 2 parameters are missing: model.layers.0.mlp.experts.gate_up_proj, "
        "model.layers.0.mlp.experts.down_proj");

  // Far more experts than there are is an error, and no long wait.
  model_config config = small_config();
  config.spec.num_experts = 2147483647;
  CHECK(error_of(raw_tensors(m, true), config).find(" parameters are missing: ") != std::string::npos);
}

TEST_CASE("tensors that nobody reads are left alone") {
  model_config config = small_config();
  auto tensors = raw_tensors(config.spec, true);
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {3}, {1, 2, 3}});
  tensors.push_back({"model.rotary_emb.inv_freq", {3}, {1, 2, 3}});
  CHECK(error_of(tensors) == "no error");
  config.spec.tie_word_embeddings = true;  // lm_head.weight is there all the same
  CHECK(error_of(tensors, config) == "no error");
  drop(tensors, "lm_head.weight");
  CHECK(error_of(tensors, config) == "no error");
}

TEST_CASE("NaN and infinity are weights like others") {
  auto tensors = raw_tensors(small_config().spec, true);
  tensors[0].values[0] = NAN;
  tensors[0].values[1] = -INFINITY;
  const temporary_directory directory;
  write_checkpoint(directory.path, small_config(), tensors);
  const auto values = read_all(checkpoint::open(directory.path)).front();
  CHECK(std::isnan(values[0]));
  CHECK(values[1] == -INFINITY);
}

TEST_CASE("an index that does not fit its shards is refused") {
  const model_config config = small_config();
  auto tensors = raw_tensors(config.spec, true);
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].file = i < 10 ? "one" : "two";
  const temporary_directory directory;
  const fs::path index = directory.path / "model.safetensors.index.json";
  write_checkpoint(directory.path, config, tensors, true);
  CHECK(error_of(directory.path) == "no error");
  const auto good = nlohmann::json::parse(read_text(index));
  const auto with = [&](const std::string& tensor, const nlohmann::json& shard) {
    nlohmann::json changed = good;
    if (shard.is_null())
      changed["weight_map"].erase(tensor);
    else
      changed["weight_map"][tensor] = shard;
    write_text(index, changed.dump());
    return error_of(directory.path);
  };
  const std::string where = "/model.safetensors.index.json: ";
  CHECK(with("model.norm.weight", "three") == where + "1 shards are missing: \"three\"");
  CHECK(with("model.norm.weight", "one") ==
        where +
            "1 tensors are not in the shard that the index names: \"model.norm.weight\" of \"one\"; "
            "1 tensors of shards are not in the index: \"model.norm.weight\" of \"two\"");
  CHECK(with("more", "two") == where + "1 tensors are not in the shard that the index names: \"more\" of \"two\"");
  CHECK(with("model.norm.weight", nullptr) ==
        where + "1 tensors of shards are not in the index: \"model.norm.weight\" of \"two\"");
  const std::string name = "field \"weight_map.model.norm.weight\" must be the name of a file in the same directory";
  CHECK(with("model.norm.weight", 3) == where + name + ", but is 3");
  CHECK(with("model.norm.weight", "") == where + name + ", but is \"\"");
  CHECK(with("model.norm.weight", "../two") == where + name + ", but is \"../two\"");
  write_text(index, "{}");
  CHECK(error_of(directory.path) == where + "field \"weight_map\" must be an object, but is missing");
  write_text(index, "{\"weight_map\": 3}");
  CHECK(error_of(directory.path) == where + "field \"weight_map\" must be an object or null, but is 3");
  write_text(index, "{");
  CHECK(error_of(directory.path).starts_with(where + "not valid JSON"));

  write_text(index, good.dump());
  write_text(directory.path / "two", "cut short");
  CHECK(error_of(directory.path).starts_with("/two: header of "));
}

TEST_CASE("what is no checkpoint directory is refused by name") {
  const temporary_directory directory;
  CHECK(error_of(directory.path / "none") == ": not a directory");
  CHECK(error_of(directory.path) == "/config.json: no such file");
  write_config(directory.path, small_config(), tensor_dtype::f32);
  CHECK(error_of(directory.path) == ": holds neither model.safetensors nor model.safetensors.index.json");
  write_text(directory.path / "model.safetensors", "");
  CHECK(error_of(directory.path) == "/model.safetensors: 0 bytes, too short for a safetensors file");
}

TEST_CASE("random numbers are those of every machine, and normal") {
  const normal_stream stream(1, "model.norm.weight"), other_seed(2, "model.norm.weight"),
      other_name(1, "lm_head.weight");
  double sum[5] = {};
  const num n = 200000;
  int beyond_two = 0;
  for (num i = 0; i < n; ++i) {
    const double z = stream(i);
    for (int k = 1; k <= 4; ++k) sum[k] += std::pow(z, k) / static_cast<double>(n);
    beyond_two += std::abs(z) > 2 ? 1 : 0;
    CHECK_MESSAGE(std::abs(z) <= 6, z);
    sum[0] += z * (stream(i + 1) + other_seed(i) + other_name(i)) / static_cast<double>(n);
  }
  CHECK(std::abs(sum[1]) < 0.01);
  CHECK(std::abs(sum[2] - 1) < 0.01);
  CHECK(std::abs(sum[3]) < 0.03);
  CHECK(std::abs(sum[4] - 2.9) < 0.06);  // 3 - 1.2 / 12, of twelve uniform numbers
  CHECK(std::abs(beyond_two / static_cast<double>(n) - 0.0455) < 0.002);
  CHECK(std::abs(sum[0]) < 0.02);  // neighbours, seeds and names have nothing in common
  // Golden numbers: a checkpoint of a seed stays what it is.
  CHECK(stream(0) * 65536 == 73217);
  CHECK(stream(1) * 65536 == -31691);
  CHECK(normal_stream(~0ull, "")(1LL << 40) * 65536 == -27311);
}

TEST_CASE("a random checkpoint is read, with norms of one and biases of zero") {
  model_config config = small_config();
  config.spec.attention_bias = true;
  config.spec.hidden_size = 64;
  config.initializer_range = 0.5;
  const temporary_directory directory;
  const fs::path path = directory.path / "new" / "directory";
  write_random_checkpoint(path, config, 3);
  CHECK(num_files(path) == 2);
  const checkpoint c = checkpoint::open(path);
  CHECK(c.config() == config);
  for_each_parameter(config.spec, [&](const parameter& p) {
    const auto values = read_part_of<double>(c, p, p.whole());
    const bool bias = name_of(p).view().ends_with("bias"), norm = name_of(p).view().find("norm") != std::string::npos;
    CAPTURE(std::string(name_of(p).view()));
    if (bias || norm) {
      CHECK(std::all_of(values.begin(), values.end(), [&](double v) { return v == (norm ? 1 : 0); }));
      return;
    }
    double squares = 0;
    for (const double v : values) squares += v * v / static_cast<double>(values.size());
    CHECK(std::abs(std::sqrt(squares) - 0.5) < 0.1);
    // Stored in BF16, these are the numbers of the tensor's own stream.
    if (p.kind == parameter_kind::q_proj)
      CHECK(std::abs(values[5] - 0.5 * normal_stream(3, name_of(p).view())(5)) <= std::abs(values[5]) / 256);
  });
}

TEST_CASE("every element of a long tensor has its own number of the stream") {
  model_config config = small_config();
  config.spec.vocab_size = 10000;  // 100000 elements: more than are made at once
  const temporary_directory directory;
  write_random_checkpoint(directory.path, config, 5, tensor_dtype::f64);
  const checkpoint c = checkpoint::open(directory.path);
  const parameter p = make_parameter(config.spec, parameter_kind::embed_tokens);
  const auto values = read_part_of<double>(c, p, p.whole());
  const normal_stream stream(5, name_of(p).view());
  for (num i = 0; i < p.size(); ++i)
    REQUIRE(values[static_cast<std::size_t>(i)] == stream(i) * config.initializer_range);
}

TEST_CASE("a random checkpoint depends on the seed, and not on its files") {
  const model_config config = small_config();
  const temporary_directory directory;
  write_random_checkpoint(directory.path / "one", config, 3, tensor_dtype::f32);
  write_random_checkpoint(directory.path / "again", config, 3, tensor_dtype::f32);
  write_random_checkpoint(directory.path / "seed", config, 4, tensor_dtype::f32);
  write_random_checkpoint(directory.path / "sharded", config, 3, tensor_dtype::f32, 2000);
  write_random_checkpoint(directory.path / "brain", config, 3, tensor_dtype::bf16);
  CHECK(read_text(directory.path / "one/model.safetensors") == read_text(directory.path / "again/model.safetensors"));
  const auto one = read_all(checkpoint::open(directory.path / "one"));
  CHECK(one != read_all(checkpoint::open(directory.path / "seed")));
  CHECK(one == read_all(checkpoint::open(directory.path / "sharded")));
  const auto brain = read_all(checkpoint::open(directory.path / "brain"));
  for (std::size_t i = 0; i < one.size(); ++i)
    for (std::size_t j = 0; j < one[i].size(); ++j)
      REQUIRE(std::abs(one[i][j] - brain[i][j]) <= std::abs(one[i][j]) / 256);

  const auto index = nlohmann::json::parse(read_text(directory.path / "sharded/model.safetensors.index.json"));
  CHECK(index["metadata"]["total_size"] == 4 * num_parameters(config.spec));
  const num files = static_cast<num>(num_files(directory.path / "sharded")) - 2;
  CHECK(files >= 4 * num_parameters(config.spec) / 2000);
  for (num f = 1; f <= files; ++f) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", static_cast<int>(f), static_cast<int>(files));
    num bytes = 0;
    const safetensors_file file = safetensors_file::open(directory.path / "sharded" / name);
    for (const tensor_entry& e : file.entries()) bytes += static_cast<num>(e.bytes.size());
    CHECK(bytes <= 2000);
    CHECK(bytes > 0);
  }
}

TEST_CASE("a random checkpoint never replaces anything") {
  const temporary_directory directory;
  const fs::path path = directory.path / "there";
  const std::string name = path.string();
  write_text(path, "file");
  CHECK(message_of([&] { write_random_checkpoint(path, small_config()); }) ==
        name + ": is there already, and not a directory");
  fs::remove(path);
  fs::create_directory(path);
  write_text(path / "mine", "file");
  CHECK(message_of([&] { write_random_checkpoint(path, small_config()); }) == name + ": the directory is not empty");
  CHECK(num_files(path) == 1);
  fs::remove(path / "mine");
  write_random_checkpoint(path, small_config());
  CHECK_NOTHROW(checkpoint::open(path));
  CHECK(message_of([&] { write_random_checkpoint(directory.path / "x", small_config(), 0, tensor_dtype::i32); }) ==
        "weights cannot be I32, only F64, F32, F16 or BF16");
  CHECK_FALSE(fs::exists(directory.path / "x"));
}

TEST_CASE("a random checkpoint that has no room is refused before it begins") {
  model_config config = small_config();
  const temporary_directory directory;
  const fs::path path = directory.path / "new";
  config.spec.num_hidden_layers = 512;
  config.spec.hidden_size = 1 << 24;
  config.spec.intermediate_size = 1 << 24;
  const std::string message = message_of([&] { write_random_checkpoint(path, config); });
  CHECK(message.starts_with(path.string() + ": the weights need "));
  CHECK(message.find(" parameters in BF16), but ") != std::string::npos);
  config.spec.hidden_size = config.spec.intermediate_size = config.spec.num_experts = 2147483647;
  config.spec.mlp_only_layers = {};
  config.spec.num_hidden_layers = 1;
  CHECK(message_of([&] { write_random_checkpoint(path, config); }).find("at most 500000 are written") !=
        std::string::npos);
  config.spec.num_experts = 0;
  config.spec.num_attention_heads = config.spec.head_dim = 2147483647;
  CHECK(message_of([&] { write_random_checkpoint(path, config); }).find("(more than 2^63 parameters in BF16)") !=
        std::string::npos);
  CHECK(num_files(directory.path) == 0);
}

TEST_CASE("a random checkpoint that is interrupted leaves nothing") {
  const temporary_directory directory;
  fs::create_directory(directory.path / "empty");
  for (const fs::path& path : {directory.path / "new" / "deep", directory.path / "empty"}) {
    num last = 0, all = 0;
    const auto write = [&](num stop) {
      write_random_checkpoint(path, small_config(), 0, tensor_dtype::f32, 2000, [&, stop](num done, num total) {
        CHECK(done > last);
        last = done;
        all = total;
        if (done > stop) throw std::runtime_error("stop");
      });
    };
    CHECK_THROWS_WITH(write(4000), "stop");
    CHECK(num_files(directory.path) == 1);
    CHECK(num_files(directory.path / "empty") == 0);
    CHECK(all == 4 * num_parameters(small_config().spec));
    last = 0;
    write(1 << 30);
    CHECK(last == all);
    CHECK_NOTHROW(checkpoint::open(path));
    for (const auto& e : fs::directory_iterator(path)) fs::remove(e);
    if (path.filename() == "deep") fs::remove_all(directory.path / "new");
  }
}
