// SPDX-License-Identifier: Apache-2.0
// Plans carried out by the kernels' source, against the baseline: outputs, every gradient, optimizer steps, and what is
// sent. Ranks are threads; the memory of their devices holds NaN until it is written. Without SHARDPLAN_TEST_GPU
// kernels run on the host, and in f32 it cannot touch what they work on; with it on GPUs, one for each rank.
#include "runtime/checkpoint/init.hpp"
#include "runtime/reference/training.hpp"
#include "runtime/verify/ledger_comparison.hpp"
#ifdef SHARDPLAN_TEST_GPU
#include "tests/device/run_on_gpus.hpp"
#else
#include "tests/device/run_on_host.hpp"
#endif
#include "tests/unit/equality_helpers.hpp"

namespace shardplan::runtime {
namespace {

/// Plans of one model and batch, with a micro-batch per pipeline stage's rank.
template <class T>
double expect_equal(const std::string& fixture, const batch_rows& rows, std::initializer_list<const char*> plans) {
  using A = accumulated<T>;
  const checkpoint& weights = weights_of(fixture);
  const model_spec& m = model_of(fixture);
  const baseline<A> reference(weights, std::is_same_v<T, bf16>);
  const auto forward = reference.forward(rows);
  const replayed_choices replay = choices_to_replay(forward, std::is_same_v<T, bf16> ? replay_margin<bf16> : 0);
  run_options options = with_gradients();
  options.replay = replay.choices;
  double worst = 0;
  for (const char* text : plans) {
    const plan_spec plan = plan_for(m, text);
    INFO(fixture, " ", std::string(text), " ", sizeof(T), " bytes, replayed ", replay.tokens, " of ", replay.total);
    REQUIRE(broken_rules(m, plan, rows, plan.pp) == "");
    std::vector<num> grouped;
    if (weights.config().output_router_logits) grouped = micro_batches_of_rows(plan, rows.rows, plan.pp);
    std::vector<recorder> sent;
    const auto ours = run_kernels<T>(weights, plan, plan.pp, rows, options, &sent);
    const comparison c = compare<A, T>(ours, reference.compute(rows, grouped, {.gradients = true}), real_tokens(rows));
    differences d;
    for (const tensor_comparison& t : c.tensors) d.note(t);
    CHECK_MESSAGE(c.equal, d.text(), c.note);
    worst = std::max(worst, d.worst());
    ledger_question how;
    how.micro_batches = plan.pp, how.element_bytes = sizeof(T), how.gradients = true;
    const ledger_comparison ledger = compare_ledgers(weights, plan, rows, how, forward, sent);
    CHECK_MESSAGE(ledger.equal, ledger.difference);
  }
  return worst;
}

/// Unequal rows with padding on either side, which is neither routed nor attended to.
batch_rows padded_rows(const model_spec& m) {
  batch_rows rows = make_rows(m, 8, 11);
  hide(rows, 0, 8, 11), hide(rows, 5, 0, 3);
  return rows;
}

}  // namespace

TEST_CASE("kernels give what the baseline gives, under every axis, method, layout, dispatch kind and zero stage") {
  const model_spec& m = model_of("tiny");
  double worst = expect_equal<double>("tiny", padded_rows(m),
                                      {"tp=1", "tp=2/sp,cp=2/ring/zigzag,ep=2", "cp=4/ulysses2xring2/zigzag,tp=2",
                                       "dp_replicate=2,fsdp=2/zero1,tp=2,ep=2,etp=2", "tp=4/sp,ep=2/all_gather,etp=2",
                                       "tp=2/sp,ep=2/all_reduce", "pp=2/interleaved2,fsdp=2/zero3,ep=2"});
  worst = std::max(worst, expect_equal<double>("tiny", make_packed(m, 8, {5, 1, 7, 2}),
                                               {"cp=2/all_gather/zigzag_documents,ep=2/all_gather",
                                                "pp=2,fsdp=2/zero2,cp=2/ulysses", "tp=2,cp=4/ulysses/contiguous"}));
  batch_rows short_rows = make_rows(m, 4, 1);  // most ranks hold padding alone
  short_rows.shift_labels = short_rows.input_ids, short_rows.labels.clear();
  worst = std::max(worst, expect_equal<double>("tiny", short_rows, {"cp=4/ring/zigzag,ep=2", "pp=2/gpipe,tp=2,ep=2"}));
  MESSAGE("largest error ", worst);
}

TEST_CASE("so they do for dense layers, windows, given embeddings and the routers' own loss") {
  double worst = expect_equal<double>("qwen3_dense_mix", padded_rows(model_of("qwen3_dense_mix")),
                                      {"cp=2/ring/zigzag,tp=2/sp", "fsdp=2/zero3,cp=2/all_gather"});
  const model_spec& m = model_of("auxiliary");
  worst =
      std::max(worst, expect_equal<double>("auxiliary", padded_rows(m), {"tp=2/sp,ep=2", "pp=2,tp=2,ep=2/all_reduce"}));
  worst = std::max(worst, expect_equal<double>("auxiliary", with_embeds(make_rows(m, 4, 7), m), {"cp=2/ring,tp=2/sp"}));
  MESSAGE("largest error ", worst);
}

TEST_CASE("and in f32, with memory that only kernels, copies and engines touch") {
  const model_spec& m = model_of("tiny");
  double worst = expect_equal<float>("tiny", padded_rows(m),
                                     {"tp=2/sp,cp=2/ring/zigzag,ep=2", "pp=2,fsdp=2/zero3,cp=2/ulysses",
                                      "tp=2,ep=2/all_reduce", "tp=4/sp,ep=2/all_gather,etp=2", "cp=2/all_gather"});
  worst = std::max(worst, expect_equal<float>("auxiliary", padded_rows(model_of("auxiliary")), {"pp=2,tp=2/sp,ep=2"}));
  const batch_rows embeds = with_embeds(make_rows(model_of("qwen3_dense_mix"), 4, 7), model_of("qwen3_dense_mix"));
  worst = std::max(worst, expect_equal<float>("qwen3_dense_mix", embeds, {"cp=2/ring,tp=2/sp"}));
  MESSAGE("largest error ", worst);

  const tests::temporary_directory directory;
  const batch_rows rows = make_rows(m, 4, 7);
  const plan_spec plan = plan_for(m, "fsdp=2/zero1,tp=2");
  run_options options;
  options.steps = 1, options.save = directory.path;
  std::vector<double> losses = run_kernels<float>(weights_of("tiny"), plan, 1, rows, options).step_losses;
  options.resume = options.save;
  losses.push_back(run_kernels<float>(weights_of("tiny"), plan, 1, rows, options).step_losses.at(0));
  options = {.steps = 2};
  const auto theirs = run_plan<float>(weights_of("tiny"), plan, 1, shares_of(rows, plan), options).step_losses;
  for (std::size_t i = 0; i < 2; ++i) CHECK(std::abs(losses.at(i) - theirs.at(i)) < 1e-4);
  CHECK(theirs[0] - theirs[1] > 1e-2);
}

TEST_CASE("in bf16 they give what the baseline gives in f32, but for rounding") {
  const model_spec& m = model_of("tiny");
  double worst =
      expect_equal<bf16>("tiny", padded_rows(m),
                         {"tp=2/sp,cp=2/ring/zigzag,ep=2", "pp=2,fsdp=2/zero3,cp=2/ulysses", "tp=2,ep=2/all_reduce",
                          "tp=4/sp,ep=2/all_gather,etp=2", "cp=2/all_gather", "dp_replicate=2,fsdp=2/zero1"});
  worst = std::max(worst, expect_equal<bf16>("auxiliary", padded_rows(model_of("auxiliary")), {"pp=2,tp=2/sp,ep=2"}));
  const batch_rows embeds = with_embeds(make_rows(model_of("qwen3_dense_mix"), 4, 7), model_of("qwen3_dense_mix"));
  worst = std::max(worst, expect_equal<bf16>("qwen3_dense_mix", embeds, {"cp=2/ring,tp=2/sp"}));
  MESSAGE("largest error ", worst);
}

TEST_CASE("steps of training with biases, saved by kernels and continued by the CPU") {
  tests::temporary_directory directory;
  model_config config = weights_of("qwen3_dense_mix").config();
  config.spec.attention_bias = true;
  config.initializer_range = 0.3;
  write_random_checkpoint(directory.path / "model", config, 3, tensor_dtype::f32);
  const checkpoint weights = checkpoint::open(directory.path / "model");
  const batch_rows rows = make_rows(config.spec, 4, 7);
  reference_adamw by;
  by.learning_rate = 1e-2, by.weight_decay = 0.1;
  reference_training<double> training(reference_model<double>(weights), by);
  std::vector<double> losses;
  for (num i = 0; i < 3; ++i) losses.push_back(training.step(as_reference(rows)).result.loss);

  run_options options;
  options.steps = 2, options.optimizer.learning_rate = 1e-2, options.optimizer.weight_decay = 0.1;
  options.save = directory.path / "state";
  const plan_spec plan = plan_for(config.spec, "tp=2/sp,fsdp=2/zero1");
  const auto first = run_kernels<double>(weights, plan, 1, rows, options);
  options.steps = 1, options.resume = options.save, options.save.clear();
  const plan_spec other = plan_for(config.spec, "pp=2,fsdp=2/zero3");
  for (const auto& second : {run_kernels<double>(weights, other, 2, rows, options),
                             run_plan<double>(weights, other, 2, shares_of(rows, other), options)}) {
    std::vector<double> ours = first.step_losses;
    ours.insert(ours.end(), second.step_losses.begin(), second.step_losses.end());
    differences d;
    d.compare("losses", ours, losses, 1e-10);
    compare_gradients(d, second.parameters, by_name(training.model().weights()), 1e-10);
    CHECK_MESSAGE(d.none(), d.text());
  }
}

TEST_CASE("kernels make the choices of experts that they are told to") {
  const batch_rows rows = make_rows(model_of("tiny"), 4, 7);
  expert_choices forced{4, 7, 2, {}};
  for (num i = 0; i < 8 * 4 * 7; ++i) {
    forced.experts.push_back((i * 5 + i / 7) % 8);
    forced.experts.push_back((i * 5 + i / 7 + 1 + i % 6) % 8);
  }
  run_options options = with_gradients();
  options.replay = std::span(&forced, 1);
  const plan_spec plan = plan_for(model_of("tiny"), "cp=2/ring/zigzag,ep=2");
  const auto ours = run_kernels<double>(weights_of("tiny"), plan, 1, rows, options);
  const auto theirs = run_plan<double>(weights_of("tiny"), plan, 1, shares_of(rows, plan), options);
  differences d;
  d.compare("logits", ours.logits, theirs.logits, 1e-10);
  compare_gradients(d, ours.gradients, theirs.gradients, 1e-10);
  CHECK_MESSAGE(d.none(), d.text());
}

}  // namespace shardplan::runtime
