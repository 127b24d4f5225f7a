// SPDX-License-Identifier: Apache-2.0
// shardplan explain: what a plan means, for the whole world or for one rank.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <shardplan/mesh.hpp>
#include <shardplan/parameters.hpp>
#include <shardplan/plan_text.hpp>

#include "runtime/cli/explanation.hpp"

namespace shardplan::cli {
namespace {

constexpr num not_given = -1;
constexpr num usual_length = 4096;

struct options {
  std::string model;
  plan_options plan;
  batch_options batch;
  num rank = not_given;
};

/// Length and rows, where they were not said: one row per micro-batch and data shard.
void complete(question& q) {
  if (q.batch.documents.empty() && q.batch.length == 0) q.batch.length = usual_length;
  if (q.batch.rows == 0) q.batch.rows = checked_product(num_data_shards(q.plan), micro_batches(q.plan, q.batch));
}

outcome explain(const options& o, const common_options& common) {
  question q;
  q.plan = read_plan(o.plan);
  q.model = read_model(o.model).spec;
  q.batch = o.batch.batch;
  q.world = o.plan.world;
  q.engine = common.engine.value_or(engine_kind::none);
  if (const legality l = check_legality(q); !l.legal()) return refuse(l);
  complete(q);
  if (const legality l = check_legality(q); !l.legal()) return refuse(l);

  const num world = world_size(q.plan), rank = o.rank == not_given ? 0 : o.rank;
  if (rank >= world)
    throw input_error(
        fmt::format("--rank: must be from 0 to {}, for a plan of {} ranks, not {}", world - 1, world, rank));
  const dtype type = common.dtype.value_or(dtype::bf16);

  outcome out;
  out.document = {{"legal", true},
                  {"plan", print_plan(q.plan).view()},
                  {"world", world},
                  {"data_shards", num_data_shards(q.plan)},
                  {"parameters_of_the_model", num_parameters(q.model)}};
  out.text = fmt::format("plan    {}\nworld   {} ranks, {} data shards\nmodel   {} parameters\n\n",
                         print_plan(q.plan).view(), world, num_data_shards(q.plan), num_parameters(q.model));
  const auto add = [&](const char* name, section s) {
    out.document[name] = std::move(s.document);
    out.text += s.text + "\n";
  };
  add("meshes", explain_meshes(q.plan));
  add("stages", explain_stages(q.model, q.plan));
  add("tokens", explain_tokens(q.plan, q.batch));
  if (o.rank != not_given) {
    add("place", explain_rank(q.model, q.plan, rank));
    add("parameters", explain_parameters(q.model, q.plan, rank));
  }
  // Cuts are uneven at their end, so the first rank of every pipeline stage has the most.
  if (o.rank != not_given) {
    add("memory", explain_memory(q.model, q.plan, rank, type));
  } else {
    out.document["memory"] = json::array();
    for (num pp = 0; pp < q.plan.pp; ++pp) {
      section s = explain_memory(q.model, q.plan, pp * dense_mesh(q.plan).stride(axis::pp), type);
      out.document["memory"].push_back(std::move(s.document));
      out.text += s.text + "\n";
    }
  }
  add("collectives", explain_collectives(q, rank, type));
  out.text.pop_back();
  return out;
}

}  // namespace

void add_explain(CLI::App& app, session& s) {
  const auto o = std::make_shared<options>();
  CLI::App& command = *app.add_subcommand(
      "explain", "groups, layouts, owned regions, memory and communication (in bf16 unless --dtype says so)");
  command.add_option("--model", o->model, "a directory with a config.json, or a published name")
      ->required()
      ->type_name("M");
  add_plan(command, o->plan);
  add_number(command, "--rank", o->rank, "explain this rank in detail", 0)->type_name("R");
  o->batch.add_sizes(command);
  o->batch.add_micro_batches(command);
  add_common(command, s);
  command.callback([o, &s] { s.action = [o, &s] { return explain(*o, s.common); }; });
}

}  // namespace shardplan::cli
