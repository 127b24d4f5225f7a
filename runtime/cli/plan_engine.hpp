// SPDX-License-Identifier: Apache-2.0
// What carries plans out, as the commands see it: threads of this process, or processes of which this is one. The
// commands are written for the latter; with threads there is one process, and it is the first.
#ifndef SHARDPLAN_RUNTIME_CLI_PLAN_ENGINE_HPP
#define SHARDPLAN_RUNTIME_CLI_PLAN_ENGINE_HPP

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cli/command.hpp"
#include "runtime/cli/given_fact.hpp"
#include "runtime/cli/run_plan.hpp"

namespace shardplan::cli {

using runtime::given_fact;

/// Prints an answer, and returns the exit status, which is worse where that fails.
using printer = std::function<int(const outcome&)>;

class plan_engine {
 public:
  virtual ~plan_engine() = default;
  plan_engine(const plan_engine&) = delete;
  plan_engine& operator=(const plan_engine&) = delete;

  virtual engine_kind kind() const = 0;
  /// What ranks are: "threads", "processes".
  virtual std::string_view ranks_are() const = 0;
  /// How many ranks there are; 0: as many as a plan asks for.
  virtual num num_ranks() const = 0;
  virtual bool is_first() const = 0;
  /// engine_error when the engine carries no world of that size.
  virtual void require_carried(num ranks) const = 0;
  /// input_error when another process was given anything else.
  virtual void agree(const std::vector<given_fact>& facts) = 0;
  /// The work is done on the first process alone; the others wait for it. What it throws ends all.
  virtual void on_first(const std::function<void()>& work) = 0;
  /// Runs the plan; result and ledgers are filled on the first process alone, and its `options.replay` counts.
  /// Throws as require_legal; engine_error when the engine fails.
  virtual void run(runtime::plan_task task, runtime::plan_run<float>& out) = 0;
  virtual void run(runtime::plan_task task, runtime::plan_run<double>& out) = 0;
  /// input_error where ranks do not compute on GPUs.
  virtual void run(runtime::plan_task task, runtime::plan_run<runtime::bf16>& out) = 0;
  /// Prints the worst answer of all processes, once, and ends each with its exit status.
  [[noreturn]] virtual void end(const outcome& mine) = 0;

 protected:
  plan_engine() = default;
};

/// Runs the plan on any engine. T is float, double or bf16.
template <class T>
runtime::plan_run<T> run_on_engine(plan_engine& engine, const runtime::checkpoint& weights, const plan_spec& plan,
                                   const runtime::batch_rows& rows, runtime::plan_run_options options) {
  runtime::plan_run<T> out;
  engine.run({weights, plan, rows, std::move(options)}, out);
  return out;
}

/// The world that a plan must have: `asked`, or what the engine has. plan_error when these differ.
num world_of(const plan_engine& engine, num asked);

/// input_error when another process reads another checkpoint, or other rows.
void agree_on_contents(plan_engine& engine, const std::string& checkpoint, const runtime::batch_rows& rows);

/// The engine; threads for one that is not built in. Begins MPI.
std::unique_ptr<plan_engine> make_engine(engine_kind kind, std::chrono::milliseconds timeout, printer print);
bool is_built(engine_kind kind);

}  // namespace shardplan::cli
#endif  // SHARDPLAN_RUNTIME_CLI_PLAN_ENGINE_HPP
