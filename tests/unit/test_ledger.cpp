// SPDX-License-Identifier: Apache-2.0
// What the plan predicts and what the engine recorded: line by line, byte by byte.
#include <doctest/doctest.h>

#include <shardplan/collectives.hpp>
#include <shardplan/plan_text.hpp>
#include <string>

#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/cli/thread_instances.hpp"
#include "runtime/verify/baseline.hpp"
#include "runtime/verify/routing_counts.hpp"

namespace shardplan::runtime {
namespace {

batch_rows random_rows(const model_spec& m, num rows, num length) {
  batch_rows b;
  b.rows = rows, b.length = length;
  std::uint64_t seed = 7;
  for (num i = 0; i < rows * length; ++i) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    b.input_ids.push_back(static_cast<num>(seed >> 33) % m.vocab_size);
    b.labels.push_back(i % 5 == 3 ? -100 : b.input_ids.back());
  }
  return b;
}

std::string describe(const ledger_entry& e) {
  std::string axes;
  for (std::size_t a = 0; a < num_axes; ++a)
    if (e.axes.has(static_cast<axis>(a)))
      axes += std::string(axes.empty() ? "" : "+") + std::string(name_of(static_cast<axis>(a)));
  return std::string(name_of(e.why)) + " layer " + std::to_string(e.layer) + " " + std::string(name_of(e.what)) +
         " over " + axes + " (" + std::to_string(e.group_size) + ") " + std::to_string(e.bytes) + " bytes, kept " +
         std::to_string(e.kept);
}

std::vector<std::string> planned_lines(const std::vector<ledger_entry>& entries) {
  std::vector<std::string> lines;
  for (const ledger_entry& e : entries)
    if (e.why != phase::check && e.why != phase::collect) lines.push_back(describe(e));
  return lines;
}

void expect_equal_ledgers(const checkpoint& weights, const baseline<double>& model, std::string_view text,
                          const batch_rows& rows, num micro_batches, bool training, num steps = 0) {
  const parsed_plan parsed = parse_plan(text);
  REQUIRE_MESSAGE(parsed.ok(), parsed.message.view());
  const plan_spec& plan = parsed.plan;
  const model_spec& m = weights.config().spec;
  const baseline_result<double> expected = model.forward(rows);
  std::vector<std::span<const num>> choices;
  for (const layer_routing& layer : expected.routing) choices.push_back(layer.experts);
  const routing_counts routing(m, plan, rows, micro_batches, choices);
  run_shape shape = routing.shape();
  shape.element_bytes = 8;
  shape.training = training;
  shape.steps = steps;
  shape.auxiliary = weights.config().output_router_logits;

  const std::vector<recorder> recorded =
      run(world_size(plan), std::chrono::seconds(60), [&](thread_communicator& comm) {
        run_sharded<double, planned_methods>(comm, weights, plan, micro_batches,
                                             [&](num rank) {
                                               const num each = rows.rows / num_data_shards(plan);
                                               return select_rows(rows, data_index(plan, rank) * each, each);
                                             },
                                             {.gradients = training, .steps = steps});
      });
  for (num rank = 0; rank < world_size(plan); ++rank) {
    std::vector<ledger_entry> predicted;
    for_each_collective(m, plan, shape, rank, routing, [&](const ledger_entry& e) { predicted.push_back(e); });
    const std::vector<std::string> ours = planned_lines(predicted);
    const std::vector<std::string> theirs = planned_lines(recorded[static_cast<std::size_t>(rank)].entries());
    INFO(std::string(text), " rank ", rank, training ? " training" : " evaluating");
    const std::size_t common = std::min(ours.size(), theirs.size());
    for (std::size_t i = 0; i < common; ++i) REQUIRE(ours[i] == theirs[i]);
    REQUIRE(ours.size() == theirs.size());
  }
}

}  // namespace

TEST_CASE("the predicted ledger is the recorded one") {
  const checkpoint weights = checkpoint::open(SHARDPLAN_TEST_DATA "/tiny");
  const baseline<double> model(weights);
  const batch_rows rows = random_rows(weights.config().spec, 8, 13);  // padded, unevenly split, padding not routed
  for (const char* plan : {"tp=1",
                           "tp=2",
                           "tp=4/sp",
                           "tp=8/sp,kv_replicate",
                           "cp=2",
                           "cp=4/ring/zigzag",
                           "cp=4/ulysses2xring2",
                           "cp=3/all_gather",
                           "cp=8/ulysses,kv_replicate",
                           "fsdp=2",
                           "fsdp=4/zero1",
                           "fsdp=1/zero1,dp_replicate=2",
                           "pp=2",
                           "pp=4/gpipe",
                           "pp=2/interleaved2",
                           "fsdp=4,ep=2,etp=2",
                           "fsdp=2,ep=2/all_gather",
                           "tp=4/sp,ep=2/all_gather,etp=2",
                           "tp=4,ep=2/all_reduce",
                           "tp=4/sp,ep=2/all_reduce,etp=2",
                           "tp=2,cp=2/ring,ep=4",
                           "cp=3/ring,ep=3,expert_pad",
                           "pp=2,fsdp=2/zero2,cp=2/ring/zigzag,ep=4",
                           "dp_replicate=2,cp=2/all_gather,tp=2/sp,ep=2"})
    for (const bool training : {false, true}) {
      const num pp = parse_plan(plan).plan.pp;
      expect_equal_ledgers(weights, model, plan, rows, pp, training);
    }
}

TEST_CASE("the predicted ledger is the recorded one for dense layers, a tied embedding, packed documents") {
  for (const char* name : {"sparse_step", "tied", "attention_bias", "packed"}) {
    const checkpoint weights = checkpoint::open(std::string(SHARDPLAN_TEST_DATA "/") + name);
    const baseline<double> model(weights);
    batch_rows rows = random_rows(weights.config().spec, 4, 11);
    for (num row = 0; row < 4; ++row)
      for (num i = 0; i < 11; ++i) rows.position_ids.push_back(i < 3 + row ? i : i - 3 - row);
    for (const char* plan :
         {"pp=2", "pp=2,cp=2/ring/zigzag_documents", "fsdp=2,cp=2/all_gather/zigzag", "dp_replicate=2,ep=1"})
      for (const bool training : {false, true})
        expect_equal_ledgers(weights, model, plan, rows, parse_plan(plan).plan.pp, training);
  }
}

TEST_CASE("the predicted ledger is the recorded one over optimizer steps") {
  const checkpoint weights = checkpoint::open(SHARDPLAN_TEST_DATA "/tiny");
  const baseline<double> model(weights);
  const batch_rows rows = random_rows(weights.config().spec, 4, 9);
  // The baseline routes with the weights as they were read, so only plans whose bytes do not depend on routing.
  for (const char* plan : {"fsdp=2/zero1", "fsdp=2/zero2,cp=2/ring", "pp=2,tp=2/sp", "cp=2/all_gather,ep=2/all_gather"})
    expect_equal_ledgers(weights, model, plan, rows, 1, true, 3);
}

}  // namespace shardplan::runtime
