// SPDX-License-Identifier: Apache-2.0
// The rate of the runtime's products beside that of OpenBLAS called directly, on the shapes of a layer with hidden
// size 512, 8 heads of 64, 1024 tokens and experts of 256. Each shape is two rows, `runtime` and `openblas`:
//
//     bench --benchmark_filter=gemm --benchmark_min_time=0.2 --benchmark_repetitions=3
//     --benchmark_report_aggregates_only=true
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <random>  // mt19937
#include <string>  // string
#include <vector>  // vector

#include "runtime/device/gemm.hpp"

namespace {

using shardplan::num;
using shardplan::runtime::matrix_view;

enum class operation { nn, nt, tn };

/// Strides are 0 where rows are contiguous; heads are columns of a wider matrix.
struct shape {
  const char* name;
  operation op;
  num m, n, k;
  num stride_a = 0, stride_b = 0, stride_c = 0;
};

constexpr shape shapes[] = {
    {"q_proj", operation::nt, 1024, 512, 512},
    {"kv_proj", operation::nt, 1024, 256, 512},
    {"attention_scores", operation::nt, 256, 1024, 64, 512, 256, 0},
    {"attention_values", operation::nn, 256, 64, 1024, 0, 256, 512},
    {"router", operation::nt, 1024, 16, 512},
    {"expert_gate_up", operation::nt, 256, 512, 512},
    {"expert_down", operation::nt, 256, 512, 256},
    {"lm_head", operation::nt, 1024, 4096, 512},
    {"input_gradient", operation::nn, 1024, 512, 512},
    {"weight_gradient", operation::tn, 512, 512, 1024},
    {"few_tokens", operation::nt, 8, 512, 512},
    {"one_token", operation::nt, 1, 512, 512},
    {"small", operation::nt, 8, 32, 32},
    {"tiny", operation::nt, 4, 16, 8},
};

void cblas_gemm(CBLAS_TRANSPOSE op_a, CBLAS_TRANSPOSE op_b, num m, num n, num k, matrix_view<float> a,
                matrix_view<float> b, matrix_view<float> c) {
  cblas_sgemm(CblasRowMajor, op_a, op_b, m, n, k, 1, a.data, a.stride, b.data, b.stride, 0, c.data, c.stride);
}
void cblas_gemm(CBLAS_TRANSPOSE op_a, CBLAS_TRANSPOSE op_b, num m, num n, num k, matrix_view<double> a,
                matrix_view<double> b, matrix_view<double> c) {
  cblas_dgemm(CblasRowMajor, op_a, op_b, m, n, k, 1, a.data, a.stride, b.data, b.stride, 0, c.data, c.stride);
}

template <class T>
void openblas(const shape& s, matrix_view<T> a, matrix_view<T> b, matrix_view<T> c) {
  cblas_gemm(s.op == operation::tn ? CblasTrans : CblasNoTrans, s.op == operation::nt ? CblasTrans : CblasNoTrans, s.m,
             s.n, s.k, a, b, c);
}

template <class T>
void runtime(const shape& s, matrix_view<T> a, matrix_view<T> b, matrix_view<T> c) {
  if (s.op == operation::nn) shardplan::runtime::gemm_nn(a, b, c);
  if (s.op == operation::nt) shardplan::runtime::gemm_nt(a, b, c);
  if (s.op == operation::tn) shardplan::runtime::gemm_tn(a, b, c);
}

template <class T, auto product>
void measure(benchmark::State& state, const shape& s) {
  std::mt19937 random(1);
  std::uniform_real_distribution<T> uniform(-1, 1);
  const auto make = [&](std::vector<T>& data, num rows, num cols, num stride) {
    stride = stride == 0 ? cols : stride;
    data.resize(rows * stride);
    for (T& x : data) x = uniform(random);
    return matrix_view<T>{data.data(), rows, cols, stride};
  };
  const bool flip_a = s.op == operation::tn, flip_b = s.op == operation::nt;
  std::vector<T> a_data, b_data, c_data;
  const auto a = make(a_data, flip_a ? s.k : s.m, flip_a ? s.m : s.k, s.stride_a);
  const auto b = make(b_data, flip_b ? s.n : s.k, flip_b ? s.k : s.n, s.stride_b);
  const auto c = make(c_data, s.m, s.n, s.stride_c);
  for (auto _ : state) {
    product(s, a, b, c);
    benchmark::ClobberMemory();
  }
  state.counters["flops"] =
      benchmark::Counter(2.0 * double(s.m) * double(s.n) * double(s.k), benchmark::Counter::kIsIterationInvariantRate);
}

template <class T>
void add(const char* type) {
  for (const shape& s : shapes) {
    const std::string name = std::string("gemm/") + s.name + "/" + type + "/";
    benchmark::RegisterBenchmark((name + "runtime").c_str(), measure<T, runtime<T>>, s);
    benchmark::RegisterBenchmark((name + "openblas").c_str(), measure<T, openblas<T>>, s);
  }
}

[[maybe_unused]] const bool added = [] {
  add<float>("f32");
  add<double>("f64");
  return true;
}();

}  // namespace
