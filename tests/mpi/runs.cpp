// SPDX-License-Identifier: Apache-2.0
// Plans carried out by MPI and by threads: all results have the same bits, and all ranks record the same.
// Usage, under mpirun: mpi_runs COUNT SEED: so many of the legal plans of as many ranks as there are processes.
#include <cstdio>
#include <cstring>
#include <shardplan/plan_text.hpp>
#include <shardplan/search.hpp>

#include "runtime/cli/mpi_instances.hpp"
#include "runtime/cli/process_world.hpp"
#include "runtime/cli/run_rank.hpp"
#include "runtime/cli/threads_engine.hpp"
#include "runtime/verify/inputs.hpp"

namespace {

using namespace shardplan;
using namespace shardplan::runtime;

void require(bool good, const std::string& what) {
  if (!good) throw plan_error(what);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T>
void require_same(const plan_run<T>& ours, const plan_run<T>& theirs, const std::string& plan) {
  const gathered_result<T>&a = ours.result, &b = theirs.result;
  require(!b.logits.empty() && !b.gradients.empty() && b.loss != 0, plan + ": nothing was computed");
  require(same_bits(a.logits, b.logits), plan + ": logits");
  require(same_bits(a.token_loss, b.token_loss), plan + ": token_loss");
  require(a.loss == b.loss && a.num_items == b.num_items && a.gradient_norm == b.gradient_norm, plan + ": numbers");
  require(a.gradients.size() == b.gradients.size(), plan + ": gradients");
  for (const auto& [name, values] : b.gradients)
    require(a.gradients.contains(name) && same_bits(a.gradients.at(name), values), plan + ": " + name);
  require(ours.ledgers.size() == theirs.ledgers.size(), plan + ": ledgers");
  for (std::size_t rank = 0; rank < ours.ledgers.size(); ++rank)
    require(ours.ledgers[rank].entries() == theirs.ledgers[rank].entries(),
            plan + ": rank " + std::to_string(rank) + " records other entries");
}

/// What no router chooses: tokens take experts by turns. One in three is left to the router.
expert_choices odd_choices(const model_spec& model, const batch_rows& rows) {
  expert_choices c{rows.rows, rows.length, model.num_experts_per_tok, {}};
  const num tokens = num_moe_layers(model) * rows.rows * rows.length;
  for (num t = 0; t < tokens; ++t)
    for (num k = 0; k < c.per_token; ++k) c.experts.push_back(t % 3 == 0 ? -1 : (t + k) % model.num_experts);
  return c;
}

template <class T>
void check_plan(process_world<mpi_communicator>& world, const checkpoint& weights, const plan_choice& choice) {
  plan_run_options options;
  options.micro_batches = choice.micro_batches;
  options.run.gradients = true;
  const num rows = 2 * num_data_shards(choice.plan) * choice.micro_batches;
  const model_spec& model = weights.config().spec;
  plan_task task{weights, choice.plan, random_rows(model, choice.plan, {13, rows, 1, {}}, 7), options};
  if (world.first()) task.options.replay = {odd_choices(model, task.rows)};
  world.share(task.options.replay);
  world.comm().ledger().clear();
  plan_run<T> ours;
  ours.result = run_rank<T>(world.comm(), task);
  world.comm().require_all_received();
  ours.ledgers = world.gather_ledgers();
  world.on_first([&] { require_same(ours, run_on_threads<T>(task), std::string(print_plan(choice.plan).view())); },
                 [&](std::exception_ptr) { std::abort(); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  mpi_process process({});
  process_world<mpi_communicator> world(process.world());
  int exit_code = 0;
  std::string why;
  try {
    const checkpoint weights = checkpoint::open(std::string(SHARDPLAN_TEST_DATA) + "/tiny");
    const auto plans =
        sample_legal_plans(weights.config().spec, world.size(), std::stoul(argv[1]), std::stoul(argv[2]));
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (world.first()) std::printf("%s\n", std::string(print_plan(plans[i].plan).view()).c_str());
      i % 2 == 0 ? check_plan<double>(world, weights, plans[i]) : check_plan<float>(world, weights, plans[i]);
    }
    require(!plans.empty(), "no plan");
  } catch (const std::exception& e) {
    exit_code = 1;
    why = e.what();
  } catch (const run_aborted&) {
    exit_code = 1;
  }
  if (!why.empty()) std::fprintf(stderr, "rank %ld: %s\n", static_cast<long>(world.rank()), why.c_str());
  if (exit_code != 0) process.abort(exit_code);
  process.finish(0);
}
