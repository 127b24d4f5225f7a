// SPDX-License-Identifier: Apache-2.0
// What a command answers, and what it answers instead when it is left by an exception.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "runtime/cli/command.hpp"

namespace shardplan::cli {

outcome failure(int exit_code, std::string_view kind, const std::string& message) {
  outcome out;
  out.exit_code = exit_code;
  out.document = {{"error", {{"kind", kind}, {"message", message}}}};
  out.messages = fmt::format("shardplan: {}\n", message);
  return out;
}

outcome outcome_of(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const input_error& e) {
    return failure(input_error::exit_code, "input", e.what());
  } catch (const runtime::plan_error& e) {
    return failure(runtime::plan_error::exit_code, "plan", e.what());
  } catch (const engine_error& e) {
    return failure(engine_error::exit_code, "engine", e.what());
  } catch (const std::bad_alloc&) {
    return failure(input_error::exit_code, "input", "there is not enough memory for inputs of this size");
  } catch (const std::exception& e) {
    return failure(engine_error::exit_code, "internal", e.what());
  } catch (const runtime::run_aborted&) {
    outcome out = failure(engine_error::exit_code, "engine", "the run has failed on another rank");
    out.aborted = true;
    return out;
  }
}

int print(const outcome& out, bool as_json) {
  const std::string text = as_json ? out.document.dump(2, ' ', true, json::error_handler_t::replace) + "\n" : out.text;
  std::fwrite(out.messages.data(), 1, out.messages.size(), stderr);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return out.exit_code;
  std::fputs("shardplan: standard output cannot be written\n", stderr);
  return std::max(out.exit_code, input_error::exit_code);
}

}  // namespace shardplan::cli
