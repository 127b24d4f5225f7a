// SPDX-License-Identifier: Apache-2.0
// For tests of what verification is made of: the checkpoint they use, what is said when something is refused.
#ifndef SHARDPLAN_TESTS_UNIT_VERIFY_HELPERS_HPP
#define SHARDPLAN_TESTS_UNIT_VERIFY_HELPERS_HPP

#include <doctest/doctest.h>
#include <stdlib.h>  // mkdtemp

#include <algorithm>
#include <filesystem>
#include <limits>
#include <shardplan/plan_text.hpp>
#include <string>

#include "runtime/checkpoint/safetensors_writer.hpp"
#include "runtime/cli/threads_engine.hpp"
#include "runtime/error.hpp"
#include "runtime/verify/foreign.hpp"
#include "runtime/verify/inputs.hpp"
#include "runtime/verify/ledger_comparison.hpp"
#include "runtime/verify/report.hpp"

namespace verify_test {

using namespace shardplan;
using namespace shardplan::literals;
using namespace shardplan::runtime;

inline const std::filesystem::path data = SHARDPLAN_TEST_DATA;

inline const checkpoint& tiny() {
  static const checkpoint opened = checkpoint::open(data / "tiny");
  return opened;
}
inline const model_spec& tiny_model() { return tiny().config().spec; }

struct temporary_directory {
  std::filesystem::path path;
  temporary_directory() {
    std::string name = (std::filesystem::temp_directory_path() / "shardplan_verify_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path = name;
  }
  ~temporary_directory() { std::filesystem::remove_all(path); }
};

/// What an input_error says; empty when there was none.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const input_error& e) {
    return e.what();
  }
  return "";
}

inline bool says(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (text.find(word) == std::string::npos) {
      MESSAGE("'" << text << "' does not say '" << word << "'");
      return false;
    }
  return true;
}

template <class T>
comparison run_and_compare(const char* plan, const batch_rows& ours, const batch_rows& theirs) {
  const baseline_result<T> expected = baseline<T>(tiny()).forward(theirs);
  const threads_run<T> run = run_on_threads<T>(tiny(), parse_plan(plan).plan, ours);
  return compare(run.result, expected, real_tokens(theirs));
}

}  // namespace verify_test
#endif  // SHARDPLAN_TESTS_UNIT_VERIFY_HELPERS_HPP
