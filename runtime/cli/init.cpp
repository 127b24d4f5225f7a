// SPDX-License-Identifier: Apache-2.0
// shardplan init: writes a checkpoint of random weights.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <shardplan/parameters.hpp>

#include "runtime/checkpoint/init.hpp"
#include "runtime/cli/command.hpp"

namespace shardplan::cli {
namespace {

struct options {
  std::string model, output;
};

outcome init(const options& o, const common_options& common) {
  const runtime::model_config config = read_model(o.model);
  question q;
  q.model = config.spec;
  if (const legality l = check_legality(q); !l.legal()) return refuse(l);
  const dtype type = common.dtype.value_or(dtype::bf16);
  const runtime::tensor_dtype stored = type == dtype::f64   ? runtime::tensor_dtype::f64
                                       : type == dtype::f32 ? runtime::tensor_dtype::f32
                                                            : runtime::tensor_dtype::bf16;
  runtime::write_random_checkpoint(o.output, config, static_cast<std::uint64_t>(common.seed), stored);

  const num parameters = num_parameters(config.spec);
  outcome out;
  out.document = {{"output", o.output}, {"parameters", parameters}, {"dtype", name_of(type)}, {"seed", common.seed}};
  out.text = fmt::format("{}: {} parameters, {}, seed {}\n", o.output, parameters, name_of(type), common.seed);
  return out;
}

}  // namespace

void add_init(CLI::App& app, session& s) {
  const auto o = std::make_shared<options>();
  CLI::App& command = *app.add_subcommand("init", "write a checkpoint of random weights (bf16 unless --dtype says so)");
  command.add_option("--model", o->model, "a directory with a config.json, or a published name")
      ->required()
      ->type_name("M");
  command.add_option("--output", o->output, "directory to write, new or empty")
      ->required()
      ->check(not_empty, "", "")
      ->type_name("DIR");
  add_common(command, s);
  command.callback([o, &s] { s.action = [o, &s] { return init(*o, s.common); }; });
}

}  // namespace shardplan::cli
