// SPDX-License-Identifier: Apache-2.0
// That the simulated GPU notices what a GPU would: what is not ordered, what is read too early or too late, and whose
// memory it is.
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>  // fork, _exit

#include <cmath>  // isnan
#include <csignal>
#include <vector>

#include "runtime/device/cuda/elementwise.hpp"
#include "runtime/device/cuda/launcher.hpp"
#include "runtime/device/cuda/products.hpp"
#include "runtime/engine/nccl/line.hpp"  // put_after

using namespace shardplan;
using namespace shardplan::runtime;

namespace {

constexpr num size = 100;
constexpr int often = 64;  // what a seed decides comes out both ways

/// The first value, seen after all that is on the launcher's stream.
double first_of(const cuda::gpu_launcher& on, std::span<const double> values) {
  double x = 0;
  on.download(values.first(1), std::span(&x, 1));
  return x;
}

void copy(const cuda::gpu_launcher& on, std::span<const double> from, std::span<double> to) {
  cuda::convert<double, double>(on, from, to);
}

/// How many of so many times the work says yes.
template <class F>
int count(F&& work) {
  int n = 0;
  for (int i = 0; i < often; ++i) n += work() ? 1 : 0;
  return n;
}

/// How a process ends that does the work; SIGSEGV or what it returns.
template <class F>
int end_of(F&& work) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    _exit(work());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("streams are ordered by events alone") {
  const cuda::gpu_launcher a, b;
  const auto copied = [&](bool ordered) {
    auto x = a.allocate<double>(size), y = b.allocate<double>(size);
    a.on().wait(), b.on().wait();
    cuda::fill(a, x.span(), 2.0);
    if (ordered) runtime::detail::put_after(a.on().get(), b.on().get());
    copy(b, x.span(), y.span());
    const bool right = first_of(b, y.span()) == 2;
    a.on().wait();
    return right;
  };
  CHECK(count([&] { return copied(true); }) == often);
  const int lucky = count([&] { return copied(false); });
  CHECK(lucky > 0);
  CHECK(lucky < often);
}

TEST_CASE("memory holds NaN until it is written and when it is freed, in the order of a stream") {
  const cuda::gpu_launcher a, b;
  CHECK(std::isnan(first_of(a, a.allocate<double>(size).span())));
  // What another stream writes before the allocation's own has come to it is lost; what it reads after it is freed too.
  const auto early = [&] {
    auto x = a.allocate<double>(size);
    cuda::fill(b, x.span(), 2.0);
    b.on().wait();
    return std::isnan(first_of(a, x.span()));
  };
  CHECK(count(early) > 0);
  const auto late = [&] {
    auto y = b.allocate<double>(size);
    {
      auto x = a.allocate<double>(size);
      cuda::fill(a, x.span(), 2.0);
      a.on().wait();
      copy(b, x.span(), y.span());
    }
    return std::isnan(first_of(b, y.span()));
  };
  CHECK(count(late) > 0);
}

TEST_CASE("copies read and write the host's memory when CUDA does") {
  const cuda::gpu_launcher on;
  auto x = on.allocate<double>(1);
  double value = 2;
  REQUIRE(cudaMemcpyAsync(x.data(), &value, 8, cudaMemcpyHostToDevice, on.on().get()) == cudaSuccess);
  value = 3;  // staged by then
  CHECK(first_of(on, x.span()) == 2);

  void* memory = nullptr;
  REQUIRE(cudaHostAlloc(&memory, 8, cudaHostAllocDefault) == cudaSuccess);
  auto& pinned = *static_cast<double*>(memory);
  pinned = 4;
  REQUIRE(cudaMemcpyAsync(x.data(), &pinned, 8, cudaMemcpyHostToDevice, on.on().get()) == cudaSuccess);
  pinned = 5;  // too early
  CHECK(first_of(on, x.span()) == 5);
  pinned = 6;
  REQUIRE(cudaMemcpyAsync(&pinned, x.data(), 8, cudaMemcpyDefault, on.on().get()) == cudaSuccess);
  CHECK(pinned == 6);  // not yet
  on.on().wait();
  CHECK(pinned == 5);
  CHECK(cudaFreeHost(memory) == cudaSuccess);
}

TEST_CASE("the default stream meets all but those that do not block") {
  const cuda::gpu_launcher on;
  cudaStream_t blocking = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault) == cudaSuccess);
  const auto filled_by = [&](cudaStream_t stream) {
    auto x = on.allocate<double>(1);
    on.on().wait();
    REQUIRE(cudaMemsetAsync(x.data(), 0, 8, stream) == cudaSuccess);
    double value = 1;
    REQUIRE(cudaMemcpyAsync(&value, x.data(), 8, cudaMemcpyDeviceToHost, nullptr) == cudaSuccess);
    cudaStreamSynchronize(stream);
    return value == 0;
  };
  CHECK(count([&] { return filled_by(blocking); }) == often);
  CHECK(count([&] { return filled_by(on.on().get()); }) < often);
  CHECK(cudaStreamDestroy(blocking) == cudaSuccess);
}

TEST_CASE("memory of the device is not the host's, and the other way round") {
  CHECK(end_of([] {
          const cuda::gpu_launcher on;
          auto x = on.allocate<double>(1);
          cuda::fill(on, x.span(), 2.0);
          on.on().wait();
          return *static_cast<volatile double*>(x.data()) == 2 ? 1 : 2;
        }) == SIGSEGV);
  const auto sees_illegal_access = [](auto&& work) {
    return end_of([&] {
             const cuda::gpu_launcher on;
             std::vector<double> values(1, 1.0);
             try {
               work(on, values);
               on.on().wait();
             } catch (const engine_error& e) {
               return std::string(e.what()).find("cudaErrorIllegalAddress") != std::string::npos ? 7 : 1;
             }
             return 2;
           }) == 7;
  };
  CHECK(sees_illegal_access([](auto& on, auto& values) { cuda::fill(on, std::span(values), 2.0); }));
  CHECK(!sees_illegal_access([](auto& on, auto&) { cuda::fill(on, on.template allocate<double>(1).span(), 2.0); }));

  const cuda::gpu_launcher on;
  auto x = on.allocate<double>(4);
  std::vector<double> host(4);
  const matrix_view<const double> a(x.data(), 2, 2), b(host.data(), 2, 2);
  CHECK_THROWS_AS(cuda::gemm_nn<double>(on, a, b, matrix_view<double>(x.data(), 2, 2)), engine_error);
  CHECK_THROWS_AS(on.download(std::span<const double>(x.span()), x.span()), engine_error);
  CHECK_THROWS_AS(on.upload(std::span<const double>(x.span())), engine_error);
  const std::span beyond(x.data(), 5);
  std::vector<double> five(5);
  CHECK_THROWS_AS(on.download(std::span<const double>(beyond), std::span(five)), engine_error);
}

TEST_CASE("memory that is freed can be had again, and no more than there is") {
  const cuda::gpu_launcher on;
  std::size_t unused = 0, all = 0;
  REQUIRE(cudaMemGetInfo(&unused, &all) == cudaSuccess);
  const num most = static_cast<num>(all / 4 * 3);
  for (int i = 0; i < 3; ++i) on.allocate<char>(most);
  auto half = on.allocate<char>(most);
  CHECK_THROWS_AS(on.allocate<char>(most), engine_error);
}

TEST_CASE("an event that was not reached, and one of another device") {
  const cuda::gpu_launcher on, other(1);
  cudaEvent_t event = nullptr;
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaSuccess);  // never recorded
  CHECK(cudaEventRecord(event, other.on().get()) == cudaErrorInvalidResourceHandle);
  cudaGetLastError();
  auto x = on.allocate<double>(size);
  int looks = 0;
  for (int i = 0; i < often; ++i) {
    for (int k = 0; k < 10; ++k) cuda::fill(on, x.span(), 1.0);
    REQUIRE(cudaEventRecord(event, on.on().get()) == cudaSuccess);
    while (cudaEventQuery(event) == cudaErrorNotReady) ++looks;
  }
  CHECK(looks > 0);
  CHECK(cudaGetLastError() == cudaErrorNotReady);  // as CUDA remembers it
  CHECK(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaErrorInvalidResourceHandle);
}
