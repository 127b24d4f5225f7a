// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <shardplan/models.hpp>
#include <shardplan/plan_parse.hpp>

#include "runtime/checkpoint/json_file.hpp"
#include "runtime/cli/command.hpp"
#include "runtime/cli/plan_engine.hpp"

namespace shardplan::cli {
namespace {

using runtime::excerpt_text;

[[noreturn]] void refuse_value(std::string_view option, std::string_view text, std::string_view must) {
  throw input_error(fmt::format("{}: must be {}, not '{}'", option, must, excerpt_text(std::string(text))));
}

/// An option whose text `read` takes.
CLI::Option* add_text(CLI::App& command, const std::string& name, std::function<void(const std::string&)> read,
                      const std::string& help, const std::string& type) {
  return command.add_option_function<std::string>(name, std::move(read), help)->type_name(type);
}

engine_kind read_engine(const std::string& text) {
  for (engine_kind e : {engine_kind::threads, engine_kind::mpi, engine_kind::nccl})
    if (name_of(e) == text) return e;
  refuse_value("--engine", text, "threads, mpi or nccl");
}

dtype read_dtype(const std::string& text) {
  for (dtype d : {dtype::f64, dtype::f32, dtype::bf16})
    if (name_of(d) == text) return d;
  refuse_value("--dtype", text, "f64, f32 or bf16");
}

std::chrono::milliseconds read_timeout(const std::string& text) {
  constexpr double longest = 2147483;  // its milliseconds are an int
  const double seconds = real_number("--timeout", text, 0, longest, true);
  return std::chrono::milliseconds(static_cast<num>(std::ceil(seconds * 1000)));
}

document_lengths read_documents(const std::string& text) {
  document_lengths out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    if (out.full()) refuse_value("--documents", text, fmt::format("at most {} lengths", document_lengths::capacity()));
    out.push_back(whole_number("--documents", std::string_view(text).substr(begin, end - begin), 1, max_degree));
    begin = end + 1;
  }
  return out;
}

}  // namespace

std::string_view name_of(dtype d) {
  constexpr std::string_view names[] = {"f64", "f32", "bf16"};
  return names[static_cast<std::size_t>(d)];
}

num whole_number(std::string_view option, std::string_view text, num least, num most) {
  num value = 0;
  bool good = !text.empty();
  for (char c : text) {
    good = good && c >= '0' && c <= '9' && value <= (INT64_MAX - 9) / 10;
    if (good) value = value * 10 + (c - '0');
  }
  if (!good || value < least || value > most)
    refuse_value(option, text, fmt::format("a whole number from {} to {}", least, most));
  return value;
}

double real_number(std::string_view option, const std::string& text, double least, double most, bool open) {
  char* end = nullptr;
  const double value =
      text.empty() || !std::isdigit(static_cast<unsigned char>(text[0])) ? -1 : std::strtod(text.c_str(), &end);
  if (end == nullptr || *end != '\0' || !(open ? value > least : value >= least) || !(value <= most))
    refuse_value(option, text, fmt::format("a number {} {} and up to {}", open ? "above" : "of at least", least, most));
  return value;
}

CLI::Option* add_number(CLI::App& command, const std::string& name, num& value, const std::string& help, num least,
                        num most) {
  const auto read = [name, &value, least, most](const std::string& text) {
    value = whole_number(name, text, least, most);
  };
  return add_text(command, name, read, help, "N");
}

void add_common(CLI::App& command, session& s) {
  common_options& o = s.common;
  add_text(
      command, "--engine", [&](const std::string& text) { o.engine = read_engine(text); },
      "what carries the plan out: threads (the default), mpi or nccl", "E");
  add_text(
      command, "--dtype", [&](const std::string& text) { o.dtype = read_dtype(text); },
      "type to compute in: f64 (the default), f32 or bf16", "T");
  command.add_flag("--json", o.json, "one JSON document on standard output, and nothing else");
  add_number(command, "--seed", o.seed, "of random inputs and weights (default 0)", 0, INT64_MAX / 10 - 1);
  add_text(
      command, "--timeout", [&](const std::string& text) { o.timeout = read_timeout(text); },
      "seconds that a rank may wait for another (default 60)", "S");
}

void add_plan(CLI::App& command, plan_options& o, bool required) {
  const auto read = [&o](const std::string& text) {
    o.plan = text;
    o.given = true;
  };
  add_text(command, "--plan", read, "the plan, such as pp=2,cp=2/ring/zigzag,tp=2/sp", "P")->required(required);
  add_number(command, "--world", o.world, "how many ranks there are; a degree * of the plan follows from it");
}

void batch_options::add_sizes(CLI::App& command) {
  CLI::Option* seq = add_number(command, "--seq", batch.length, "tokens of a row");
  add_text(
      command, "--documents", [this](const std::string& text) { batch.documents = read_documents(text); },
      "lengths of the documents packed in every row, such as 5+7", "A+B+...")
      ->excludes(seq);
  add_number(command, "--batch", batch.rows, "rows of the global batch");
}

void batch_options::add_micro_batches(CLI::App& command) {
  add_number(command, "--micro-batches", batch.micro_batches, "micro-batches (default: pp)");
}

void training_options::add_gradients(CLI::App& command, const std::string& help) {
  command.add_flag("--gradients", gradients, help);
}

void training_options::add_steps(CLI::App& command, const std::string& help) {
  CLI::Option* count = add_number(command, "--steps", steps, help);
  add_text(
      command, "--learning-rate",
      [this](const std::string& text) { optimizer.learning_rate = real_number("--learning-rate", text, 0, 1, true); },
      fmt::format("of the steps (default {})", optimizer.learning_rate), "X")
      ->needs(count);
  add_text(
      command, "--weight-decay",
      [this](const std::string& text) { optimizer.weight_decay = real_number("--weight-decay", text, 0, 1, false); },
      fmt::format("of every parameter (default {})", optimizer.weight_decay), "X")
      ->needs(count);
}

plan_spec read_plan(const plan_options& o) {
  const parsed_plan parsed = parse_plan(o.plan, o.world);
  if (!parsed.ok() && parsed.problem != plan_problem::star_is_not_whole)
    throw input_error(fmt::format("--plan: {} (at character {} of '{}')", parsed.message.view(), parsed.position + 1,
                                  excerpt_text(o.plan)));
  return parsed.plan;
}

runtime::model_config read_model(const std::string& name) {
  std::error_code ignored;
  if (std::filesystem::is_directory(name, ignored)) return runtime::read_config(name);
  if (const models::published_model* found = models::find(name)) return runtime::config_of(*found);
  std::string names;
  for (const models::published_model& m : models::published)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", m.name);
  throw input_error(fmt::format("--model: '{}' is neither a directory with a config.json nor a published model ({})",
                                excerpt_text(name), names));
}

void require_engine(const common_options& o) {
  const engine_kind e = o.engine.value_or(engine_kind::threads);
  if (!is_built(e))
    throw engine_error(fmt::format("the engine {} is not built into this command; use --engine threads", name_of(e)));
}

dtype plan_dtype(const common_options& o) {
  const dtype d = o.dtype.value_or(dtype::f64);
  if (d == dtype::bf16 && o.engine != engine_kind::nccl) refuse_bf16();
  return d;
}

void require_trained_in(dtype d, std::string_view option) {
  if (d == dtype::bf16)
    throw input_error(
        fmt::format("{}: parameters in bf16 have no digits for what a step changes; use --dtype f32 or f64", option));
}

void refuse_bf16() { throw input_error("--dtype: bf16 needs --engine nccl; on the CPU use f64 or f32"); }

}  // namespace shardplan::cli
