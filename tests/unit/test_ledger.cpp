// SPDX-License-Identifier: Apache-2.0
// What the plan predicts and what the engine recorded: line by line, byte by byte.
#include <doctest/doctest.h>

#include <algorithm>
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
    // What is known before any routing: as many lines, none of which reality exceeds.
    std::size_t line = 0;
    for_each_collective(m, plan, shape, rank, bounding_routing{m, plan, shape}, [&](const ledger_entry& most) {
      REQUIRE(line < predicted.size());
      const ledger_entry& e = predicted[line++];
      CHECK_MESSAGE((e.what == most.what && e.axes == most.axes && e.bytes <= most.bytes), describe(e));
      CHECK_MESSAGE(wire_bytes(e) <= wire_bytes(most), describe(e));
    });
    CHECK(line == predicted.size());
  }
}

/// Carries out a routing in which every token chooses k experts from number `first` on, and notes per rank and line of
/// the ledger the most that any such run sent.
struct largest_sent {
  std::vector<std::vector<num>> bytes, wire;  // [rank][line]

  void run_with(const checkpoint& weights, const plan_spec& plan, const batch_rows& rows, num first) {
    const model_spec& m = weights.config().spec;
    expert_choices forced{rows.rows, rows.length, m.num_experts_per_tok, {}};
    for (num i = 0; i < num_moe_layers(m) * rows.rows * rows.length; ++i)
      for (num j = 0; j < forced.per_token; ++j) forced.experts.push_back((first + j) % m.num_experts);
    const num each = rows.rows / num_data_shards(plan);
    const std::vector<recorder> recorded =
        run(world_size(plan), std::chrono::seconds(60), [&](thread_communicator& comm) {
          run_sharded<double, planned_methods>(
              comm, weights, plan, plan.pp,
              [&](num rank) { return select_rows(rows, data_index(plan, rank) * each, each); },
              {.gradients = true, .replay = std::span(&forced, 1)});
        });
    bytes.resize(recorded.size()), wire.resize(recorded.size());
    for (std::size_t rank = 0; rank < recorded.size(); ++rank) {
      std::size_t line = 0;
      for (const ledger_entry& e : recorded[rank].entries()) {
        if (e.why == phase::check || e.why == phase::collect) continue;
        if (line == bytes[rank].size()) bytes[rank].push_back(0), wire[rank].push_back(0);
        bytes[rank][line] = std::max(bytes[rank][line], e.bytes);
        wire[rank][line] = std::max(wire[rank][line], wire_bytes(e));
        ++line;
      }
    }
  }
};

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
  for (const char* name : {"sparse_step", "tied", "attention_bias", "packed", "auxiliary"}) {
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

TEST_CASE("what dispatch sends at most is reached when all tokens choose the experts of one rank") {
  const checkpoint weights = checkpoint::open(SHARDPLAN_TEST_DATA "/tiny");
  const model_spec& m = weights.config().spec;
  const batch_rows rows = random_rows(m, 4, 16);  // nothing is padded: every row is routed
  num lines = 0;
  for (const char* text :
       {"fsdp=2,ep=2", "tp=2/sp,cp=2/ring,ep=2,etp=2", "pp=2,tp=2,cp=2,ep=4", "fsdp=3,ep=3,expert_pad",
        "cp=4/ring,tp=2,ep=8"}) {  // the last: more choices than experts of a rank
    const plan_spec plan = parse_plan(text).plan;
    batch_rows some = num_data_shards(plan) == 3 ? random_rows(m, 3, 16) : rows;
    run_shape shape;
    shape.padded_length = 16, shape.micro_batches = plan.pp, shape.element_bytes = 8, shape.training = true;
    shape.micro_rows = some.rows / num_data_shards(plan) / plan.pp;
    largest_sent sent;
    for (num first = 0; first < m.num_experts; ++first) sent.run_with(weights, plan, some, first);
    const bounding_routing most{m, plan, shape};
    for (num rank = 0; rank < world_size(plan); ++rank) {
      INFO(std::string(text), " rank ", rank);
      const auto at = static_cast<std::size_t>(rank);
      std::size_t line = 0;
      for_each_collective(m, plan, shape, rank, most, [&](const ledger_entry& e) {
        REQUIRE(line < sent.bytes[at].size());
        CHECK_MESSAGE(sent.bytes[at][line] == e.bytes, describe(e));
        CHECK_MESSAGE(sent.wire[at][line] == wire_bytes(e), describe(e));
        ++line, ++lines;
      });
      CHECK(line == sent.bytes[at].size());
      // The closed form: all choices of all rows of all senders.
      const num r = rows_to_route(plan, shape, rank), k = m.num_experts_per_tok;
      const num s = chunk(m.num_experts, plan.ep, group_of(plan, m, rank, axis::ep).index).size();
      CHECK(rows_received(m, plan, most, 0, 0, rank) == plan.ep * r * std::min(k, s));
      if (plan.ep * s == m.num_experts)
        CHECK(rows_received(m, plan, balanced_routing{m, plan, shape}, 0, 0, rank) == r * k);
    }
  }
  MESSAGE(lines, " lines");
}

TEST_CASE("where every token chooses every expert, the most that is sent is what is sent") {
  model_spec m = checkpoint::open(SHARDPLAN_TEST_DATA "/tiny").config().spec;
  m.num_experts = m.num_experts_per_tok = 3;
  for (const char* text : {"fsdp=3,ep=3", "fsdp=2,ep=2,expert_pad", "tp=2/sp,fsdp=2,ep=2,etp=2,expert_pad"}) {
    const plan_spec plan = parse_plan(text).plan;
    run_shape shape;
    shape.padded_length = 8, shape.micro_rows = 1, shape.training = true;
    const auto all = [&](num, num, num rank, dim_range experts) {
      return rows_to_route(plan, shape, rank) * experts.size();
    };
    const bounding_routing most{m, plan, shape};
    for (num rank = 0; rank < world_size(plan); ++rank) {
      std::vector<std::string> sent, bound;
      for_each_collective(m, plan, shape, rank, all, [&](const ledger_entry& e) { sent.push_back(describe(e)); });
      for_each_collective(m, plan, shape, rank, most, [&](const ledger_entry& e) { bound.push_back(describe(e)); });
      INFO(std::string(text), " rank ", rank);
      CHECK(sent == bound);
    }
  }
}

TEST_CASE("the hops of a ring told at once are those told one by one") {
  const model_spec m = checkpoint::open(SHARDPLAN_TEST_DATA "/tiny").config().spec;
  for (const char* text :
       {"cp=1", "cp=2/ring", "cp=5/ring", "cp=4/ulysses2xring2", "cp=4/all_gather", "cp=4/ulysses"}) {
    const plan_spec plan = parse_plan(text).plan;
    run_shape shape;
    shape.padded_length = 40, shape.micro_rows = 1, shape.training = true;
    std::vector<std::string> each, repeated;
    const balanced_routing routing{m, plan, shape};
    for_each_collective(m, plan, shape, 0, routing, [&](const ledger_entry& e) { each.push_back(describe(e)); });
    for_each_collective(m, plan, shape, 0, routing, [&](const ledger_entry& e, num times) {
      repeated.insert(repeated.end(), static_cast<std::size_t>(times), describe(e));
    });
    std::sort(each.begin(), each.end());
    std::sort(repeated.begin(), repeated.end());
    CHECK(each == repeated);
  }
}

TEST_CASE("a model that asks for the routers' loss but has no layer of experts sends nothing for it") {
  model_spec m = checkpoint::open(SHARDPLAN_TEST_DATA "/tiny").config().spec;
  m.decoder_sparse_step = m.num_hidden_layers + 1;
  const plan_spec plan = parse_plan("pp=2,tp=2").plan;
  run_shape shape;
  shape.padded_length = 8, shape.micro_rows = 1, shape.micro_batches = 2, shape.training = true;
  num plain = 0, asked = 0;
  for (num* lines : {&plain, &asked}) {
    shape.auxiliary = lines == &asked;
    for_each_collective(m, plan, shape, 0, balanced_routing{m, plan, shape}, [&](const ledger_entry&) { ++*lines; });
  }
  CHECK(plain == asked);
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
