// SPDX-License-Identifier: Apache-2.0
// The shardplan command. Exit status: 0 yes, 1 no, 2 bad usage or input, 3 the engine failed.
#include <fmt/format.h>
#include <unistd.h>  // execv

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <shardplan/version.hpp>

#include "runtime/checkpoint/json_file.hpp"
#include "runtime/cli/plan_engine.hpp"

namespace shardplan::cli {
namespace {

/// The parser calls a word that is no command an unexpected argument, or says only that a command is missing.
void require_known_command(const CLI::App& app, int argc, const char* const* argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  if (word == "-h" || word == "--help" || word == "--version") return;
  std::string names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == word) return;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", command->get_name());
  }
  throw input_error(
      fmt::format("the first word must be a command, one of {}, not '{}'", names, runtime::excerpt_text(word)));
}

std::string version() {
  return fmt::format("{}.{}.{}", SHARDPLAN_VERSION_MAJOR, SHARDPLAN_VERSION_MINOR, SHARDPLAN_VERSION_PATCH);
}

/// The engine of processes that is asked for, also where the options cannot be read: then one of them says so for all.
engine_kind asked_engine(int argc, const char* const* argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  const std::string_view command = words.empty() ? "" : words[0];
  if (command != "run" && command != "verify" && command != "sweep") return engine_kind::threads;
  for (engine_kind e : {engine_kind::mpi, engine_kind::nccl})
    for (std::size_t i = 1; i < words.size(); ++i)
      if (words[i] == fmt::format("--engine={}", name_of(e)) || (words[i] == name_of(e) && words[i - 1] == "--engine"))
        return e;
  return engine_kind::threads;
}

/// Becomes the program that has that engine, where it is not part of this one. engine_error when it cannot be started.
void hand_over([[maybe_unused]] engine_kind engine, [[maybe_unused]] char** argv) {
#ifdef SHARDPLAN_NCCL_PROGRAM
  if (engine != engine_kind::nccl) return;
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / SHARDPLAN_NCCL_PROGRAM;
  execv(program.c_str(), argv);
  throw engine_error(fmt::format("--engine nccl: cannot start '{}': {}", program.string(), std::strerror(errno)));
#endif
}

/// What was given on the command line. Files are compared by what they hold, and where results go is one rank's affair.
std::vector<given_fact> given_options(const CLI::App& command) {
  std::vector<given_fact> out{{"the version", version()}, {"the command", command.get_name()}};
  for (const CLI::Option* o : command.get_options()) {
    const std::string name = o->get_name();
    if (o->count() == 0 || name == "--checkpoint" || name == "--inputs" || name == "--against" || name == "--output")
      continue;
    out.push_back({name, fmt::format("'{}'", fmt::join(o->results(), " "))});
  }
  return out;
}

/// The options are read; what they ask for is left to the session's action. Help, and options that cannot be read, are
/// an answer.
std::optional<outcome> read(CLI::App& app, int argc, const char* const* argv, session& s) {
  app.require_subcommand(1);
  for (const auto add : {add_check, add_explain, add_run, add_verify, add_sweep, add_init}) add(app, s);
  app.set_version_flag("--version", "shardplan " + version());
  for (CLI::App* command : app.get_subcommands(nullptr))
    command->set_version_flag("--version", "shardplan " + version());
  try {
    require_known_command(app, argc, argv);
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& e) {  // help, version
    outcome out;
    const std::string help =
        app.get_subcommands().empty() ? app.help() : app.get_subcommands().front()->help("shardplan");
    out.text = e.get_name() == "CallForVersion" ? std::string(e.what()) + "\n" : help;
    out.document = {{"text", out.text}};
    return out;
  } catch (const CLI::ParseError& e) {
    return failure(input_error::exit_code, "usage", std::string(e.what()) + " (--help lists the options)");
  } catch (...) {
    return outcome_of(std::current_exception());
  }
}

outcome execute(const CLI::App& app, session& s) {
  try {
    s.engine->agree(given_options(*app.get_subcommands().front()));
    return s.action();
  } catch (...) {
    return outcome_of(std::current_exception());
  }
}

}  // namespace
}  // namespace shardplan::cli

int main(int argc, char** argv) {
  using namespace shardplan::cli;
  session s;
  CLI::App app("Checks, explains, runs and verifies parallelism plans.", "shardplan");
  const std::optional<outcome> answer = read(app, argc, argv, s);
  // The flag counts even where the options could not be read.
  const bool as_json = s.common.json || std::count(argv, argv + argc, std::string_view("--json")) > 0;
  const printer print_all = [as_json](const outcome& out) { return print(out, as_json); };
  try {
    hand_over(asked_engine(argc, argv), argv);
    s.engine = make_engine(asked_engine(argc, argv), s.common.timeout, print_all);
  } catch (...) {  // there is no GPU, or not all ranks came: nobody is there to tell
    return print_all(answer ? *answer : outcome_of(std::current_exception()));
  }
  s.engine->end(answer ? *answer : execute(app, s));
}
