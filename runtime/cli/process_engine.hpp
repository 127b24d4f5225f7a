// SPDX-License-Identifier: Apache-2.0
// The engine of a command whose ranks are processes, on any communicator between them.
#ifndef SHARDPLAN_RUNTIME_CLI_PROCESS_ENGINE_HPP
#define SHARDPLAN_RUNTIME_CLI_PROCESS_ENGINE_HPP

#include <fmt/format.h>

#include <cstdlib>

#include "runtime/cli/plan_engine.hpp"
#include "runtime/cli/process_world.hpp"
#include "runtime/cli/run_rank.hpp"

namespace shardplan::cli {

/// An answer, for the other processes.
runtime::verdict to_verdict(const outcome& mine);
/// The one answer to print of the verdicts of all ranks, of which some may be missing. `rank` says it, for all or
/// alone.
outcome worst_of(const std::vector<std::optional<runtime::verdict>>& all, num rank, bool alone);

/// `Process` begins and ends what connects the processes: world() is a ProcessCommunicator, finish(exit code) the
/// orderly end, abort(exit code) the other one, which does not return. The device is what this rank computes on.
template <class Process, runtime::Device D = runtime::cpu_device>
class process_engine final : public plan_engine {
 public:
  process_engine(engine_kind kind, std::unique_ptr<Process> process, printer print, D on = {})
      : kind_(kind), process_(std::move(process)), on_(on), print_(std::move(print)), world_(process_->world()) {}

  engine_kind kind() const override { return kind_; }
  std::string_view ranks_are() const override { return "processes"; }
  num num_ranks() const override { return world_.size(); }
  bool is_first() const override { return world_.first(); }
  void require_carried(num ranks) const override {
    if (ranks != world_.size())
      throw runtime::plan_error(fmt::format("the plan has {} ranks, but there are {} processes", ranks, world_.size()));
  }
  void agree(const std::vector<given_fact>& facts) override { world_.agree(facts); }
  void on_first(const std::function<void()>& work) override {
    world_.on_first(work, [&](std::exception_ptr lost) { end(outcome_of(lost)); });
  }
  void run(runtime::plan_task task, runtime::plan_run<float>& out) override { run_typed(task, out); }
  void run(runtime::plan_task task, runtime::plan_run<double>& out) override { run_typed(task, out); }
  void run([[maybe_unused]] runtime::plan_task task, [[maybe_unused]] runtime::plan_run<runtime::bf16>& out) override {
    if constexpr (std::is_same_v<D, runtime::cpu_device>)
      refuse_bf16();
    else
      run_typed(task, out);
  }

  [[noreturn]] void end(const outcome& mine) override {
    const auto say = [&](const auto& all, bool alone) { return print_(worst_of(all, world_.rank(), alone)); };
    const runtime::last_word word = world_.end(to_verdict(mine), say);
    // Without all, an orderly end would wait for those who are missing.
    if (!word.complete) {
      if (world_.comm().told_to_end() || !world_.first()) std::_Exit(word.exit_code);
      process_->abort(word.exit_code);
    }
    process_->finish(word.exit_code);
    std::_Exit(word.exit_code);
  }

 private:
  template <class T>
  void run_typed(runtime::plan_task& task, runtime::plan_run<T>& out) {
    runtime::require_legal(task, kind_);
    require_carried(shardplan::world_size(task.plan));
    world_.share(task.options.replay);  // every rank replays what rank 0 was told to
    runtime::recorder& ledger = world_.comm().ledger();
    ledger.clear();
    out.result = runtime::run_rank<T>(world_.comm(), task, on_);
    world_.comm().require_all_received();
    out.ledgers = world_.gather_ledgers();
  }

  engine_kind kind_;
  std::unique_ptr<Process> process_;
  D on_;
  printer print_;
  runtime::process_world<std::remove_reference_t<decltype(std::declval<Process&>().world())>> world_;
};

}  // namespace shardplan::cli
#endif  // SHARDPLAN_RUNTIME_CLI_PROCESS_ENGINE_HPP
