// SPDX-License-Identifier: Apache-2.0
// Bugs that were reported publicly for other systems (tests/cases), carried out: every accepted case gives the logits,
// losses and gradients of the baseline in f64, to 1e-10, and sends what the plan predicts. The traps among them are
// plans that another system accepted and got silently wrong, so the rows are those that the report needs to show it.
#include <list>
#include <memory>

#include "../cases/cases.hpp"
#include "equality_helpers.hpp"
#include "runtime/checkpoint/init.hpp"
#include "runtime/reference/training.hpp"
#include "runtime/verify/ledger_comparison.hpp"

namespace shardplan::runtime {
namespace {

using cases::public_case;
using cases::verdict;

bool is_of(const public_case& c, std::string_view family) { return c.families.find(family) != std::string_view::npos; }

/// The loss of the routers is part of the loss where it is what went wrong.
bool has_router_loss(const public_case& c) { return is_of(c, "G4"); }

/// Random weights of a case's model, written once; in many small files, so that loading has to put parts together.
const checkpoint& weights_of_case(const public_case& c) {
  struct written {
    model_spec model;
    bool router_loss;
    std::unique_ptr<tests::temporary_directory> directory;
    checkpoint weights;
  };
  static std::list<written> all;  // whose elements stay where they are
  for (const written& w : all)
    if (w.model == c.model && w.router_loss == has_router_loss(c)) return w.weights;
  model_config config;
  config.spec = c.model;
  config.initializer_range = 0.3;  // of a fresh model, logits and attention would hardly differ from token to token
  config.norm_topk_prob = true;
  config.router_aux_loss_coef = 0.5;
  config.output_router_logits = has_router_loss(c);
  auto directory = std::make_unique<tests::temporary_directory>();
  write_random_checkpoint(directory->path / "weights", config, 5, tensor_dtype::f64, 4000);
  checkpoint weights = checkpoint::open(directory->path / "weights");
  all.push_back({c.model, has_router_loss(c), std::move(directory), std::move(weights)});
  return all.back().weights;
}

void ignore_labels(batch_rows& rows, num begin, num end) {
  for (num row = 0; row < rows.rows; ++row)
    for (num i = begin; i < end; ++i) rows.labels[static_cast<std::size_t>(row * rows.length + i)] = ignored_target;
}

batch_rows rows_of_case(const public_case& c) {
  const std::vector<num> documents(c.batch.documents.begin(), c.batch.documents.end());
  batch_rows rows = documents.empty() ? make_rows(c.model, c.batch.rows, c.batch.length)
                                      : make_packed(c.model, c.batch.rows, documents);
  const std::string_view id = c.id;
  if (id == "PB007") ignore_labels(rows, 0, 8);  // a prompt, of which nothing is to be learned
  if (id == "PB092") ignore_labels(rows, 4, 8);  // all that rank 1 holds
  if (id == "PB012" || id == "PB013")            // every border between two ranks has a target on its other side
    for (std::size_t i = 0; i < rows.labels.size(); ++i) rows.labels[i] = rows.input_ids[i];
  if (id == "PB006") {  // what belongs to tokens may come shifted already
    for (num row = 0; row < rows.rows; ++row)
      for (num i = 0; i < rows.length; ++i)
        rows.shift_labels.push_back(
            i + 1 < rows.length ? rows.labels[static_cast<std::size_t>(row * rows.length + i + 1)] : ignored_target);
    rows.labels.clear();
  }
  if (id == "PB026")  // the second document does not start at 0
    for (num row = 0; row < rows.rows; ++row)
      for (num i = 0; i < 4; ++i) rows.position_ids[static_cast<std::size_t>(row * 8 + 4 + i)] = 100 + i;
  if (id == "PB003" || id == "PB074" || id == "PB075")  // micro-batches of 8 and of 4 tokens take turns
    for (num row = 1; row < rows.rows; row += 2) hide(rows, row, 4, 8);
  if (id == "PB108")  // two tokens in turn, so that all choose among few experts
    for (std::size_t i = 0; i < rows.input_ids.size(); ++i) rows.input_ids[i] = i * i % 3 == 0 ? 3 : 7;
  return rows;
}

/// Further plans of the same case, close to what the report compares with.
std::vector<std::string> more_plans(const public_case& c) {
  if (c.id == "PB012") return {"cp=4/ring/zigzag", "cp=4/ring", "cp=2/ulysses"};
  if (c.id == "PB029") return {"cp=2/all_gather/zigzag", "cp=2/ulysses/zigzag"};
  if (c.id == "PB077") return {"pp=2,fsdp=2/zero1", "pp=2,fsdp=2/zero2", "pp=2,dp_replicate=2"};
  if (c.id == "PB086") return {"fsdp=2,cp=4/ring", "fsdp=2,cp=4/all_gather", "dp_replicate=2,cp=4/ring/zigzag"};
  if (c.id == "PB090") return {"tp=4,kv_replicate", "cp=4/ring/zigzag", "tp=2/sp,cp=2/ring/zigzag"};
  if (c.id == "PB093") return {"fsdp=1/zero1,cp=4/ring", "fsdp=1/zero2,cp=4/ring", "cp=4/ring"};
  if (c.id == "PB096") return {"fsdp=2,tp=2,etp=2", "fsdp=2,tp=2,ep=2", "fsdp=2,tp=2,ep=2,etp=2"};
  if (c.id == "PB114") return {"tp=2/sp"};
  std::vector<std::string> plans;
  if (c.plan.ep > 1 && is_of(c, "E2"))  // the other ways in which tokens reach experts
    for (dispatch_kind kind : {dispatch_kind::all_reduce, dispatch_kind::all_gather}) {
      plan_spec p = c.plan;
      p.dispatch = kind;
      if (legal({c.model, p, c.batch})) plans.emplace_back(print_plan(p).view());
    }
  return plans;
}

struct worst_of {
  double error = 0;
  num runs = 0;
};

void expect_equal(const public_case& c, const plan_spec& plan, const batch_rows& rows, worst_of& worst) {
  INFO(std::string(c.id), " of ", std::string(c.source), ", ", std::string(print_plan(plan).view()));
  const checkpoint& weights = weights_of_case(c);
  const num micro = c.batch.micro_batches;
  REQUIRE(broken_rules(c.model, plan, rows, micro) == "");
  std::vector<num> cut;
  if (has_router_loss(c)) cut = micro_batches_of_rows(plan, rows.rows, micro);
  const auto theirs = baseline_of<double>(weights, rows, cut);
  CHECK(theirs.result.smallest_margin > 1e-9);  // a tie between experts would compare nothing
  std::vector<recorder> sent;
  const auto ours = run_plan<double>(weights, plan, micro, shares_of(rows, plan), with_gradients(), &sent);
  const differences d = compare_all(ours, theirs, rows, {});
  CHECK_MESSAGE(d.none(), d.text());
  worst.error = std::max(worst.error, d.worst());
  ++worst.runs;
  // Rows that should not travel, or not twice, may change nothing but what is sent.
  const ledger_comparison ledger = compare_ledgers(weights, plan, rows, {.micro_batches = micro, .gradients = true},
                                                   baseline<double>(weights).forward(rows), sent);
  CHECK_MESSAGE(ledger.equal, ledger.difference);
  if (!is_of(c, "G3")) return;
  // An evaluation goes its own way through a pipeline, and reports its own loss.
  const auto evaluated = run_plan<double>(weights, plan, micro, shares_of(rows, plan), {});
  differences e;
  e.compare("loss", std::vector{evaluated.loss}, std::vector{theirs.result.loss}, 1e-10);
  e.compare("token_loss", evaluated.token_loss, theirs.result.token_loss, 1e-10, real_tokens(rows));
  CHECK_MESSAGE(e.none(), e.text());
  ++worst.runs;
}

}  // namespace

TEST_CASE("every accepted case gives what the baseline gives") {
  num carried_out[4] = {};
  worst_of worst;
  for (const public_case& c : cases::all) {
    if (c.says == verdict::illegal) continue;
    const batch_rows rows = rows_of_case(c);
    expect_equal(c, c.padded_plan(), rows, worst);
    for (const std::string& text : more_plans(c)) {
      const parsed_plan more = parse_plan(text);
      REQUIRE(more.ok());
      expect_equal(c, more.plan, rows, worst);
    }
    ++carried_out[static_cast<int>(c.says)];
  }
  CHECK(carried_out[static_cast<int>(verdict::trap)] == 47);
  MESSAGE(carried_out[3], " traps, ", carried_out[2], " padded and ", carried_out[1], " legal cases in ", worst.runs,
          " runs; largest error ", worst.error);
}

TEST_CASE("labels of packed documents do not cross their borders under zigzag") {
  const public_case& c = cases::all[cases::index_of("PB013")];
  worst_of worst;
  for (const char* text : {"cp=4/ring/zigzag", "cp=4/ring/zigzag_documents", "cp=4/ring"}) {
    const batch_rows rows = make_packed(c.model, 2, {5, 8, 3});
    expect_equal(c, parse_plan(text).plan, rows, worst);
  }
}

TEST_CASE("what a case of checkpoints saves is what one rank would have") {
  const num steps_before = 1, steps_after = 1;
  adamw_options optimizer;
  optimizer.epsilon = 1e-3;  // gradients that cancel to rounding errors must not become steps
  num saved = 0;
  for (const public_case& c : cases::all) {
    if (!is_of(c, "C1")) continue;
    INFO(std::string(c.id));
    const checkpoint& weights = weights_of_case(c);
    const batch_rows rows = rows_of_case(c);
    reference_adamw their_optimizer;
    their_optimizer.epsilon = optimizer.epsilon;
    reference_training<double> theirs(reference_model<double>(weights), their_optimizer);
    for (num step = 0; step < steps_before + steps_after; ++step) theirs.step(as_reference(rows));

    const tests::temporary_directory directory;
    run_options first, second;
    first.optimizer = second.optimizer = optimizer;
    first.steps = steps_before, first.save = directory.path / "state";
    second.steps = steps_after, second.resume = directory.path / "state";
    run_plan<double>(weights, c.padded_plan(), c.batch.micro_batches, shares_of(rows, c.padded_plan()), first);
    const plan_spec alone;  // one rank
    const auto resumed = run_plan<double>(weights, alone, c.batch.micro_batches, shares_of(rows, alone), second);
    differences d;
    compare_gradients(d, resumed.parameters, by_name(theirs.model().weights()), 1e-10);
    CHECK_MESSAGE(d.none(), d.text());
    ++saved;
  }
  MESSAGE(saved, " cases");
  CHECK(saved == 6);
}

}  // namespace shardplan::runtime
