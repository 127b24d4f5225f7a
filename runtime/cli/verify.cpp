// SPDX-License-Identifier: Apache-2.0
// shardplan verify: executes a plan and compares every tensor with the one-rank baseline; and with it what another
// framework computed.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdlib>
#include <shardplan/plan_text.hpp>

#include "runtime/cli/plan_engine.hpp"
#include "runtime/verify/foreign.hpp"
#include "runtime/verify/inputs.hpp"
#include "runtime/verify/ledger_comparison.hpp"
#include "runtime/verify/report.hpp"

namespace shardplan::cli {
namespace {

using namespace runtime;

struct options {
  std::string checkpoint, inputs, against;
  plan_options plan;
  batch_options batch;
  training_options training;
  bool ledger = false;
  std::optional<double> tolerance;

  bool has_plan() const { return plan.given; }
};

double read_tolerance(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0 && value < 1))
    throw input_error(fmt::format("--tolerance: must be a number above 0 and below 1, not '{}'", text));
  return value;
}

/// Everything that one invocation is about.
struct task {
  const options& o;
  const common_options& common;
  plan_engine& engine;
  const checkpoint& weights;
  question q;
  batch_rows rows;
  std::optional<foreign_results> foreign;

  num micro() const { return micro_batches(q.plan, q.batch); }
  std::string_view type() const { return name_of(common.dtype.value_or(dtype::f64)); }
};

/// What was computed on what.
void describe(const task& t, outcome& out) {
  const num padded_to = padded(t.q), rows = t.rows.rows;
  const std::string from = t.o.inputs.empty() ? fmt::format("seed {}", t.common.seed) : "from " + t.o.inputs;
  out.document = {{"equal", false}, {"plan", nullptr},         {"world", nullptr},        {"dtype", t.type()},
                  {"rows", rows},   {"length", t.rows.length}, {"tensors", json::array()}};
  std::string cut;
  if (t.o.has_plan()) {
    const plan_spec& plan = t.q.plan;
    out.document["plan"] = print_plan(plan).view();
    out.document["world"] = world_size(plan);
    out.document["micro_batches"] = t.micro();
    if (padded_to != 0) out.document["padded"] = padded_to;
    out.text =
        fmt::format("plan      {}\nworld     {} {}\n", print_plan(plan).view(), world_size(plan), t.engine.ranks_are());
    cut = fmt::format("{}, {} micro-batch{}", padded_to != 0 ? fmt::format(" (padded to {})", padded_to) : "",
                      t.micro(), t.micro() == 1 ? "" : "es");
  }
  if (t.o.inputs.empty()) out.document["seed"] = t.common.seed;
  out.text +=
      fmt::format("inputs    {} {} of {} tokens{}, {}\n", rows, rows == 1 ? "row" : "rows", t.rows.length, cut, from);
  if (t.o.training.steps == 0) return;
  const adamw_options& a = t.o.training.optimizer;
  out.document["steps"] = t.o.training.steps;
  out.document["learning_rate"] = a.learning_rate;
  out.document["weight_decay"] = a.weight_decay;
  out.text += fmt::format("steps     {} of AdamW, learning rate {}, weight decay {}\n", t.o.training.steps,
                          a.learning_rate, a.weight_decay);
}

/// How many values of parameters are too close to rounding to be compared after steps.
template <class T>
std::pair<num, num> unsteady(const baseline_result<T>& expected) {
  std::pair<num, num> out{0, 0};
  for (const auto& [name, steady] : expected.steady) {
    out.first += std::count(steady.begin(), steady.end(), 0);
    out.second += static_cast<num>(steady.size());
  }
  return out;
}

/// Compares what the plan's ranks computed and sent; whether all was equal.
template <class Stored>
bool verify_plan(const task& t, const baseline_result<accumulated<Stored>>& expected, const replayed_choices& replay,
                 const plan_run<Stored>& run, bool gradients, outcome& out) {
  using T = accumulated<Stored>;
  const plan_spec& plan = t.q.plan;
  const training_options& training = t.o.training;
  comparison c = compare<T, Stored>(run.result, expected, real_tokens(t.rows), t.o.tolerance);
  set_shapes(c, t.weights.config().spec);

  out.document["tensors"] = to_json(c);
  if (!c.note.empty()) out.document["note"] = c.note;
  if (constexpr double margin = replay_margin<Stored>; margin > 0) {
    out.document["replayed"] = {{"margin", margin}, {"choices", replay.tokens}, {"of", replay.total}};
    out.text += fmt::format("replayed  {} of {} choices of experts, of which the margin is below {:.0e}\n",
                            replay.tokens, replay.total, margin);
  }
  out.text += "\n" + to_table(c);
  bool equal = c.equal;
  if (t.o.ledger) {
    const ledger_question sent{t.micro(), sizeof(Stored), gradients, training.steps};
    const ledger_comparison l = compare_ledgers(t.weights, plan, t.rows, sent, expected, run.ledgers);
    out.document["ledger"] = to_json(l);
    out.text += "\n" + to_text(l);
    equal = equal && l.equal;
  }
  out.text += fmt::format("\n{}: {} ranks {} what one rank computes ({})\n", c.equal ? "equal" : "NOT EQUAL",
                          world_size(plan), c.equal ? "compute" : "do not compute", t.type());
  return equal;
}

/// Compares what the file holds; whether all was equal.
template <class T>
bool verify_foreign(const task& t, const baseline_result<T>& expected, outcome& out) {
  constexpr double close_margin = 1e-4;  // below it, rounding in f32 may choose another expert
  const foreign_results& file = *t.foreign;
  const comparison c = compare_foreign(file, expected, t.rows, t.o.tolerance);
  const replayed_choices close = choices_to_replay(expected, close_margin);
  json document{{"file", file.file},
                {"equal", c.equal},
                {"tensors", to_json(c)},
                {"missing", file.missing},
                {"close_choices", close.tokens}};
  if (!c.note.empty()) document["note"] = c.note;
  out.document["against"] = std::move(document);
  out.text += "\n" + to_table(c);
  if (!file.missing.empty())
    out.text += fmt::format("the file has no {}{}\n", file.missing.front(),
                            file.missing.size() > 1 ? fmt::format(" and {} more", file.missing.size() - 1) : "");
  if (!c.equal && close.tokens > 0)
    out.text += fmt::format("{} of {} choices of experts have a margin below {:.0e}: rounding may have changed them\n",
                            close.tokens, close.total, close_margin);
  out.text += fmt::format("\n{}: {} {} what one rank computes ({})\n", c.equal ? "equal" : "NOT EQUAL", file.file,
                          c.equal ? "holds" : "does not hold", t.type());
  return c.equal;
}

template <class Stored>
outcome execute(const task& t) {
  using T = accumulated<Stored>;
  const training_options& training = t.o.training;
  baseline_options how;
  how.gradients = training.gradients || (t.foreign && t.foreign->gradients);
  how.parameters = training.steps > 0 || (t.foreign && t.foreign->parameters);
  how.steps = training.steps, how.optimizer = training.optimizer;
  std::vector<num> groups;
  if (t.o.has_plan()) groups = micro_batches_of_rows(t.q.plan, t.rows.rows, t.micro());
  baseline_result<T> expected;
  replayed_choices replay;
  t.engine.on_first([&] {
    expected = baseline<T>(t.weights, std::is_same_v<Stored, bf16>).compute(t.rows, std::move(groups), how);
    if (t.o.has_plan()) replay = choices_to_replay(expected, replay_margin<Stored>);
  });
  plan_run<Stored> run;
  if (t.o.has_plan()) {
    run_options what{how.gradients, training.steps, training.optimizer, {}, {}, false, {}};
    run = run_on_engine<Stored>(t.engine, t.weights, t.q.plan, t.rows,
                                {t.q.batch.micro_batches, t.common.timeout, replay.choices, std::move(what)});
  }

  outcome out;
  t.engine.on_first([&] {
    describe(t, out);
    if (training.steps > 0 && (t.foreign || std::is_same_v<T, float>)) {
      const auto [left_out, all] = unsteady(expected);
      out.document["parameters_left_out"] = left_out;
      out.text +=
          fmt::format("left out  {} of {} values of parameters, whose gradient is below {:.0e} of the largest\n",
                      left_out, all, steady_share);
    }
    bool equal = true;
    if (t.o.has_plan()) equal = verify_plan<Stored>(t, expected, replay, run, how.gradients, out) && equal;
    if (t.foreign) equal = verify_foreign(t, expected, out) && equal;
    out.document["equal"] = equal;
    out.exit_code = equal ? 0 : plan_error::exit_code;
  });
  return out;
}

void require_possible(const options& o) {
  if (!o.has_plan() && o.against.empty())
    throw input_error("--plan is required, unless a file is compared (--against)");
  if (!o.against.empty() && o.inputs.empty())
    throw input_error("--against: --inputs must say on which rows the file was computed");
  if (!o.has_plan() && o.ledger) throw input_error("--ledger: needs a --plan, whose ranks send something");
}

outcome verify(const options& o, const common_options& common, plan_engine& engine) {
  require_possible(o);
  question q;
  q.world = o.has_plan() ? world_of(engine, o.plan.world) : o.plan.world;
  if (o.has_plan()) q.plan = read_plan({o.plan.plan, q.world});
  const dtype type = plan_dtype(common);
  if (o.training.steps > 0) require_trained_in(type, "--steps");
  if (type == dtype::bf16 && !o.against.empty()) throw input_error("--against: files are compared in f64 or f32");
  require_engine(common);
  const checkpoint weights = checkpoint::open(o.checkpoint);
  q.model = weights.config().spec;
  q.batch = o.batch.batch;
  q.engine = engine.kind();
  batch_rows rows;
  if (!o.inputs.empty()) {
    rows = read_inputs(o.inputs, q.model);
    q.batch.rows = rows.rows;
    q.batch.length = rows.length;
  }
  // Sizes are made up for legal plans only, and then fit.
  if (const legality l = check_legality(q); !l.legal()) return refuse(l);
  if (o.has_plan())
    engine.require_carried(world_size(q.plan));  // before the baseline computes for ranks that cannot run
  if (o.inputs.empty()) {
    const random_sizes sizes{q.batch.length, q.batch.rows, q.batch.micro_batches, q.batch.documents};
    rows = random_rows(q.model, q.plan, sizes, static_cast<std::uint64_t>(common.seed));
    q.batch.rows = rows.rows;
    q.batch.length = rows.length;
  }
  agree_on_contents(engine, o.checkpoint, rows);
  task t{o, common, engine, weights, q, std::move(rows), {}};
  if (!o.against.empty()) t.foreign = foreign_results::read(o.against, weights.config(), t.rows);
  return with_type(type, [&]<class T>() { return execute<T>(t); });
}

}  // namespace

void add_verify(CLI::App& app, session& s) {
  const auto o = std::make_shared<options>();
  CLI::App& command = *app.add_subcommand("verify", "execute a plan and compare every tensor with the baseline");
  command.add_option("--checkpoint", o->checkpoint, "a directory with config.json and safetensors")
      ->required()
      ->check(not_empty, "", "")
      ->type_name("DIR");
  add_plan(command, o->plan, false);
  CLI::Option* inputs =
      command.add_option("--inputs", o->inputs, "safetensors with input_ids or inputs_embeds, labels and the like")
          ->check(not_empty, "", "")
          ->type_name("FILE");
  o->batch.add_sizes(command);
  for (const char* size : {"--seq", "--documents", "--batch"}) inputs->excludes(command.get_option(size));
  o->batch.add_micro_batches(command);
  command
      .add_option_function<std::string>(
          "--tolerance", [o](const std::string& text) { o->tolerance = read_tolerance(text); },
          "limit of the error, instead of that of the type")
      ->type_name("X");
  o->training.add_gradients(command, "also compare every gradient, and their norm");
  o->training.add_steps(command, "so many AdamW steps on the same rows; also compare every parameter after them");
  command.add_flag("--ledger", o->ledger, "also compare what every rank sends with what the plan predicts");
  command
      .add_option("--against", o->against,
                  "compare with the baseline what another framework computed: safetensors as run writes them")
      ->check(not_empty, "", "")
      ->type_name("FILE");
  add_common(command, s);
  command.callback([o, &s] { s.action = [o, &s] { return verify(*o, s.common, *s.engine); }; });
}

}  // namespace shardplan::cli
