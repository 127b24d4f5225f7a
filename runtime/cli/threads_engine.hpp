// SPDX-License-Identifier: Apache-2.0
// A plan carried out by threads of this process, in one call:
//
//   const checkpoint weights = checkpoint::open("tests/data/tiny");
//   const auto run = run_on_threads<double>(weights, "tp=2,cp=2/ring"_plan, rows);  // rows: a batch_rows
//   run.result.loss;           // as on one rank
//   run.ledgers[3].entries();  // what rank 3 sent
#ifndef SHARDPLAN_RUNTIME_CLI_THREADS_ENGINE_HPP
#define SHARDPLAN_RUNTIME_CLI_THREADS_ENGINE_HPP

#include "runtime/cli/run_plan.hpp"

namespace shardplan::runtime {

/// More threads than this are not started: they would only take turns.
inline constexpr num max_thread_ranks = 1024;

/// Throws engine_error when there are more ranks than that.
void require_carried_by_threads(num ranks);

using threads_options = plan_run_options;
template <class T>
using threads_run = plan_run<T>;

/// Runs the plan. T is float or double. Throws as require_legal; engine_error when the engine fails.
template <class T>
plan_run<T> run_on_threads(plan_task task);
template <class T>
plan_run<T> run_on_threads(const checkpoint& weights, const plan_spec& plan, const batch_rows& rows,
                           const plan_run_options& options = {}) {
  return run_on_threads<T>(plan_task{weights, plan, rows, options});
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CLI_THREADS_ENGINE_HPP
