// SPDX-License-Identifier: Apache-2.0
// The forward of a model of 8 layers, hidden size 512, 16 experts of which 4 are chosen, on rows of 1024 tokens, in
// single precision: how much of the baseline's time is matrix products, and how much processor time the ranks of a plan
// need together, against the baseline's. Ratios are of one run:
//
//     bench --benchmark_filter=forward
//
// Each row has the counter `products` (share of matrix products) or `over_baseline` (a ratio of processor times).
#include <benchmark/benchmark.h>
#include <time.h>

#include <unistd.h>
#include <filesystem>
#include <mutex>
#include <random>
#include <shardplan/plan_text.hpp>

#include "runtime/checkpoint/init.hpp"
#include "runtime/engine/threads/threads.hpp"
#include "runtime/reference/reference.hpp"
#include "runtime/sharded/run.hpp"

namespace {

using namespace shardplan;           // NOLINT: a program of its own
using namespace shardplan::runtime;  // NOLINT

constexpr num num_rows = 4, row_length = 1024;

/// Processor time of the calling thread, in seconds.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

const checkpoint& weights() {
  static const checkpoint opened = [] {
    model_config config;
    model_spec& m = config.spec;
    m.num_hidden_layers = 8, m.hidden_size = 512;
    m.num_attention_heads = 8, m.num_key_value_heads = 4, m.head_dim = 64;
    m.num_experts = 16, m.num_experts_per_tok = 4, m.moe_intermediate_size = 256, m.intermediate_size = 1024;
    m.vocab_size = 4096, m.max_position_embeddings = 4096;
    config.norm_topk_prob = true;
    const auto directory = std::filesystem::temp_directory_path() / ("shardplan-bench-" + std::to_string(getpid()));
    write_random_checkpoint(directory, config, 1, tensor_dtype::f32);
    checkpoint c = checkpoint::open(directory);
    std::filesystem::remove_all(directory);  // what is mapped stays
    return c;
  }();
  return opened;
}

std::vector<num> random_ids() {
  std::mt19937_64 random(3);
  std::vector<num> ids;
  for (num i = 0; i < num_rows * row_length; ++i) ids.push_back(static_cast<num>(random() % 4096));
  return ids;
}

double baseline_seconds = 0;  // of the last baseline row; plans are compared with it

void forward_baseline(benchmark::State& state, const char*) {
  static const reference_model<float> model(weights());
  reference_batch batch;
  batch.rows = num_rows, batch.length = row_length;
  batch.input_ids = batch.labels = random_ids();
  double products = 0, all = 0;
  for (auto _ : state) {
    const gemm_stopwatch watch;
    const double start = thread_seconds();
    benchmark::DoNotOptimize(model.forward(batch).loss);
    const double seconds = thread_seconds() - start;
    state.SetIterationTime(seconds);
    products += watch.seconds(), all += seconds;
  }
  baseline_seconds = all / static_cast<double>(state.iterations());
  state.counters["products"] = products / all;
}

/// Processor time of all ranks in evaluate(), added up; reading weights and collecting results are left out.
template <Layout L, class Residual>
double plan_seconds(const plan_spec& plan, const batch_rows& rows) {
  double all = 0;
  std::mutex mutex;
  run(world_size(plan), std::chrono::minutes(5), [&](thread_communicator& comm) {
    const rank_view<thread_communicator> view{weights().config(), plan, comm};
    const num each = num_rows / num_data_shards(plan);
    std::vector<micro_batch<L, float>> batch;
    batch.push_back(take_tokens<float>(view.on,
                                       cut_rows<L>(select_rows(rows, data_index(plan, comm.rank()) * each, each), plan,
                                                   view.model().hidden_size, row_length, view.at(axis::cp)),
                                       view.at(axis::cp)));
    executor<L, Residual, float, thread_communicator, planned_methods> rank(view, weights(), count_targets(rows));
    comm.barrier(whole_world(view));
    const double start = thread_seconds();
    benchmark::DoNotOptimize(rank.evaluate(batch).size());
    const double seconds = thread_seconds() - start;
    const std::lock_guard lock(mutex);
    all += seconds;
  });
  return all;
}

template <Layout L, class Residual>
void forward_plan(benchmark::State& state, const char* text) {
  const parsed_plan parsed = parse_plan(text);
  batch_rows rows;
  rows.rows = num_rows, rows.length = row_length;
  rows.input_ids = rows.labels = random_ids();
  double all = 0;
  for (auto _ : state) {
    const double seconds = plan_seconds<L, Residual>(parsed.plan, rows);
    state.SetIterationTime(seconds);
    all += seconds;
  }
  state.counters["over_baseline"] = all / static_cast<double>(state.iterations()) / baseline_seconds;
}

void add(const char* name, void (*measure)(benchmark::State&, const char*), const char* text) {
  benchmark::RegisterBenchmark(name, measure, text)->Iterations(3)->UseManualTime()->Unit(benchmark::kMillisecond);
}

[[maybe_unused]] const bool added = [] {
  add("forward/baseline", forward_baseline, "");
  add("forward/tp=4/sp", forward_plan<contiguous, tensor_split<contiguous>>, "tp=4/sp");
  add("forward/cp=4/ring/zigzag", forward_plan<zigzag, zigzag>, "cp=4/ring/zigzag");
  add("forward/cp=4/ulysses", forward_plan<contiguous, contiguous>, "cp=4/ulysses");
  add("forward/fsdp=4,ep=4", forward_plan<contiguous, contiguous>, "fsdp=4,ep=4");
  return true;
}();

}  // namespace
