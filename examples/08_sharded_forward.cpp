// SPDX-License-Identifier: Apache-2.0
// A plan carried out: sixteen ranks, each a thread, on a small checkpoint in the Hugging Face format, and the same rows
// through the one-rank baseline. What every rank really sent is what the plan says it sends.
#include <cstdio>
#include <shardplan/shardplan.hpp>

#include "runtime/cli/threads_engine.hpp"
#include "runtime/verify/baseline.hpp"
#include "runtime/verify/compare.hpp"
#include "runtime/verify/inputs.hpp"

using namespace shardplan;
using namespace shardplan::literals;
using namespace shardplan::runtime;

int main() {
  constexpr plan_spec plan = "pp=2,fsdp=2,cp=2/ring/zigzag,tp=2/sp,ep=4"_plan;
  const checkpoint weights = checkpoint::open(SHARDPLAN_TEST_DATA "/tiny");
  const batch_rows rows = read_inputs(SHARDPLAN_TEST_DATA "/tiny/expected.safetensors", weights.config().spec);

  const threads_run<double> run = run_on_threads<double>(weights, plan, rows);  // throws where a rule is broken
  const baseline_result<double> theirs = baseline<double>(weights).forward(rows);

  const comparison result = compare<double>(run.result, theirs, real_tokens(rows));
  std::printf("%s on %zu ranks\n", print_plan(plan).c_str(), run.ledgers.size());
  for (const tensor_comparison& t : result.tensors)
    std::printf("  %s %s\n", t.name.c_str(), t.equal ? "equal" : "different");
  std::printf("  loss %.6f, baseline %.6f\n", run.result.loss, theirs.loss);

  // Of attention, experts and sums over tp, by what was done.
  num calls[9]{}, bytes[9]{};
  for (const ledger_entry& e : run.ledgers[3].entries())
    if (e.why == phase::forward && wire_bytes(e) > 0)
      ++calls[static_cast<int>(e.what)], bytes[static_cast<int>(e.what)] += wire_bytes(e);
  for (int i = 0; i < 9; ++i)
    if (calls[i] > 0)
      std::printf("  rank 3: %3lld %s, %lld bytes\n", static_cast<long long>(calls[i]),
                  name_of(static_cast<operation>(i)).data(), static_cast<long long>(bytes[i]));
  return result.equal ? 0 : 1;
}
//> pp=2/1f1b,fsdp=2/zero3,cp=2/ring/zigzag,tp=2/sp,ep=4/dispatch on 16 ranks
//>   logits equal
//>   token_loss equal
//>   loss equal
//>   num_items equal
//>   loss 5.404638, baseline 5.404638
//>   rank 3:   8 all_gather, 8192 bytes
//>   rank 3:  10 reduce_scatter, 10240 bytes
//>   rank 3:  23 all_to_all, 27264 bytes
//>   rank 3:  18 send, 18432 bytes
