// SPDX-License-Identifier: Apache-2.0
// What the commands have in common: the options that all take, what each gives back, and how both are read and said.
#ifndef SHARDPLAN_RUNTIME_CLI_COMMAND_HPP
#define SHARDPLAN_RUNTIME_CLI_COMMAND_HPP

#include <CLI/App.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <shardplan/check.hpp>
#include <string>

#include "runtime/checkpoint/model_config.hpp"
#include "runtime/error.hpp"
#include "runtime/real.hpp"
#include "runtime/sharded/results.hpp"

namespace shardplan::cli {

using runtime::engine_error;
using runtime::input_error;
using json = nlohmann::ordered_json;

enum class dtype : unsigned char { f64, f32, bf16 };
std::string_view name_of(dtype d);

/// Options of every command, also where they change nothing.
struct common_options {
  bool json = false;
  std::optional<engine_kind> engine;  ///< as given
  std::optional<cli::dtype> dtype;
  num seed = 0;
  std::chrono::milliseconds timeout{60000};
};

/// The answer of a command. Its text or, with --json, its document goes to standard output; messages to standard error.
struct outcome {
  int exit_code = 0;
  json document;
  std::string text;
  std::string messages;
  bool aborted = false;  ///< left because another process failed, which has more to say
};
outcome failure(int exit_code, std::string_view kind, const std::string& message);
/// The failure that an exception is.
outcome outcome_of(std::exception_ptr thrown);
/// Text and messages, or the document and messages; the exit status, worse when that cannot be written.
int print(const outcome& out, bool as_json);

class plan_engine;

/// What was asked on the command line; the command that was named sets `action`, which finds its engine here.
struct session {
  common_options common;
  std::unique_ptr<plan_engine> engine;
  std::function<outcome()> action;
};

// ---- the commands: each adds itself to the application

void add_check(CLI::App& app, session& s);
void add_explain(CLI::App& app, session& s);
void add_run(CLI::App& app, session& s);
void add_verify(CLI::App& app, session& s);
void add_sweep(CLI::App& app, session& s);
void add_init(CLI::App& app, session& s);

// ---- options

/// A whole number of plain digits in [least, most]; input_error naming option and value.
num whole_number(std::string_view option, std::string_view text, num least, num most);

/// A number in [least, most], or above `least` where it is `open`; input_error naming option and value.
double real_number(std::string_view option, const std::string& text, double least, double most, bool open);

CLI::Option* add_number(CLI::App& command, const std::string& name, num& value, const std::string& help, num least = 1,
                        num most = max_degree);
/// The options of `common_options`.
void add_common(CLI::App& command, session& s);

/// --plan P and --world N.
struct plan_options {
  std::string plan;  ///< empty is tp=1, as in C++
  num world = 0;
  bool given = false;
};
void add_plan(CLI::App& command, plan_options& o, bool required = true);

/// --gradients, and --steps N with --learning-rate X and --weight-decay X.
struct training_options {
  bool gradients = false;
  num steps = 0;
  runtime::adamw_options optimizer{};
  void add_gradients(CLI::App& command, const std::string& help);
  void add_steps(CLI::App& command, const std::string& help);
};

/// --seq N | --documents 5+7, --batch N, --micro-batches N; 0 where not given.
struct batch_options {
  batch_spec batch{};
  void add_sizes(CLI::App& command);
  void add_micro_batches(CLI::App& command);
};

// ---- what they name

/// The plan of the text. A degree `*` that the world does not make whole stays 1, so that the rule about the world is
/// broken. input_error for any other fault.
plan_spec read_plan(const plan_options& o);
/// A directory with config.json, or a published name; input_error when neither.
runtime::model_config read_model(const std::string& name);
/// For options that name a file: an unset shell variable must not read as "not given".
inline std::string not_empty(const std::string& text) { return text.empty() ? "must not be empty" : ""; }
/// engine_error when the engine that is named is not built in.
void require_engine(const common_options& o);
/// What plans are carried out in: f64 unless another is named; input_error for what the engine's ranks do not compute
/// in.
dtype plan_dtype(const common_options& o);
[[noreturn]] void refuse_bf16();
/// f of the type that is named, called as f.template operator()<T>().
template <class F>
outcome with_type(dtype d, F&& f) {
  switch (d) {
    case dtype::bf16:
      return f.template operator()<runtime::bf16>();
    case dtype::f32:
      return f.template operator()<float>();
    case dtype::f64:
      break;
  }
  return f.template operator()<double>();
}
/// input_error naming the option, which keeps parameters, where they are rounded to bf16.
void require_trained_in(dtype d, std::string_view option);

// ---- illegal plans

json to_json(const violation& v);
/// Name, sentence, numbers and fix on four lines.
std::string to_text(const violation& v);

struct legality {
  question asked;
  std::vector<violation> violations, advice;
  std::optional<plan_spec> nearest;  ///< of an illegal plan, where one was found

  bool legal() const { return violations.empty(); }
};
legality check_legality(const question& q);
/// "illegal: 2 rules are broken ..." with the nearest legal plan.
std::string illegal_text(const legality& l);
/// {"legal", "plan", "world", "violations", "nearest", "advice"}.
json legality_json(const legality& l);
/// How a command that would have run the plan refuses it.
outcome refuse(const legality& l);

}  // namespace shardplan::cli
#endif  // SHARDPLAN_RUNTIME_CLI_COMMAND_HPP
