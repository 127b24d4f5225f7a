// SPDX-License-Identifier: Apache-2.0
// A plan to carry out, and what comes of it, whatever the engine.
#ifndef SHARDPLAN_RUNTIME_CLI_RUN_PLAN_HPP
#define SHARDPLAN_RUNTIME_CLI_RUN_PLAN_HPP

#include <chrono>
#include <shardplan/plan.hpp>
#include <shardplan/question.hpp>
#include <vector>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/engine/recorder.hpp"
#include "runtime/real.hpp"
#include "runtime/sharded/results.hpp"

namespace shardplan::runtime {

struct plan_run_options {
  num micro_batches = 0;                     ///< 0: as many as pipeline stages' ranks
  std::chrono::milliseconds timeout{60000};  ///< of each single wait for another rank
  std::vector<expert_choices> replay{};      ///< by step
  run_options run{};                         ///< what else to compute; `replay` stands above
};

/// Rows of the global batch; each data shard runs on its share of them, in order.
struct plan_task {
  checkpoint weights;
  plan_spec plan;
  batch_rows rows;
  plan_run_options options;
};

/// T is what activations and parameters are stored in.
template <class T>
struct plan_run {
  gathered_result<accumulated<T>> result;
  std::vector<recorder> ledgers;  ///< by rank
};

/// Throws plan_error, naming every broken rule, when the plan is not legal for the model, the rows and the engine;
/// input_error when the rows do not fit the model.
void require_legal(const plan_task& task, engine_kind engine);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CLI_RUN_PLAN_HPP
