// SPDX-License-Identifier: Apache-2.0
// What a plan predicts to be sent, and what an engine recorded: line by line for every rank, and in totals.
#ifndef SHARDPLAN_RUNTIME_VERIFY_LEDGER_COMPARISON_HPP
#define SHARDPLAN_RUNTIME_VERIFY_LEDGER_COMPARISON_HPP

#include <nlohmann/json.hpp>
#include <shardplan/ledger.hpp>
#include <string>
#include <vector>

#include "runtime/engine/recorder.hpp"
#include "runtime/verify/baseline.hpp"

namespace shardplan::runtime {

struct ledger_sum {
  num calls = 0, bytes = 0;
  friend bool operator==(const ledger_sum&, const ledger_sum&) = default;
};

/// Of all ranks.
struct ledger_total {
  phase why{};
  operation what{};
  axis_set axes{};
  ledger_sum predicted, recorded;
};

struct ledger_comparison {
  bool equal = false;
  ledger_sum predicted, recorded;  ///< of all ranks
  std::vector<ledger_total> by_axes;
  std::string difference;        ///< the first line that differs of the first rank that differs
  bool first_pass_only = false;  ///< what later passes send depends on how they route, which nobody predicted
};

/// Of a run, beside model, plan and rows.
struct ledger_question {
  num micro_batches = 1, element_bytes = 8;
  bool gradients = false;
  num steps = 0;
};

/// The baseline's choices tell what expert dispatch sends in the first pass. Bytes of later passes are compared too,
/// unless they depend on the routing. What only collects results or checks inputs is no part of the plan.
template <class T>
ledger_comparison compare_ledgers(const checkpoint& weights, const plan_spec& plan, const batch_rows& rows,
                                  const ledger_question& how, const baseline_result<T>& expected,
                                  const std::vector<recorder>& recorded);

/// A line per phase, operation and axes, and a verdict.
std::string to_text(const ledger_comparison& c);
/// {"equal", "entries", "bytes", "by_axes", ...}, as documented in docs/command_line.md.
nlohmann::ordered_json to_json(const ledger_comparison& c);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_VERIFY_LEDGER_COMPARISON_HPP
