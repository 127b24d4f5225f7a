// SPDX-License-Identifier: Apache-2.0
// That the simulated NCCL refuses, waits and rounds as NCCL may. Members are threads, with a GPU each.
#include <doctest/doctest.h>
#include <nccl.h>

#include <algorithm>  // count
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/cuda/elementwise.hpp"
#include "runtime/device/cuda/launcher.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace std::chrono_literals;

namespace {

struct member {
  int rank;
  const cuda::gpu_launcher& on;
  ncclComm_t comm;
  cudaStream_t stream() const { return on.on().get(); }

  ncclResult_t settle() const {
    ncclResult_t state = ncclInProgress;
    while (ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress) std::this_thread::yield();
    return state;
  }
  /// Puts a call on the stream.
  ncclResult_t call(ncclResult_t code) const { return code == ncclInProgress ? settle() : code; }
  /// Whether all that is on the stream ends within the time.
  bool ends_within(std::chrono::milliseconds patience) const {
    for (const auto begin = std::chrono::steady_clock::now(); std::chrono::steady_clock::now() - begin < patience;
         std::this_thread::yield())
      if (cudaStreamQuery(stream()) == cudaSuccess) return true;
    return false;
  }
};

/// Members 0 .. n-1 with what each returned, "" for good. `device`: of a member.
std::vector<std::string> at_once(
    int n, const std::function<std::string(const member&)>& work,
    const std::function<int(int)>& device = [](int rank) { return rank; }) {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::vector<std::string> out(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      const cuda::gpu_launcher on(device(r));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      member m{r, on, nullptr};
      std::string& mine = out[static_cast<std::size_t>(r)];
      if (ncclCommInitRankConfig(&m.comm, n, id, r, &config) != ncclInProgress) mine = "not in progress";
      if (m.settle() != ncclSuccess) mine = ncclGetLastError(m.comm);
      if (mine.empty()) mine = work(m);
      ncclCommAbort(m.comm);
    });
  for (std::thread& t : threads) t.join();
  return out;
}

void check_good(const std::vector<std::string>& all) {
  for (const std::string& text : all) CHECK(text == "");
}

std::vector<double> take(const cuda::gpu_launcher& on, cuda::device_memory<double>& from) {
  std::vector<double> to(static_cast<std::size_t>(from.size()));
  on.download(std::span<const double>(from.span()), std::span(to));
  return to;
}

}  // namespace

TEST_CASE("sums have an order of their own, the same for all members") {
  const std::vector<double> of_member{1e17, 1, -1e17};
  std::vector<std::vector<double>> sums(3);
  check_good(at_once(3, [&](const member& m) -> std::string {
    const std::vector<double> mine(1000, of_member[static_cast<std::size_t>(m.rank)]);
    auto x = m.on.upload(std::span<const double>(mine));
    if (m.call(ncclAllReduce(x.data(), x.data(), 1000, ncclDouble, ncclSum, m.comm, m.stream())) != ncclSuccess)
      return "refused";
    sums[static_cast<std::size_t>(m.rank)] = take(m.on, x);
    return "";
  }));
  CHECK(sums[0] == sums[1]);
  CHECK(sums[0] == sums[2]);
  CHECK(std::count(sums[0].begin(), sums[0].end(), (1e17 + 1) - 1e17) < 1000);
}

TEST_CASE("a send waits for its receiver, and so does loading a kernel") {
  std::atomic<bool> may_receive = false, launched = false;
  check_good(at_once(2, [&](const member& m) -> std::string {
    auto x = m.on.allocate<double>(10);
    if (m.rank == 1) {
      while (!may_receive) std::this_thread::yield();
      const bool waited = (std::this_thread::sleep_for(50ms), !launched);
      if (m.call(ncclRecv(x.data(), 10, ncclDouble, 0, m.comm, m.stream())) != ncclSuccess) return "refused";
      const bool right = take(m.on, x)[9] == 2;
      return waited && right ? "" : "did not wait, or got something else";
    }
    cuda::fill(m.on, x.span(), 2.0);
    const cuda::gpu_launcher other(0);
    auto y = other.allocate<float>(10);
    cuda::fill(other, y.span(), 1.0F);
    if (m.call(ncclSend(x.data(), 10, ncclDouble, 1, m.comm, m.stream())) != ncclSuccess) return "refused";
    if (m.ends_within(50ms)) return "a send that nobody received has ended";
    cuda::fill(other, y.span(), 3.0F);
    other.on().wait();  // needs no receiver
    may_receive = true;
    auto z = other.allocate<num>(10);
    cuda::fill(other, z.span(), 3);  // the first of its kind
    launched = true;
    return "";
  }));
}

TEST_CASE("what is called is on the stream when NCCL says so, not before") {
  std::atomic<int> early = 0;
  check_good(at_once(2, [&](const member& m) -> std::string {
    for (int i = 0; i < 64; ++i) {
      auto x = m.on.allocate<double>(10), y = m.on.allocate<double>(10);
      cuda::fill(m.on, x.span(), 2.0);
      if (ncclAllReduce(x.data(), y.data(), 10, ncclDouble, ncclSum, m.comm, m.stream()) != ncclInProgress)
        return "not in progress";
      if (ncclAllReduce(y.data(), y.data(), 10, ncclDouble, ncclSum, m.comm, m.stream()) != ncclInvalidArgument)
        return "used before it was ready";
      m.on.on().wait();
      if (m.settle() != ncclSuccess) return "failed";
      early += cudaStreamQuery(m.stream()) == cudaErrorNotReady ? 1 : 0;  // wait() saw nothing of it
      if (take(m.on, y)[0] != 4) return "wrong";
    }
    return "";
  }));
  CHECK(early > 0);
}

TEST_CASE("buffers that are the host's, of another device, freed, or overlap are refused") {
  check_good(at_once(2, [&](const member& m) -> std::string {
    std::vector<double> host(20);
    auto x = m.on.allocate<double>(20);
    double* const freed = m.on.allocate<double>(20).data();
    const auto refuses = [&](const void* from, void* to, std::size_t count, const char* why) {
      const bool refused = ncclAllGather(from, to, count, ncclDouble, m.comm, m.stream()) == ncclInvalidArgument;
      return refused && std::string(ncclGetLastError(m.comm)).find(why) != std::string::npos;
    };
    if (!refuses(host.data(), x.data(), 10, "no allocation")) return "of the host";
    if (!refuses(x.data(), host.data(), 10, "no allocation")) return "to the host";
    if (!refuses(freed, x.data(), 10, "no allocation")) return "freed";
    if (!refuses(x.data(), x.data() + 10, 10, "no allocation")) return "beyond the end";
    if (!refuses(x.data() + (1 - m.rank) * 10, x.data(), 10, "overlap")) return "overlap";
    return m.call(ncclAllGather(x.data() + m.rank * 10, x.data(), 10, ncclDouble, m.comm, m.stream())) == ncclSuccess
               ? ""
               : "in place";
  }));
}

TEST_CASE("two members on one GPU of one host are refused") {
  for (const std::string& text : at_once(
           2, [](const member&) { return ""; }, [](int) { return 0; }))
    CHECK(text.find("Duplicate GPU detected") != std::string::npos);
}

TEST_CASE("members that call different things hang, and are ended by an abort") {
  check_good(at_once(2, [](const member& m) -> std::string {
    auto x = m.on.allocate<double>(10);
    const auto count = static_cast<std::size_t>(m.rank + 3);
    if (m.call(ncclAllReduce(x.data(), x.data(), count, ncclDouble, ncclSum, m.comm, m.stream())) != ncclSuccess)
      return "refused";
    if (m.ends_within(50ms)) return "ended";
    ncclCommAbort(m.comm);
    return m.ends_within(1000ms) ? "" : "the abort did not end it";
  }));
}
