// SPDX-License-Identifier: Apache-2.0
// shardplan run: executes a plan on given inputs and writes what it computes.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <shardplan/plan_text.hpp>

#include "runtime/checkpoint/atomic_file.hpp"
#include "runtime/checkpoint/safetensors_writer.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/cli/threads_engine.hpp"
#include "runtime/verify/inputs.hpp"

namespace shardplan::cli {
namespace {

using namespace runtime;

struct options {
  std::string checkpoint, inputs, output;
  plan_options plan;
  batch_options batch;
};

/// Nothing is computed that could not be written.
void require_writable(const std::string& path) { const atomic_file not_committed(path); }

template <class T>
outcome execute(const options& o, const common_options& common, const checkpoint& weights, const plan_spec& plan,
                const batch_rows& rows) {
  threads_run<T> run = run_on_threads<T>(weights, plan, rows, {o.batch.batch.micro_batches, common.timeout, {}});
  gathered_result<T>& r = run.result;
  const tensor_dtype type = std::is_same_v<T, double> ? tensor_dtype::f64 : tensor_dtype::f32;
  safetensors_writer writer;
  writer.add("logits", type, {r.rows, r.length, r.vocab}, std::move(r.logits));
  writer.add("token_loss", type, {r.rows, r.length}, std::move(r.token_loss));
  writer.add("loss", type, {}, std::vector<double>{r.loss});
  writer.write(o.output);

  outcome out;
  out.document = {{"plan", print_plan(plan).view()},
                  {"world", world_size(plan)},
                  {"output", o.output},
                  {"dtype", name_of(common.dtype.value_or(dtype::f64))},
                  {"rows", r.rows},
                  {"length", r.length},
                  {"loss", r.loss},
                  {"num_items", r.num_items},
                  {"tensors", {"logits", "token_loss", "loss"}}};
  out.text = fmt::format("plan    {}\nworld   {} threads\nloss    {:.9g} over {} labels\noutput  {}\n",
                         print_plan(plan).view(), world_size(plan), r.loss, r.num_items, o.output);
  return out;
}

outcome run(const options& o, const common_options& common) {
  const plan_spec plan = read_plan(o.plan);
  const dtype type = cpu_dtype(common);
  require_engine(common);
  const checkpoint weights = checkpoint::open(o.checkpoint);
  const batch_rows rows = read_inputs(o.inputs, weights.config().spec);
  question q{weights.config().spec, plan, o.batch.batch, o.plan.world, engine_kind::threads, 0};
  q.batch.rows = rows.rows;
  q.batch.length = rows.length;
  if (const legality l = check_legality(q); !l.legal()) return refuse(l);
  require_writable(o.output);
  return type == dtype::f32 ? execute<float>(o, common, weights, plan, rows)
                            : execute<double>(o, common, weights, plan, rows);
}

}  // namespace

void add_run(CLI::App& app, session& s) {
  const auto o = std::make_shared<options>();
  CLI::App& command = *app.add_subcommand("run", "execute a plan on given inputs and write the gathered results");
  command.add_option("--checkpoint", o->checkpoint, "a directory with config.json and safetensors")
      ->required()
      ->type_name("DIR");
  add_plan(command, o->plan);
  command.add_option("--inputs", o->inputs, "safetensors with input_ids or inputs_embeds, and labels and the like")
      ->required()
      ->type_name("FILE");
  command.add_option("--output", o->output, "safetensors to write: logits, token_loss, loss")
      ->required()
      ->type_name("FILE");
  o->batch.add_micro_batches(command);
  add_common(command, s);
  command.callback([o, &s] { s.action = [o, &s] { return run(*o, s.common); }; });
}

}  // namespace shardplan::cli
