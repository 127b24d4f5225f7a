// SPDX-License-Identifier: Apache-2.0
// Parameters of a checkpoint, cut by one plan into a saved state, read by another, gathered and written: the same
// files.
#include <shardplan/plan_text.hpp>

#include "equality_helpers.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/checkpoint/write_checkpoint.hpp"

namespace shardplan::runtime {
namespace {

namespace fs = std::filesystem;

/// Worlds of 1 to 16 ranks. plan_for adds the stages that do not divide the layers, copies of key/value heads, padded
/// vocabularies and padded experts that a model needs under them.
constexpr const char* plans[] = {"tp=1",
                                 "fsdp=3/zero3,ep=3",
                                 "pp=3,fsdp=2/zero1",
                                 "tp=4/sp,ep=2,etp=2",
                                 "tp=8,ep=4/all_gather",
                                 "dp_replicate=2,fsdp=2/zero2,ep=2/all_reduce",
                                 "pp=2,cp=4/ring/zigzag,fsdp=1/zero1,ep=4",
                                 "pp=2/interleaved2,tp=2/sp",
                                 "cp=3/all_gather,fsdp=1/zero2,ep=3",
                                 "pp=2,fsdp=2,cp=2/ring/zigzag,tp=2,ep=8"};

/// dtype, shape and bytes of every tensor of a checkpoint, whatever its files.
struct stored_bytes {
  tensor_dtype dtype;
  std::vector<num> shape;
  std::string bytes;
  bool operator==(const stored_bytes&) const = default;
};
std::map<std::string, stored_bytes> tensors_of(const fs::path& directory) {
  std::map<std::string, stored_bytes> out;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
    const safetensors_file file = safetensors_file::open(entry.path());
    for (const tensor_entry& t : file.entries())
      out[t.name] = {t.dtype, t.shape, {reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()}};
  }
  return out;
}

void expect_same_tensors(const fs::path& a, const fs::path& b) {
  const auto ours = tensors_of(a), theirs = tensors_of(b);
  CHECK(ours.size() == theirs.size());
  for (const auto& [name, tensor] : theirs) {
    const auto found = ours.find(name);
    CHECK_MESSAGE(found != ours.end(), name);
    if (found != ours.end()) CHECK_MESSAGE(found->second == tensor, name);
  }
}

struct cut {
  const char* text;
  plan_spec plan;
};
/// The plans that the model can have, on rows that fit them all.
std::vector<cut> cuts_of(const std::string& fixture, const batch_rows& rows) {
  std::vector<cut> out;
  for (const char* text : plans)
    if (const plan_spec p = plan_for(model_of(fixture), text); broken_rules(model_of(fixture), p, rows, p.pp) == "")
      out.push_back({text, p});
  return out;
}

template <class T>
gathered_result<T> run_cut(const std::string& fixture, const cut& c, const batch_rows& rows, const run_options& how) {
  return run_plan<T>(weights_of(fixture), c.plan, c.plan.pp, shares_of(rows, c.plan), how);
}

/// Saved under one plan, read and gathered under another, written as a checkpoint; for every plan, or every third.
template <class T>
num go_round(const std::string& fixture, std::size_t stride = 3) {
  const batch_rows rows = make_rows(model_of(fixture), 12, 5);
  const std::vector<cut> cuts = cuts_of(fixture, rows);
  num trips = 0;
  for (std::size_t i = 0; i < cuts.size(); i += stride, ++trips) {
    const cut &first = cuts[i], &second = cuts[(i * 3 + 4) % cuts.size()];
    INFO(fixture, ": ", std::string(first.text), " then ", std::string(second.text));
    const tests::temporary_directory directory;
    run_options save, resume;
    save.save = resume.resume = directory.path / "state";
    resume.parameters = true;
    CHECK(run_cut<T>(fixture, first, rows, save).parameters.empty());
    CHECK(sharded_state::open(directory.path / "state").step() == 0);
    const auto read = run_cut<T>(fixture, second, rows, resume);
    const num max_file_bytes = trips % 2 == 0 ? max_weights_file_bytes : 6000;
    write_checkpoint(directory.path / "weights", weights_of(fixture), read.parameters, {}, max_file_bytes);
    const fs::path original = weights_of(fixture).directory();
    expect_same_tensors(directory.path / "weights", original);
    CHECK(tests::read_text(directory.path / "weights/config.json") == tests::read_text(original / "config.json"));
    CHECK(fs::exists(directory.path / "weights/model.safetensors.index.json") == (trips % 2 != 0));
    CHECK_NOTHROW(checkpoint::open(directory.path / "weights"));
    CHECK(tests::num_files(directory.path) == 2);  // nothing temporary is left
  }
  return trips;
}

}  // namespace

TEST_CASE("saved under one plan, gathered under another: the tensors of the files, bit for bit") {
  num trips = go_round<double>("tiny", 1);
  // Tensors per expert and fused, of three types, in one file and in several; tied ends, dense layers, biases.
  for (const char* fixture :
       {"no_norm_topk", "wide_heads", "f16", "sliding", "tied", "sparse_step", "attention_bias", "qwen3_dense_mix"})
    trips += go_round<double>(fixture);
  trips += go_round<float>("tiny") + go_round<float>("wide_heads");
  MESSAGE(trips, " round trips");
  CHECK(trips >= 30);
}

TEST_CASE("a written checkpoint says its type, and never holds more digits than were computed") {
  const checkpoint& half = weights_of("wide_heads");  // bf16
  const tests::temporary_directory directory;
  const batch_rows rows = make_rows(half.config().spec, 1, 5);
  run_options how;
  how.parameters = true;
  const cut alone{"tp=1", plan_for(half.config().spec, "tp=1")};
  const auto values = run_cut<double>("wide_heads", alone, rows, how).parameters;
  write_checkpoint(directory.path / "wide", half, values, tensor_dtype::f64);
  const checkpoint wide = checkpoint::open(directory.path / "wide");
  CHECK(tests::read_text(directory.path / "wide/config.json").find("\"float64\"") != std::string::npos);
  for (const auto& [name, tensor] : tensors_of(directory.path / "wide")) CHECK(tensor.dtype == tensor_dtype::f64);
  CHECK(wide.config() == half.config());
  // A run in f32 has rounded what it read from F64.
  const std::map<std::string, std::vector<float>> rounded = [&] {
    std::map<std::string, std::vector<float>> out;
    for (const auto& [name, v] : values) out[name].assign(v.begin(), v.end());
    return out;
  }();
  write_checkpoint(directory.path / "narrow", wide, rounded);
  CHECK(tests::read_text(directory.path / "narrow/config.json").find("\"float32\"") != std::string::npos);
  for (const auto& [name, tensor] : tensors_of(directory.path / "narrow")) CHECK(tensor.dtype == tensor_dtype::f32);

  const auto refusal = [&](const fs::path& path) {
    return tests::message_of([&] { write_checkpoint(path, half, values); });
  };
  CHECK(refusal(directory.path / "wide").find("is there already") != std::string::npos);
  CHECK(refusal(directory.path / "wide/").find("is there already") != std::string::npos);
  CHECK(refusal(directory.path / "none" / "deep").find("cannot be created") != std::string::npos);
  auto missing = values;
  missing.erase("model.norm.weight");
  CHECK_THROWS_AS(write_checkpoint(directory.path / "less", half, missing), std::logic_error);
  CHECK(tests::num_files(directory.path) == 2);
}

}  // namespace shardplan::runtime
