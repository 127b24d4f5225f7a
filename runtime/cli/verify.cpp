// SPDX-License-Identifier: Apache-2.0
// shardplan verify: executes a plan and compares every tensor with the one-rank baseline.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdlib>
#include <shardplan/plan_text.hpp>

#include "runtime/cli/command.hpp"
#include "runtime/cli/threads_engine.hpp"
#include "runtime/verify/inputs.hpp"
#include "runtime/verify/report.hpp"

namespace shardplan::cli {
namespace {

using namespace runtime;

struct options {
  std::string checkpoint, inputs;
  plan_options plan;
  batch_options batch;
  std::optional<double> tolerance;
};

double read_tolerance(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0 && value < 1))
    throw input_error(fmt::format("--tolerance: must be a number above 0 and below 1, not '{}'", text));
  return value;
}

template <class T>
outcome execute(const options& o, const common_options& common, const checkpoint& weights, const question& q,
                const batch_rows& rows) {
  const plan_spec& plan = q.plan;
  const num micro = micro_batches(plan, q.batch), padded_to = padded(q);
  const baseline_result<T> expected = baseline<T>(weights).forward(rows, micro_batches_of_rows(plan, rows.rows, micro));
  replayed_choices replay = choices_to_replay(expected, replay_margin<T>);
  const threads_run<T> run =
      run_on_threads<T>(weights, plan, rows, {q.batch.micro_batches, common.timeout, std::move(replay.choices)});
  const comparison c = compare(run.result, expected, real_tokens(rows), o.tolerance);

  const std::string_view type = name_of(common.dtype.value_or(dtype::f64));
  outcome out;
  out.exit_code = c.equal ? 0 : plan_error::exit_code;
  out.document = {
      {"equal", c.equal},  {"plan", print_plan(plan).view()}, {"world", world_size(plan)}, {"dtype", type},
      {"rows", rows.rows}, {"length", rows.length},           {"micro_batches", micro},    {"tensors", to_json(c)}};
  if (padded_to != 0) out.document["padded"] = padded_to;
  if (o.inputs.empty()) out.document["seed"] = common.seed;
  if (!c.note.empty()) out.document["note"] = c.note;
  out.text =
      fmt::format("plan      {}\nworld     {} threads\ninputs    {} {} of {} tokens{}, {} micro-batch{}, {}\n",
                  print_plan(plan).view(), world_size(plan), rows.rows, rows.rows == 1 ? "row" : "rows", rows.length,
                  padded_to != 0 ? fmt::format(" (padded to {})", padded_to) : "", micro, micro == 1 ? "" : "es",
                  o.inputs.empty() ? fmt::format("seed {}", common.seed) : "from " + o.inputs);
  if (replay_margin < T >> 0) {
    out.document["replayed"] = {{"margin", replay_margin<T>}, {"choices", replay.tokens}, {"of", replay.total}};
    out.text += fmt::format("replayed  {} of {} choices of experts, of which the margin is below {:.0e}\n",
                            replay.tokens, replay.total, replay_margin<T>);
  }
  out.text +=
      fmt::format("\n{}\n{}: {} ranks {} what one rank computes ({})\n", to_table(c), c.equal ? "equal" : "NOT EQUAL",
                  world_size(plan), c.equal ? "compute" : "do not compute", type);
  return out;
}

outcome verify(const options& o, const common_options& common) {
  question q;
  q.plan = read_plan(o.plan);
  const dtype type = cpu_dtype(common);
  require_engine(common);
  const checkpoint weights = checkpoint::open(o.checkpoint);
  q.model = weights.config().spec;
  q.batch = o.batch.batch;
  q.world = o.plan.world;
  q.engine = engine_kind::threads;
  batch_rows rows;
  if (!o.inputs.empty()) {
    rows = read_inputs(o.inputs, q.model);
    q.batch.rows = rows.rows;
    q.batch.length = rows.length;
  }
  // Sizes are made up for legal plans only, and then fit.
  if (const legality l = check_legality(q); !l.legal()) return refuse(l);
  if (o.inputs.empty()) {
    const random_sizes sizes{q.batch.length, q.batch.rows, q.batch.micro_batches, q.batch.documents};
    rows = random_rows(q.model, q.plan, sizes, static_cast<std::uint64_t>(common.seed));
    q.batch.rows = rows.rows;
    q.batch.length = rows.length;
  }
  return type == dtype::f32 ? execute<float>(o, common, weights, q, rows)
                            : execute<double>(o, common, weights, q, rows);
}

}  // namespace

void add_verify(CLI::App& app, session& s) {
  const auto o = std::make_shared<options>();
  CLI::App& command = *app.add_subcommand("verify", "execute a plan and compare every tensor with the baseline");
  command.add_option("--checkpoint", o->checkpoint, "a directory with config.json and safetensors")
      ->required()
      ->type_name("DIR");
  add_plan(command, o->plan);
  CLI::Option* inputs =
      command.add_option("--inputs", o->inputs, "safetensors with input_ids or inputs_embeds, labels and the like")
          ->type_name("FILE");
  o->batch.add_sizes(command);
  for (const char* size : {"--seq", "--documents", "--batch"}) inputs->excludes(command.get_option(size));
  o->batch.add_micro_batches(command);
  command
      .add_option_function<std::string>(
          "--tolerance", [o](const std::string& text) { o->tolerance = read_tolerance(text); },
          "limit of the error, instead of that of the type")
      ->type_name("X");
  add_common(command, s);
  command.callback([o, &s] { s.action = [o, &s] { return verify(*o, s.common); }; });
}

}  // namespace shardplan::cli
