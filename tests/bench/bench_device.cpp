// SPDX-License-Identifier: Apache-2.0
// The forward of layers of Qwen3-30B-A3B on a GPU, in bf16, with random weights made there: as many layers as fit, on
// one row of 4096 tokens. It is compared with its floor, at the rates that the GPU reached in the same run:
//
//     bench_device [--layers=N] [--length=N] [--small]
//
// --small takes a model of two layers and a short row, whose numbers say nothing: it shows that all runs. Rows have the
// counters `over_floor`, how often as long as the floor it takes, and `floor_ms`; the forward `layers`. Two parts of a
// layer have rows of their own: attention, and the first product of the experts, by one call and expert by expert.
// tests/bench/transformers_forward.py is the same forward of the public implementation.
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>  // atoll
#include <random>
#include <shardplan/models.hpp>
#include <shardplan/plan_text.hpp>
#include <string_view>

#include "forward_floor.hpp"
#include "random_values.hpp"
#include "runtime/cli/nccl_instances.hpp"
#include "runtime/device/cuda/error.hpp"
#include "runtime/engine/nccl/process.hpp"

namespace {

using namespace shardplan;           // NOLINT: a program of its own
using namespace shardplan::runtime;  // NOLINT
using cuda::bf16;

struct settings {
  num layers = 0, length = 4096;  // 0: as many as fit
  bool small = false;
};

/// Seconds of f() until the GPU has done it.
template <class F>
double seconds_of(const cuda::gpu_launcher& on, F&& f) {
  on.on().wait();
  const auto start = std::chrono::steady_clock::now();
  f();
  on.on().wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The least seconds of some calls, of which the first does not count.
template <class F>
double least_seconds_of(const cuda::gpu_launcher& on, F&& f) {
  double least = INFINITY;
  f();
  for (int i = 0; i < 5; ++i) least = std::min(least, seconds_of(on, f));
  return least;
}

bench::ceilings measure_ceilings(const cuda::gpu_launcher& on, num side) {
  const std::size_t size = static_cast<std::size_t>(side * side);
  auto a = on.allocate<bf16>(side * side), b = on.allocate<bf16>(side * side), c = on.allocate<bf16>(side * side);
  for (auto* x : {&a, &b}) cuda::for_each_element(on, side * side, cuda::random_body<bf16>{x->data(), 1, 1});
  const auto view = [&](auto& x) { return matrix_view<const bf16>(x.data(), side, side); };
  const double product =
      least_seconds_of(on, [&] { cuda::gemm_nt<bf16>(on, view(a), view(b), matrix_view<bf16>(c.data(), side, side)); });
  const double copy = least_seconds_of(on, [&] {
    cuda::check(cudaMemcpyAsync(c.data(), a.data(), 2 * size, cudaMemcpyDeviceToDevice, on.on().get()),
                "cudaMemcpyAsync");
  });
  const double n = static_cast<double>(side);
  return {2 * n * n * n / product, 2 * 2 * n * n / copy};
}

/// Bytes of the parameters that `f` goes through.
template <class F>
num bytes_of(F&& for_each) {
  num values = 0;
  for_each([&](const parameter& p) {
    num size = 1;
    for (num d : p.shape) size *= d;
    values += size;
  });
  return values * num{sizeof(bf16)};
}

/// The model with as many layers as the GPU has room for, beside what a forward needs.
model_config config_of(const settings& with) {
  model_config config = runtime::config_of(*models::find("qwen3-30b-a3b"));
  model_spec& m = config.spec;
  if (with.small)
    m.hidden_size = 64, m.num_attention_heads = 4, m.num_key_value_heads = 2, m.head_dim = 16, m.num_experts = 8,
    m.num_experts_per_tok = 2, m.moe_intermediate_size = 32, m.vocab_size = 512, m.num_hidden_layers = 2;
  std::size_t free = 0, all = 0;
  cuda::check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  const num beside = bytes_of([&](auto f) {
    for_each_parameter(m, [&](const parameter& p) {
      if (p.layer == parameter::no_layer) f(p);
    });
  });
  const num of_layer = bytes_of([&](auto f) { for_each_layer_parameter(m, 0, f); });
  // Logits twice, and the rows of experts, their gates and ups and what comes of them.
  const num working = with.length * 2 *
                      (3 * m.vocab_size + 8 * m.num_experts_per_tok * m.moe_intermediate_size +
                       4 * m.num_experts_per_tok * m.hidden_size);
  const num fit = (static_cast<num>(static_cast<double>(free) * 0.9) - beside - working) / of_layer;
  m.num_hidden_layers = std::max<num>(1, std::min(with.layers > 0 ? with.layers : m.num_hidden_layers, fit));
  return config;
}

/// Weights of the size that a model starts its training with, norms around one.
auto random_parts(const gpu& on, double bound) {
  return [=](const parameter& p, const region& part) {
    auto values = allocate<bf16>(on, static_cast<std::size_t>(part.size()));
    if (p.shape.size() == 1) {
      cuda::fill<bf16>(on, values, nearest<bf16>(1));
    } else {
      const auto seed = static_cast<std::uint64_t>(p.layer + 2) * 64 + static_cast<std::uint64_t>(p.kind);
      cuda::for_each_element(on, part.size(),
                             cuda::random_body<bf16>{values.data(), seed << 32, static_cast<float>(bound)});
    }
    return values;
  };
}

batch_rows random_row(const model_spec& m, num length) {
  std::mt19937_64 random(3);
  batch_rows rows;
  rows.rows = 1, rows.length = length;
  for (num i = 0; i < length; ++i)
    rows.input_ids.push_back(static_cast<num>(random() % static_cast<unsigned>(m.vocab_size)));
  rows.labels = rows.input_ids;
  return rows;
}

/// Repeats f() and says how far it is from its floor.
template <class F>
void measure(benchmark::State& state, const cuda::gpu_launcher& on, double floor, F&& f) {
  f();
  double seconds = 0;
  for (auto _ : state) {
    const double one = seconds_of(on, f);
    state.SetIterationTime(one);
    seconds += one / static_cast<double>(state.max_iterations);
  }
  state.counters["floor_ms"] = floor * 1e3;
  state.counters["over_floor"] = seconds / floor;
}

void forward(benchmark::State& state, nccl_process& process, const cuda::gpu_launcher& launcher, const settings& with,
             const bench::ceilings& reached) {
  const gpu on(launcher);
  const model_config config = config_of(with);
  const model_spec& m = config.spec;
  const plan_spec plan = parse_plan("tp=1").plan;
  const rank_view<nccl_communicator, gpu> view{config, plan, process.world(), on};
  const batch_rows rows = random_row(m, with.length);
  std::vector<micro_batch<contiguous, bf16, gpu>> batch;
  batch.push_back(take_tokens<bf16>(on, cut_rows<contiguous>(rows, plan, m.hidden_size, with.length, 0), 0));
  executor<contiguous, contiguous, bf16, nccl_communicator, planned_methods, gpu> run(
      view, random_parts(on, config.initializer_range * std::sqrt(3.0)), count_targets(rows));
  const double floor = static_cast<double>(m.num_hidden_layers) * bench::layer_seconds(m, with.length, reached) +
                       bench::ends_seconds(m, with.length, reached);
  measure(state, launcher, floor, [&] { static_cast<void>(run.evaluate(batch)); });
  state.counters["layers"] = static_cast<double>(m.num_hidden_layers);
}

cuda::device_memory<bf16> random_values(const cuda::gpu_launcher& on, num size) {
  auto values = on.allocate<bf16>(size);
  cuda::for_each_element(on, size, cuda::random_body<bf16>{values.data(), 7, 1});
  return values;
}

void attention(benchmark::State& state, const cuda::gpu_launcher& on, const settings& with,
               const bench::ceilings& reached) {
  const model_spec m = config_of(with).spec;
  const num n = with.length, H = m.num_attention_heads, K = m.num_key_value_heads, D = m.head_dim;
  token_places row;
  for (num i = 0; i < n; ++i) row.offset.push_back(i), row.document.push_back(0), row.key.push_back(1);
  const cuda::uploaded_places<const cuda::gpu_launcher> places(on, std::vector{row});
  auto q = random_values(on, n * H * D), k = random_values(on, n * K * D), v = random_values(on, n * K * D),
       out = on.allocate<bf16>(n * H * D);
  auto log_sum = on.allocate<float>(n * H);
  measure(state, on, bench::causal_attention(m, n).seconds(reached), [&] {
    cuda::online_attention<bf16, const cuda::gpu_launcher> by(on, q.data(), places, H, D, 0);
    by.attend(k.data(), v.data(), places, K);
    by.finish(out.data(), log_sum.data());
  });
}

/// Rows of all tokens' choices times gates and ups, every expert chosen as often.
void expert_products(benchmark::State& state, const cuda::gpu_launcher& on, const settings& with,
                     const bench::ceilings& reached, bool one_call) {
  const model_spec m = config_of(with).spec;
  const num E = m.num_experts, H = m.hidden_size, out = 2 * m.moe_intermediate_size,
            each = with.length * m.num_experts_per_tok / E;
  auto x = random_values(on, E * each * H), w = random_values(on, E * out * H), y = on.allocate<bf16>(E * each * out);
  std::vector<product_of_group<bf16>> products;
  for (num e = 0; e < E; ++e)
    products.push_back(
        {{x.data() + e * each * H, each, H}, {w.data() + e * out * H, out, H}, {y.data() + e * each * out, each, out}});
  const bench::work one = bench::product(each, H, out);
  const bench::work all{static_cast<double>(E) * one.operations, static_cast<double>(E) * one.bytes};
  const std::span<const product_of_group<bf16>> group(products);
  measure(state, on, all.seconds(reached), [&] {
    if (one_call) return cuda::gemm_group<bf16>(on, flips{.b = true}, group);
    for (num e = 0; e < E; ++e)
      cuda::gemm_group<bf16>(on, flips{.b = true}, group.subspan(static_cast<std::size_t>(e), 1));
  });
}

void ceilings_row(benchmark::State& state, const bench::ceilings& reached) {
  for (auto _ : state) state.SetIterationTime(0);
  state.counters["product_tera_per_s"] = reached.operations * 1e-12;
  state.counters["copy_giga_bytes_per_s"] = reached.bytes * 1e-9;
}

/// Whole numbers behind "--name=".
settings read(int& argc, char** argv) {
  settings out;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    if (text.starts_with("--layers="))
      out.layers = std::atoll(argv[i] + 9);
    else if (text.starts_with("--length="))
      out.length = std::max(1ll, std::atoll(argv[i] + 9));
    else if (text == "--small")
      out.small = true, out.length = std::min<num>(out.length, 256);
    else
      argv[kept++] = argv[i];
  }
  argc = kept;
  return out;
}

int run_all(int argc, char** argv) {
  const settings with = read(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  if (const std::string obstacle = nccl_obstacle(); !obstacle.empty()) {
    std::fprintf(stderr, "bench_device: %s\n", obstacle.c_str());
    return engine_error::exit_code;
  }
  nccl_process process(std::chrono::seconds(60));
  const cuda::gpu_launcher launcher(process.device());
  process.follow(launcher.on().get());
  const bench::ceilings reached = measure_ceilings(launcher, with.small ? 64 : 8192);
  const auto add = [&](const char* name, num times, auto f) {
    benchmark::RegisterBenchmark(name, f)->Iterations(times)->UseManualTime()->Unit(benchmark::kMillisecond);
  };
  const num times = with.small ? 1 : 5;
  add("ceilings", 1, [&](benchmark::State& state) { ceilings_row(state, reached); });
  add("attention", times, [&](benchmark::State& state) { attention(state, launcher, with, reached); });
  for (bool one_call : {true, false})
    add(one_call ? "experts/one_call" : "experts/one_by_one", times,
        [&, one_call](benchmark::State& state) { expert_products(state, launcher, with, reached, one_call); });
  add("forward", times, [&](benchmark::State& state) { forward(state, process, launcher, with, reached); });
  benchmark::RunSpecifiedBenchmarks();
  process.finish(0);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_all(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_device: %s\n", e.what());
    return engine_error::exit_code;
  }
}
