// SPDX-License-Identifier: Apache-2.0
// What the rules call legal gives what the baseline gives: random models, batches and plans, carried out with gradients
// in f64, and what is sent is what was predicted. Of the questions that test_refusals asks arithmetic about, these are
// legal ones, as many as SHARDPLAN_TRIPLES says (default 500) from seed SHARDPLAN_SEED on (default 1). A failure names
// its seed: SHARDPLAN_TRIPLES=1 SHARDPLAN_SEED=<seed> repeats it alone.
#include <cstdlib>

#include "equality_helpers.hpp"
#include "random_questions.hpp"
#include "runtime/checkpoint/init.hpp"
#include "runtime/checkpoint/safetensors_writer.hpp"
#include "runtime/verify/ledger_comparison.hpp"

namespace shardplan::runtime {
namespace {

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// A model that a small machine computes quickly.
bool is_small(const question& q) {
  const model_spec& m = q.model;
  for (num size :
       {m.hidden_size, m.num_attention_heads, m.head_dim, m.intermediate_size, m.moe_intermediate_size, m.num_experts,
        m.vocab_size, m.num_hidden_layers, m.sliding_window, m.decoder_sparse_step, real_length(q.batch)})
    if (size > 100) return false;
  return world_size(q.plan) <= 8 && q.batch.rows <= 100 && micro_batches(q.plan, q.batch) <= 32 &&
         q.batch.rows * real_length(q.batch) <= 400;
}

/// What the question leaves open: rows, and their length.
void complete(question& q, tests::generator& g) {
  const num least = num_data_shards(q.plan) * micro_batches(q.plan, q.batch);
  if (q.batch.rows == 0) q.batch.rows = least * (least < 8 ? g.one_of({1, 2}) : 1);
  if (q.batch.length == 0 && q.batch.documents.empty()) q.batch.length = g.one_of({1, 2, 3, 5, 7, 9, 13});
  q.world = world_size(q.plan);
  q.engine = engine_kind::threads;
}

/// The numbers beside the dims, as they come.
model_config config_of(const model_spec& m, tests::generator& g) {
  model_config config;
  config.spec = m;
  if (m.num_experts == 0) config.family = m.head_norm ? model_family::qwen3 : model_family::mistral;
  config.norm_topk_prob = g.once_in(2);
  config.rms_norm_eps = 1e-5;
  config.rope.theta = 100;  // so that the few positions of a test turn all components
  if (g.once_in(4)) {
    config.rope.type = rope_config::scaling::yarn;
    config.rope.factor = 4;
    config.rope.original_max_positions = 16;
    config.spec.scaled_rotary = true;
  }
  config.output_router_logits = m.num_experts > 0 && g.once_in(2);
  config.router_aux_loss_coef = 0.5;
  return config;
}

/// Every parameter is random, biases and norms too, which those of a fresh model are not.
checkpoint random_checkpoint(const std::filesystem::path& directory, const model_config& config, std::uint64_t seed) {
  safetensors_writer writer;
  for_each_parameter(config.spec, [&](const parameter& p) {
    const std::string name(name_of(p).view());
    const parameter_class kind = class_of(p.kind);
    const bool norm = kind == parameter_class::norm || kind == parameter_class::head_norm;
    const normal_stream normal(seed, name);
    std::vector<double> values;
    num elements = 1;
    for (num extent : p.shape) elements *= extent;
    for (num i = 0; i < elements; ++i) values.push_back((norm ? 1 : 0) + 0.3 * normal(i));
    writer.add(name, tensor_dtype::f64, {p.shape.begin(), p.shape.end()}, std::move(values));
  });
  writer.write(directory / "model.safetensors");
  write_config(directory, config, tensor_dtype::f64);
  return checkpoint::open(directory);
}

/// Plain rows, packed documents, padding at either end or of whole rows, embeddings, positions, labels of every kind.
batch_rows random_batch(const question& q, tests::generator& g) {
  const model_spec& m = q.model;
  const num rows = q.batch.rows;
  const std::vector<num> documents(q.batch.documents.begin(), q.batch.documents.end());
  const auto seed = static_cast<std::uint64_t>(g.below(1000));
  batch_rows b = documents.empty() ? make_rows(m, rows, q.batch.length, seed) : make_packed(m, rows, documents, seed);
  if (documents.empty() && g.once_in(3)) {
    b.position_ids.clear();
    if (g.once_in(2)) b.attention_mask.clear();
  }
  if (documents.empty() && g.once_in(3))
    for (num row = 0; row < rows; ++row) {
      const num padding = g.below(b.length + 1);
      if (g.once_in(2)) hide(b, row, 0, padding);
      if (g.once_in(2)) hide(b, row, b.length - padding, b.length);
    }
  if (g.once_in(4)) b.shift_labels.swap(b.labels);  // the last token predicts too
  if (g.once_in(20)) b.labels.clear(), b.shift_labels.clear();
  return g.once_in(4) ? with_embeds(std::move(b), m) : b;
}

struct tally {
  num legal = 0, large = 0, ties = 0, executed = 0, of_world[9] = {};
  double worst = 0;
  std::string seeds;
};

void carry_out(std::uint64_t seed, tally& t) {
  question q = tests::sampled_question(seed);
  if (!legal(q)) return;
  ++t.legal;
  tests::generator g(~seed);
  if (is_small(q)) complete(q, g);
  if (!is_small(q)) return void(++t.large);
  INFO("seed ", seed, ": ", tests::describe(q));

  const tests::temporary_directory directory;
  const model_config config = config_of(q.model, g);
  const checkpoint weights = random_checkpoint(directory.path, config, seed);
  q.model = weights.config().spec;  // of which dense families do not say what concerns experts
  REQUIRE(legal(q));                // nor did what was completed change the answer
  const batch_rows rows = random_batch(q, g);
  const num micro = micro_batches(q.plan, q.batch);
  const auto theirs =
      baseline<double>(weights).compute(rows, micro_batches_of_rows(q.plan, rows.rows, micro), {.gradients = true});
  for (const layer_routing& layer : theirs.routing)
    for (double margin : layer.margins)
      if (margin < 1e-9) return void(++t.ties);  // between experts: either choice is right

  std::vector<recorder> sent;
  const auto ours = run_plan<double>(weights, q.plan, micro, shares_of(rows, q.plan), with_gradients(), &sent);
  const comparison outputs = compare(ours, theirs, std::span<const char>(real_tokens(rows)));
  differences d;
  for (const tensor_comparison& c : outputs.tensors) d.note(c);
  CHECK_MESSAGE(outputs.equal, d.text() << outputs.note);
  const ledger_comparison ledger =
      compare_ledgers(weights, q.plan, rows, {.micro_batches = micro, .gradients = true}, theirs, sent);
  CHECK_MESSAGE(ledger.equal, ledger.difference);

  t.worst = std::max(t.worst, d.worst());
  ++t.executed, ++t.of_world[q.world];
  t.seeds += fmt::format("{} ", seed);
}

}  // namespace

TEST_CASE("random legal plans of random models and batches give what the baseline gives") {
  const std::uint64_t wanted = number_from("SHARDPLAN_TRIPLES", 500), first = number_from("SHARDPLAN_SEED", 1);
  tally t;
  std::uint64_t seed = first;
  for (; static_cast<std::uint64_t>(t.executed) < wanted && seed <= tests::num_sampled; ++seed) carry_out(seed, t);
  MESSAGE(t.executed, " executed of ", t.legal, " legal among seeds ", first, " to ", seed - 1, "; too large ", t.large,
          ", with ties between experts ", t.ties, "; largest error ", t.worst, "; seeds ", t.seeds);
  CHECK(static_cast<std::uint64_t>(t.executed) == wanted);
  if (wanted >= 500)
    for (num world = 1; world <= 8; ++world) CHECK_MESSAGE(t.of_world[world] > 0, world, " ranks");
}

}  // namespace shardplan::runtime
