// SPDX-License-Identifier: Apache-2.0
// The shardplan command. Exit status: 0 yes, 1 no, 2 bad usage or input, 3 the engine failed.
#include <fmt/format.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <shardplan/version.hpp>

#include "runtime/checkpoint/json_file.hpp"
#include "runtime/cli/command.hpp"

namespace shardplan::cli {
namespace {

constexpr int bad_input = input_error::exit_code;
constexpr int engine_failed = engine_error::exit_code;

outcome failure(int exit_code, std::string_view kind, const std::string& message) {
  outcome out;
  out.exit_code = exit_code;
  out.document = {{"error", {{"kind", kind}, {"message", message}}}};
  out.messages = fmt::format("shardplan: {}\n", message);
  return out;
}

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

outcome execute(int argc, const char* const* argv, session& s) {
  CLI::App app("Checks, explains, runs and verifies parallelism plans.", "shardplan");
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("shardplan {}.{}.{}", SHARDPLAN_VERSION_MAJOR, SHARDPLAN_VERSION_MINOR,
                                                SHARDPLAN_VERSION_PATCH));
  for (const auto add : {add_check, add_explain, add_run, add_verify, add_sweep, add_init}) add(app, s);
  try {
    require_known_command(app, argc, argv);
    app.parse(argc, argv);
    return s.action();
  } catch (const CLI::Success& e) {  // help, version
    outcome out;
    const CLI::App* asked = app.get_subcommands().empty() ? &app : app.get_subcommands().front();
    out.text = e.get_name() == "CallForVersion" ? std::string(e.what()) + "\n" : asked->help();
    out.document = {{"text", out.text}};
    return out;
  } catch (const CLI::ParseError& e) {
    return failure(bad_input, "usage", std::string(e.what()) + " (--help lists the options)");
  } catch (const input_error& e) {
    return failure(bad_input, "input", e.what());
  } catch (const runtime::plan_error& e) {
    return failure(runtime::plan_error::exit_code, "plan", e.what());
  } catch (const engine_error& e) {
    return failure(engine_failed, "engine", e.what());
  } catch (const std::bad_alloc&) {
    return failure(bad_input, "input", "there is not enough memory for inputs of this size");
  } catch (const std::exception& e) {
    return failure(engine_failed, "internal", e.what());
  }
}

}  // namespace
}  // namespace shardplan::cli

int main(int argc, char** argv) {
  using namespace shardplan::cli;
  session s;
  const outcome out = execute(argc, argv, s);
  // The flag counts even where the options could not be read.
  const bool as_json = s.common.json || std::count(argv, argv + argc, std::string_view("--json")) > 0;
  const std::string text = as_json ? out.document.dump(2, ' ', true, json::error_handler_t::replace) + "\n" : out.text;
  std::fwrite(out.messages.data(), 1, out.messages.size(), stderr);
  std::fwrite(text.data(), 1, text.size(), stdout);
  int exit_code = out.exit_code;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fputs("shardplan: standard output cannot be written\n", stderr);
    exit_code = std::max(exit_code, bad_input);
  }
  // A failed engine may have left threads behind that still use what an orderly end would destroy.
  if (exit_code == engine_failed) std::_Exit(exit_code);
  return exit_code;
}
