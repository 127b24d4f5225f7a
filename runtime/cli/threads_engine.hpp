// SPDX-License-Identifier: Apache-2.0
// A plan carried out by threads of this process, in one call:
//
//   const checkpoint weights = checkpoint::open("tests/data/tiny");
//   const auto run = run_on_threads<double>(weights, "tp=2,cp=2/ring"_plan, rows);  // rows: a batch_rows
//   run.result.loss;           // as on one rank
//   run.ledgers[3].entries();  // what rank 3 sent
#ifndef SHARDPLAN_RUNTIME_CLI_THREADS_ENGINE_HPP
#define SHARDPLAN_RUNTIME_CLI_THREADS_ENGINE_HPP

#include <chrono>
#include <shardplan/plan.hpp>
#include <vector>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/engine/recorder.hpp"
#include "runtime/sharded/results.hpp"

namespace shardplan::runtime {

/// More threads than this are not started: they would only take turns.
inline constexpr num max_thread_ranks = 1024;

/// Throws engine_error when the plan has more ranks than that.
void require_carried_by_threads(const plan_spec& plan);

struct threads_options {
  num micro_batches = 0;                     ///< 0: as many as pipeline stages' ranks
  std::chrono::milliseconds timeout{60000};  ///< of each single wait for another rank
  std::vector<expert_choices> replay{};      ///< by step
  run_options run{};                         ///< what else to compute; `replay` stands above
};

template <class T>
struct threads_run {
  gathered_result<T> result;
  std::vector<recorder> ledgers;  ///< by rank
};

/// Runs the plan on the rows of the global batch, each data shard on its share of them, in order. T is float or double.
/// Throws plan_error, naming every broken rule, when the plan is not legal for the model and the rows; input_error
/// when the rows do not fit the model; engine_error when the engine fails.
template <class T>
threads_run<T> run_on_threads(const checkpoint& weights, const plan_spec& plan, const batch_rows& rows,
                              const threads_options& options = {});

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CLI_THREADS_ENGINE_HPP
