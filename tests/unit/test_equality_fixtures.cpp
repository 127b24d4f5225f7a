// SPDX-License-Identifier: Apache-2.0
// Every fixture of tests/data under every plan of a table that is legal for it: logits, token losses, loss and all
// gradients are those of `transformers`.
#include <set>

#include "equality_helpers.hpp"
#include "runtime/checkpoint/safetensors.hpp"

namespace shardplan::runtime {
namespace {

const std::filesystem::path data = SHARDPLAN_TEST_DATA;

/// Plans for models of 2 to 8 layers, 4 to 8 heads and 2 to 4 rows: no fixture takes them all.
constexpr const char* plans[] = {
    "tp=1",
    "tp=2",
    "tp=2/sp",
    "tp=3",
    "tp=3/sp",
    "tp=4",
    "tp=4/sp",
    "tp=6/sp",
    "cp=2/ulysses",
    "cp=2/ulysses/zigzag",
    "cp=3/ulysses",
    "cp=3/ulysses/zigzag",
    "cp=4/ulysses/zigzag_documents",
    "cp=2/ring",
    "cp=3/ring/zigzag",
    "cp=4/ring/zigzag",
    "cp=2/ring/zigzag_documents",
    "cp=2/all_gather",
    "cp=4/all_gather/zigzag",
    "cp=3/all_gather/zigzag_documents",
    "cp=4/ulysses2xring2",
    "cp=4/ulysses2xring2/zigzag",
    "cp=4/ulysses2xring2/zigzag_documents",
    "fsdp=2/zero1",
    "fsdp=2/zero2",
    "fsdp=2/zero3",
    "fsdp=3/zero1",
    "fsdp=3/zero2",
    "fsdp=3/zero3",
    "fsdp=1/zero1,cp=2/ring",
    "fsdp=1/zero2,cp=2/all_gather/zigzag",
    "fsdp=1/zero3,cp=2/ulysses",
    "dp_replicate=2",
    "dp_replicate=3",
    "dp_replicate=2,cp=2/ring/zigzag",
    "pp=2",
    "pp=2/gpipe,cp=2/ring/zigzag",
    "pp=2/interleaved2",
    "pp=3/gpipe",
    "pp=2,tp=2/sp",
    "pp=2,tp=3",
    "cp=2/ring,ep=2",
    "cp=2/ring/zigzag,ep=2/all_gather",
    "cp=3/ring,ep=3",
    "cp=2/all_gather,etp=2",
    "tp=2,ep=2/all_reduce",
    "tp=3,ep=3/all_reduce",
    "tp=2/sp,ep=1/all_reduce,etp=2",
    "tp=3/sp,ep=3/all_gather",
    "tp=4/sp,ep=2,etp=2",
    "tp=2/sp,cp=2/ring/zigzag_documents,ep=4",
    "tp=3/sp,cp=2/all_gather/zigzag_documents,ep=2",
    "pp=2,tp=2/sp,cp=2/ring/zigzag,ep=2/all_gather,etp=2",
    "pp=2,tp=2,cp=2/all_gather/zigzag,ep=2/all_reduce",
};

/// What a plan does to a model, by name.
std::set<std::string> features(const plan_spec& p) {
  std::set<std::string> f;
  if (p.tp > 1) f.insert(p.sequence_parallel ? "tp/sp" : "tp");
  if (p.cp > 1) {
    f.insert(std::string(name_of(p.method)) + "/" + std::string(name_of(p.layout)));
    if (p.layout == layout_kind::zigzag_documents) f.insert("zigzag_documents");
  }
  if (p.fsdp * p.cp > 1) f.insert(std::string(name_of(p.zero)));
  if (p.pp > 1) f.insert("pp");
  if (p.dp_replicate > 1) f.insert("dp_replicate");
  if (p.ep > 1) f.insert("ep " + std::string(name_of(p.dispatch)));
  if (p.etp > 1) f.insert("etp");
  return f;
}

batch_rows rows_of(const safetensors_file& file) {
  const auto integers = [&](const char* name) {
    const tensor_entry* t = file.find(name);
    return t == nullptr ? std::vector<num>() : read_as<num>(*t);
  };
  batch_rows b;
  b.rows = file.at("labels").shape[0], b.length = file.at("labels").shape[1];
  b.input_ids = integers("input_ids");
  if (const tensor_entry* t = file.find("inputs_embeds")) b.inputs_embeds = read_as<double>(*t);
  b.shift_labels = integers("shift_labels");
  if (b.shift_labels.empty()) b.labels = integers("labels");
  b.attention_mask = integers("attention_mask");
  b.position_ids = integers("position_ids");
  return b;
}

/// What transformers computed, as f64.
struct expected_values {
  std::vector<double> logits, token_loss, loss;
  std::map<std::string, std::vector<double>> gradients;
  std::vector<char> real;

  explicit expected_values(const safetensors_file& file)
      : logits(read_as<double>(file.at("logits"))),
        token_loss(read_as<double>(file.at("token_loss"))),
        loss(read_as<double>(file.at("loss"))) {
    for (const tensor_entry& t : file.entries())
      if (t.name.starts_with("grad.")) gradients[t.name.substr(5)] = read_as<double>(t);
    if (const tensor_entry* t = file.find("compare_mask"))
      for (num x : read_as<num>(*t)) real.push_back(x != 0);
  }
};

}  // namespace

TEST_CASE("every fixture under every legal plan of the table is what transformers computed") {
  num read = 0, runs = 0;
  std::set<std::string> everywhere;
  for (const auto& entry : std::filesystem::directory_iterator(data)) {
    if (!std::filesystem::exists(entry.path() / "expected.safetensors")) continue;
    const std::string name = entry.path().filename();
    ++read;
    const checkpoint& weights = weights_of(name);
    const model_spec& m = weights.config().spec;
    const safetensors_file file = safetensors_file::open(entry.path() / "expected.safetensors");
    const batch_rows rows = rows_of(file);
    const expected_values expected(file);
    num plans_here = 0;
    double worst = 0;
    std::set<std::string> here;
    for (const char* text : plans) {
      const plan_spec plan = plan_for(m, text);
      // As many micro-batches as there are; the routers' loss is a mean over them, and transformers had one.
      const num shards = num_data_shards(plan);
      const num micro_batches =
          weights.config().output_router_logits || rows.rows % shards != 0 ? 1 : rows.rows / shards;
      if (broken_rules(m, plan, rows, micro_batches) != "") continue;
      INFO(name, " under ", std::string(text), " with ", micro_batches, " micro-batches");
      const auto ours = run_plan<double>(weights, plan, micro_batches, shares_of(rows, plan));
      differences d;
      d.compare("logits", ours.logits, expected.logits, 1e-5, expected.real, m.vocab_size);
      d.compare("token_loss", ours.token_loss, expected.token_loss, 1e-5, expected.real);
      d.compare("loss", std::vector{ours.loss}, expected.loss, 1e-5);
      compare_gradients(d, ours.gradients, expected.gradients, 1e-5);
      CHECK_MESSAGE(d.none(), d.text());
      worst = std::max(worst, d.worst());
      here.merge(features(plan));
      ++plans_here;
    }
    MESSAGE(name, ": ", plans_here, " plans, largest error ", worst);
    CHECK(plans_here >= 8);
    for (const char* needed :
         {"ulysses/contiguous", "ulysses/zigzag", "ring/contiguous", "ring/zigzag", "all_gather/contiguous",
          "all_gather/zigzag", "zigzag_documents", "zero1", "zero2", "zero3", "pp", "tp", "tp/sp", "dp_replicate"}) {
      INFO(name, " lacks a plan with ", std::string(needed));
      CHECK(here.count(needed) == 1);
    }
    if (num_moe_layers(m) > 0) {
      INFO(name);
      CHECK(here.count("ep dispatch") + here.count("ep all_reduce") + here.count("ep all_gather") == 3);
    }
    everywhere.merge(here);
    runs += plans_here;
  }
  MESSAGE(read, " fixtures, ", runs, " runs");
  CHECK(read == 16);
  CHECK(everywhere.count("ulysses_ring/zigzag_documents") == 1);
  CHECK(everywhere.count("etp") == 1);
}

}  // namespace shardplan::runtime
