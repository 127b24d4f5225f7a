// SPDX-License-Identifier: Apache-2.0
// shardplan check: is the plan legal for the model and the batch?
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <shardplan/plan_text.hpp>

#include "runtime/cli/command.hpp"

namespace shardplan::cli {
namespace {

struct options {
  std::string model;
  plan_options plan;
  batch_options batch;
  num gpus_per_node = 0;
};

outcome check(const options& o, const common_options& common) {
  question q;
  q.plan = read_plan(o.plan);
  q.model = read_model(o.model).spec;
  q.batch = o.batch.batch;
  q.world = o.plan.world;
  q.engine = common.engine.value_or(engine_kind::none);
  q.gpus_per_node = o.gpus_per_node;
  const legality l = check_legality(q);

  outcome out;
  out.exit_code = l.legal() ? 0 : runtime::plan_error::exit_code;
  out.document = legality_json(l);
  out.text = fmt::format("plan    {}\nworld   {} ranks\n", print_plan(q.plan).view(), world_size(q.plan));
  if (!l.legal()) {
    out.text += illegal_text(l);
  } else if (const num length = padded(q); length != 0) {
    out.document["padded"] = length;
    out.text += fmt::format("padded  every row from {} to {} tokens\n", real_length(q.batch), length);
  }
  if (!l.advice.empty()) out.text += "advice\n";
  for (const violation& v : l.advice) out.text += to_text(v);
  if (l.legal()) out.text += "legal\n";
  return out;
}

}  // namespace

void add_check(CLI::App& app, session& s) {
  const auto o = std::make_shared<options>();
  CLI::App& command = *app.add_subcommand("check", "is a plan legal for a model; if not, why, and which plan is");
  command.add_option("--model", o->model, "a directory with a config.json, or a published name")
      ->required()
      ->type_name("M");
  add_plan(command, o->plan);
  o->batch.add_sizes(command);
  o->batch.add_micro_batches(command);
  add_number(command, "--gpus-per-node", o->gpus_per_node, "for advice about groups that cross nodes");
  add_common(command, s);
  command.callback([o, &s] { s.action = [o, &s] { return check(*o, s.common); }; });
}

}  // namespace shardplan::cli
