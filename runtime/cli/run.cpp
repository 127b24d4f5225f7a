// SPDX-License-Identifier: Apache-2.0
// shardplan run: executes a plan on given inputs and writes what it computes.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <filesystem>
#include <shardplan/plan_text.hpp>

#include "runtime/checkpoint/atomic_directory.hpp"
#include "runtime/checkpoint/atomic_file.hpp"
#include "runtime/checkpoint/safetensors_writer.hpp"
#include "runtime/checkpoint/sharded_state.hpp"
#include "runtime/checkpoint/write_checkpoint.hpp"
#include "runtime/cli/plan_engine.hpp"
#include "runtime/verify/compare.hpp"
#include "runtime/verify/inputs.hpp"

namespace shardplan::cli {
namespace {

using namespace runtime;

struct options {
  std::string checkpoint, inputs, output;
  plan_options plan;
  batch_options batch;
  training_options training;
  std::string save, resume, save_checkpoint;
};

/// Results take neither the place of what they are computed from, nor that of each other.
void require_places_apart(const options& o) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::equivalent(o.inputs, o.output, ignored))
    throw input_error(fmt::format("--output: '{}' is the file of --inputs, which would be lost", o.output));
  // Not every file there: results may lie beside a checkpoint, and be written again.
  const auto is_read = [](const std::string& file) {
    return file == "config.json" || file == "latest" || file.starts_with("model");
  };
  for (const auto& [name, directory] : {std::pair("--checkpoint", o.checkpoint), std::pair("--resume", o.resume)})
    for (const fs::directory_entry& file : fs::directory_iterator(directory, ignored))
      if (is_read(file.path().filename().string()) && fs::equivalent(file.path(), o.output, ignored))
        throw input_error(fmt::format("--output: '{}' is a file of {}, which would be lost", o.output, name));
  const auto place = [](const std::string& directory) { return fs::weakly_canonical(fs::absolute(directory) / ""); };
  if (!o.save.empty() && !o.save_checkpoint.empty() && place(o.save) == place(o.save_checkpoint))
    throw input_error(fmt::format("--save-checkpoint: '{}' is the directory of --save", o.save_checkpoint));
}

/// Nothing is computed that could not be written.
void require_writable(const options& o) {
  const atomic_file not_committed(o.output);
  if (!o.save_checkpoint.empty()) const atomic_directory neither(o.save_checkpoint);
}

/// Whoever uses results would not notice what one bad weight makes of them. Throws plan_error naming the first.
template <class T>
void require_finite(const gathered_result<T>& r) {
  const auto require = [](const std::string& name, const auto& values) {
    if (const std::string what = not_finite(std::span(values)); !what.empty())
      throw plan_error(fmt::format("{}: {}; nothing is written", name, what));
  };
  require("logits", r.logits);
  require("token_loss", r.token_loss);
  require("loss", std::vector{r.loss});
  require("step_losses", r.step_losses);
  for (const auto& [name, values] : r.gradients) require("grad." + name, values);
  for (const auto& [name, values] : r.parameters) require("parameter." + name, values);
}

/// PREFIX.NAME for each parameter; their names.
template <class T>
json add_parameters(safetensors_writer& writer, const std::string& prefix, tensor_dtype type, const model_spec& model,
                    std::map<std::string, std::vector<T>>& values) {
  json names = json::array();
  for (const auto& [name, shape] : parameter_shapes(model))
    if (const auto found = values.find(name); found != values.end()) {
      writer.add(prefix + name, type, shape, std::move(found->second));
      names.push_back(prefix + name);
    }
  return names;
}

/// Writes the results, and says what they are.
template <class T>
outcome write_results(const options& o, const common_options& common, const plan_engine& engine,
                      const checkpoint& weights, const plan_spec& plan, gathered_result<T>& r) {
  const training_options& training = o.training;
  require_finite(r);
  const tensor_dtype type = std::is_same_v<T, double> ? tensor_dtype::f64 : tensor_dtype::f32;
  const model_spec& model = weights.config().spec;
  if (!o.save_checkpoint.empty()) {
    // What no step has changed is still exactly what the files hold, in the types of the files.
    const bool stepped = training.steps > 0 || (!o.resume.empty() && sharded_state::open(o.resume).step() > 0);
    write_checkpoint(o.save_checkpoint, weights, r.parameters, stepped ? std::optional(type) : std::nullopt);
  }
  safetensors_writer writer;
  json names{"logits", "token_loss", "loss"};
  writer.add("logits", type, {r.rows, r.length, r.vocab}, std::move(r.logits));
  writer.add("token_loss", type, {r.rows, r.length}, std::move(r.token_loss));
  writer.add("loss", type, {}, std::vector<double>{r.loss});
  for (json& name : add_parameters(writer, "grad.", type, model, r.gradients)) names.push_back(std::move(name));
  if (training.steps > 0)
    for (json& name : add_parameters(writer, "parameter.", type, model, r.parameters)) names.push_back(std::move(name));
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
                  {"tensors", names}};
  out.text = fmt::format("plan    {}\nworld   {} {}\nloss    {:.9g} over {} labels\noutput  {}\n",
                         print_plan(plan).view(), world_size(plan), engine.ranks_are(), r.loss, r.num_items, o.output);
  if (weights.config().output_router_logits) {
    out.document["balance_loss"] = r.balance_loss;
    out.text += fmt::format("balance {:.9g}, the load-balancing loss of the routers\n", r.balance_loss);
  }
  if (training.gradients || training.steps > 0) {
    out.document["gradient_norm"] = r.gradient_norm;
    out.text += fmt::format("norm    {:.9g}, of all gradients\n", r.gradient_norm);
  }
  if (training.steps > 0) {
    out.document["step_losses"] = r.step_losses;
    out.text += fmt::format("steps   {}, with losses {:.9g}\n", training.steps, fmt::join(r.step_losses, " "));
  }
  if (!o.save.empty()) {
    out.document["saved"] = o.save;
    out.text += fmt::format("saved   {}\n", o.save);
  }
  if (!o.save_checkpoint.empty()) {
    out.document["saved_checkpoint"] = o.save_checkpoint;
    out.text += fmt::format("saved   {}, a checkpoint\n", o.save_checkpoint);
  }
  return out;
}

template <class T>
outcome execute(const options& o, const common_options& common, plan_engine& engine, const checkpoint& weights,
                const plan_spec& plan, const batch_rows& rows) {
  run_options how{
      o.training.gradients, o.training.steps, o.training.optimizer, o.resume, o.save, !o.save_checkpoint.empty(), {}};
  plan_run<T> run =
      run_on_engine<T>(engine, weights, plan, rows, {o.batch.batch.micro_batches, common.timeout, {}, std::move(how)});
  outcome out;
  engine.on_first([&] { out = write_results(o, common, engine, weights, plan, run.result); });
  return out;
}

outcome run(const options& o, const common_options& common, plan_engine& engine) {
  const num world = world_of(engine, o.plan.world);
  const plan_spec plan = read_plan({o.plan.plan, world});
  const dtype type = plan_dtype(common);
  for (const auto& [name, asked] :
       {std::pair("--steps", o.training.steps > 0), std::pair("--save", !o.save.empty()),
        std::pair("--save-checkpoint", !o.save_checkpoint.empty()), std::pair("--resume", !o.resume.empty())})
    if (asked) require_trained_in(type, name);
  require_engine(common);
  const checkpoint weights = checkpoint::open(o.checkpoint);
  const batch_rows rows = read_inputs(o.inputs, weights.config().spec);
  agree_on_contents(engine, o.checkpoint, rows);
  question q{weights.config().spec, plan, o.batch.batch, world, engine.kind(), 0};
  q.batch.rows = rows.rows;
  q.batch.length = rows.length;
  if (const legality l = check_legality(q); !l.legal()) return refuse(l);
  engine.require_carried(world_size(plan));
  if (o.training.steps > 0 && count_targets(rows) == 0)
    throw input_error(fmt::format("--steps: '{}' has no label to learn from", o.inputs));
  engine.on_first([&] {
    require_places_apart(o);
    require_writable(o);
  });
  if (!o.resume.empty()) sharded_state::open(o.resume);  // what is missing or broken is said before ranks start
  return with_type(type, [&]<class T>() { return execute<T>(o, common, engine, weights, plan, rows); });
}

}  // namespace

void add_run(CLI::App& app, session& s) {
  const auto o = std::make_shared<options>();
  CLI::App& command = *app.add_subcommand("run", "execute a plan on given inputs and write the gathered results");
  command.add_option("--checkpoint", o->checkpoint, "a directory with config.json and safetensors")
      ->required()
      ->check(not_empty, "", "")
      ->type_name("DIR");
  add_plan(command, o->plan);
  command.add_option("--inputs", o->inputs, "safetensors with input_ids or inputs_embeds, and labels and the like")
      ->required()
      ->check(not_empty, "", "")
      ->type_name("FILE");
  command.add_option("--output", o->output, "safetensors to write: logits, token_loss, loss and what else is asked")
      ->required()
      ->check(not_empty, "", "")
      ->type_name("FILE");
  o->batch.add_micro_batches(command);
  o->training.add_gradients(command, "also write grad.NAME of every parameter");
  o->training.add_steps(command, "so many AdamW steps on the same rows; also write parameter.NAME after them");
  command.add_option("--save", o->save, "write the state of the training, sharded, below this directory")
      ->check(not_empty, "", "")
      ->type_name("DIR");
  command
      .add_option("--save-checkpoint", o->save_checkpoint,
                  "write the parameters as a new directory like that of --checkpoint")
      ->check(not_empty, "", "")
      ->type_name("DIR");
  command.add_option("--resume", o->resume, "begin with the newest state below this directory, whatever plan wrote it")
      ->check(not_empty, "", "")
      ->type_name("DIR");
  add_common(command, s);
  command.callback([o, &s] { s.action = [o, &s] { return run(*o, s.common, *s.engine); }; });
}

}  // namespace shardplan::cli
