// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/threads_engine.hpp"

#include <fmt/format.h>

#include <memory>

#include "runtime/cli/run_rank.hpp"
#include "runtime/cli/thread_instances.hpp"

namespace shardplan::runtime {
namespace {

/// What the ranks share. They own it together: a rank that had to be left behind still finds it.
template <class T>
struct shared_run {
  plan_task task;
  gathered_result<T> result;
};

}  // namespace

void require_carried_by_threads(num ranks) {
  if (ranks > max_thread_ranks)
    throw engine_error(fmt::format("the engine threads carries at most {} ranks, not {}", max_thread_ranks, ranks));
}

template <class T>
plan_run<T> run_on_threads(plan_task task) {
  require_legal(task, engine_kind::threads);
  const num world = world_size(task.plan);
  require_carried_by_threads(world);
  const std::chrono::milliseconds timeout = task.options.timeout;
  const auto shared = std::make_shared<shared_run<T>>(shared_run<T>{std::move(task), {}});
  std::vector<recorder> ledgers = run(world, timeout, [shared](thread_communicator& comm) {
    gathered_result<T> result = run_rank<T>(comm, shared->task);
    if (comm.rank() == 0) shared->result = std::move(result);
  });
  return {std::move(shared->result), std::move(ledgers)};
}

template plan_run<float> run_on_threads(plan_task);
template plan_run<double> run_on_threads(plan_task);

}  // namespace shardplan::runtime
