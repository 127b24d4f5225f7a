// SPDX-License-Identifier: Apache-2.0
// How many plans a second one core checks for a model: legal ones, which is what a search over plans mostly asks, and
// those that break one rule.
//
//     bench_core --benchmark_filter=plan
//
// items_per_second are plans.
#include <benchmark/benchmark.h>

#include <iterator>
#include <shardplan/check.hpp>
#include <shardplan/models.hpp>
#include <shardplan/plan_text.hpp>

namespace {

using namespace shardplan;  // NOLINT: a program of its own
using namespace shardplan::literals;

question about(const plan_spec& plan) {
  question q;
  q.model = models::qwen3_30b_a3b;
  q.plan = plan;
  q.batch = {4096, 512, 16, {}};
  q.world = world_size(plan);
  return q;
}
// Not const: compilers must not know them.
question legal_ones[] = {about("pp=4/1f1b,fsdp=4,cp=4/ring/zigzag,tp=4/sp,ep=8"_plan), about("fsdp=8,ep=8"_plan),
                         about("dp_replicate=2,fsdp=2,tp=4/sp,ep=4,etp=2"_plan),
                         about("pp=8/interleaved3,fsdp=2,cp=2,tp=2,ep=8/all_gather"_plan)};
question wrong_ones[] = {about("fsdp=2,tp=8"_plan), about("fsdp=8,ep=16"_plan), about("pp=5,tp=4"_plan),
                         about("pp=8/interleaved4,fsdp=2,tp=2"_plan)};

/// Asks `f` about one question after the other; it must give `expected` for each.
template <std::size_t N, class F>
void ask_all(benchmark::State& state, question (&questions)[N], num expected, F&& f) {
  std::size_t i = 0, others = 0;
  for (auto _ : state) {
    const question& q = questions[i++ % N];
    benchmark::DoNotOptimize(&q);
    benchmark::ClobberMemory();
    others += f(q) != expected;
  }
  if (others > 0) state.SkipWithError("not the answer that was expected");
  state.SetItemsProcessed(state.iterations());
}
num violations(const question& q) {
  num n = 0;
  check(q, [&](const violation&) { ++n; });
  return n;
}
num violations_and_advice(const question& q) {
  num n = violations(q);
  advise(q, [&](const violation&) { ++n; });
  return n;
}

void legal_plan_asked(benchmark::State& state) {
  ask_all(state, legal_ones, 1, [](const question& q) { return legal(q) ? 1 : 0; });
}
void legal_plan_checked(benchmark::State& state) { ask_all(state, legal_ones, 0, violations); }
void legal_plan_checked_and_advised(benchmark::State& state) { ask_all(state, legal_ones, 0, violations_and_advice); }
void wrong_plan_asked(benchmark::State& state) {
  ask_all(state, wrong_ones, 0, [](const question& q) { return legal(q) ? 1 : 0; });
}
void wrong_plan_checked(benchmark::State& state) { ask_all(state, wrong_ones, 1, violations); }
BENCHMARK(legal_plan_asked);
BENCHMARK(legal_plan_checked);
BENCHMARK(legal_plan_checked_and_advised);
BENCHMARK(wrong_plan_asked);
BENCHMARK(wrong_plan_checked);

}  // namespace
