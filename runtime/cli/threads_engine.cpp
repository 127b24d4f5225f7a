// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/threads_engine.hpp"

#include <fmt/format.h>

#include <memory>
#include <shardplan/check.hpp>
#include <string>

#include "runtime/cli/thread_instances.hpp"

namespace shardplan::runtime {
namespace {

/// What the ranks share. They own it together: a rank that had to be left behind still finds it.
template <class T>
struct shared_run {
  checkpoint weights;
  plan_spec plan;
  num micro_batches;
  batch_rows rows;
  std::vector<expert_choices> replay;
  run_options how;
  gathered_result<T> result;
};

void require_legal(const model_spec& model, const plan_spec& plan, const batch_rows& rows, num micro_batches) {
  question q;
  q.model = model;
  q.plan = plan;
  q.batch.length = rows.length;
  q.batch.rows = rows.rows;
  q.batch.micro_batches = micro_batches;
  q.engine = engine_kind::threads;
  std::string broken;
  check(q, [&](const violation& v) {
    broken += fmt::format("{}{}: {}", broken.empty() ? "" : "; ", v.rule, v.sentence);
    for (const operand_value& o : v.operands) broken += fmt::format(", {}={}", o.name, o.value);
  });
  if (!broken.empty()) throw plan_error(broken);
}

}  // namespace

void require_carried_by_threads(const plan_spec& plan) {
  if (world_size(plan) > max_thread_ranks)
    throw engine_error(
        fmt::format("the engine threads carries at most {} ranks, not {}", max_thread_ranks, world_size(plan)));
}

template <class T>
threads_run<T> run_on_threads(const checkpoint& weights, const plan_spec& plan, const batch_rows& rows,
                              const threads_options& options) {
  validate(rows, weights.config().spec);
  require_legal(weights.config().spec, plan, rows, options.micro_batches);
  require_carried_by_threads(plan);
  const num world = world_size(plan);

  const num micro_batches = options.micro_batches == 0 ? plan.pp : options.micro_batches;
  const auto shared = std::make_shared<shared_run<T>>(
      shared_run<T>{weights, plan, micro_batches, rows, options.replay, options.run, {}});
  std::vector<recorder> ledgers = run(world, options.timeout, [shared](thread_communicator& comm) {
    const num each = shared->rows.rows / num_data_shards(shared->plan);
    const auto load = [&](num rank) { return select_rows(shared->rows, data_index(shared->plan, rank) * each, each); };
    run_options how = shared->how;
    how.replay = shared->replay;
    gathered_result<T> result = run_sharded<T>(comm, shared->weights, shared->plan, shared->micro_batches, load, how);
    if (comm.rank() == 0) shared->result = std::move(result);
  });
  return {std::move(shared->result), std::move(ledgers)};
}

template threads_run<float> run_on_threads(const checkpoint&, const plan_spec&, const batch_rows&,
                                           const threads_options&);
template threads_run<double> run_on_threads(const checkpoint&, const plan_spec&, const batch_rows&,
                                            const threads_options&);

}  // namespace shardplan::runtime
