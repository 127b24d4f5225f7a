// SPDX-License-Identifier: Apache-2.0
// One rank's part of carrying out a plan, on any communicator.
#ifndef SHARDPLAN_RUNTIME_CLI_RUN_RANK_HPP
#define SHARDPLAN_RUNTIME_CLI_RUN_RANK_HPP

#include "runtime/cli/run_plan.hpp"
#include "runtime/sharded/run.hpp"

namespace shardplan::runtime {

/// `on`: what this rank computes on.
/// pre: require_legal(task)
template <class T, Communicator C, Device D = cpu_device>
gathered_result<accumulated<T>> run_rank(C& comm, const plan_task& task, const D& on = {}) {
  const num each = task.rows.rows / num_data_shards(task.plan);
  const num micro_batches = task.options.micro_batches == 0 ? task.plan.pp : task.options.micro_batches;
  const auto load = [&](num rank) { return select_rows(task.rows, data_index(task.plan, rank) * each, each); };
  run_options how = task.options.run;
  how.replay = task.options.replay;
  return run_sharded<T>(comm, task.weights, task.plan, micro_batches, load, how, on);
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CLI_RUN_RANK_HPP
