// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/plan_engine.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "runtime/cli/threads_engine.hpp"
#ifdef SHARDPLAN_HAS_MPI
#include "runtime/cli/mpi_engine.hpp"
#endif
#ifdef SHARDPLAN_HAS_NCCL
#include "runtime/cli/nccl_engine.hpp"
#endif

namespace shardplan::cli {
namespace {

class threads_engine final : public plan_engine {
 public:
  explicit threads_engine(printer print) : print_(std::move(print)) {}

  engine_kind kind() const override { return engine_kind::threads; }
  std::string_view ranks_are() const override { return "threads"; }
  num num_ranks() const override { return 0; }
  bool is_first() const override { return true; }
  void require_carried(num ranks) const override { runtime::require_carried_by_threads(ranks); }
  void agree(const std::vector<given_fact>&) override {}
  void on_first(const std::function<void()>& work) override { work(); }
  void run(runtime::plan_task task, runtime::plan_run<float>& out) override {
    out = runtime::run_on_threads<float>(std::move(task));
  }
  void run(runtime::plan_task task, runtime::plan_run<double>& out) override {
    out = runtime::run_on_threads<double>(std::move(task));
  }
  void run(runtime::plan_task, runtime::plan_run<runtime::bf16>&) override { refuse_bf16(); }
  [[noreturn]] void end(const outcome& mine) override {
    const int exit_code = print_(mine);
    // A failed engine may have left threads behind that still use what an orderly end would destroy.
    if (exit_code == engine_error::exit_code) std::_Exit(exit_code);
    std::exit(exit_code);
  }

 private:
  printer print_;
};

}  // namespace

num world_of(const plan_engine& engine, num asked) {
  const num there = engine.num_ranks();
  if (there == 0 || asked == there) return asked;
  if (asked == 0) return there;
  throw runtime::plan_error(fmt::format("--world is {}, but there are {} {}", asked, there, engine.ranks_are()));
}

void agree_on_contents(plan_engine& engine, const std::string& checkpoint, const runtime::batch_rows& rows) {
  if (engine.num_ranks() < 2) return;
  std::vector<given_fact> facts = runtime::facts_of_checkpoint(checkpoint);
  facts.push_back({"the rows", fmt::format("{:016x}", runtime::digest(rows))});
  engine.agree(facts);
}

bool is_built(engine_kind kind) {
#ifdef SHARDPLAN_HAS_MPI
  if (kind == engine_kind::mpi) return true;
#endif
#ifdef SHARDPLAN_HAS_NCCL
  if (kind == engine_kind::nccl) return true;
#endif
  return kind == engine_kind::threads;
}

std::unique_ptr<plan_engine> make_engine(engine_kind kind, [[maybe_unused]] std::chrono::milliseconds timeout,
                                         printer print) {
#ifdef SHARDPLAN_HAS_MPI
  if (kind == engine_kind::mpi) return make_mpi_engine(timeout, std::move(print));
#endif
#ifdef SHARDPLAN_HAS_NCCL
  if (kind == engine_kind::nccl) return make_nccl_engine(timeout, std::move(print));
#endif
  static_cast<void>(kind);
  return std::make_unique<threads_engine>(std::move(print));
}

}  // namespace shardplan::cli
