// SPDX-License-Identifier: Apache-2.0
// What only a GPU has: its limits, its memory, and errors of its own.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/device/cuda/elementwise.hpp"
#include "runtime/device/cuda/launcher.hpp"
#include "runtime/error.hpp"

using namespace shardplan;
using namespace shardplan::runtime;

namespace {

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const engine_error& e) {
    return e.what();
  }
  return "no engine_error";
}

}  // namespace

TEST_SUITE("no GPU needed") {
  TEST_CASE("a device that is not there is refused by call, number and cause") {
    const std::string message = message_of([] { cuda::gpu_launcher on(1000); });
    CAPTURE(message);
    CHECK(message.starts_with("cudaSetDevice(1000 as the device): "));
    CHECK(message.find("(cudaError") != std::string::npos);
  }
}

TEST_CASE("more than a device allows is refused by kernel, request and limit") {
  cuda::gpu_launcher on;
  const num most = on.on().limits().blocks;
  CHECK(most > 0);
  const std::string message = message_of([&] {
    on.launch<cuda::elements_kernel<cuda::fill_body<float>>>(most + 1, {{nullptr, 0}, 0, 1, 1});
  });
  CAPTURE(message);
  CHECK(message.find("fill_body<float>") != std::string::npos);
  CHECK(
      message.ends_with(" asks for " + std::to_string(most + 1) + " blocks, device 0 allows " + std::to_string(most)));
}

TEST_CASE("memory that a device does not have is refused by call, bytes and cause") {
  cuda::gpu_launcher on;
  const std::string message = message_of([&] { on.allocate<double>(num{1} << 50); });
  CAPTURE(message);
  CHECK(message.starts_with("cudaMallocAsync(9007199254740992 bytes): "));
  // What failed was reported: a launch after it is none of its business.
  auto filled = on.allocate<float>(3);
  cuda::fill(on, filled.span(), 2.0F);
  std::vector<float> values(3);
  on.download(std::span<const float>(filled.span()), std::span(values));
  CHECK(values == std::vector<float>(3, 2.0F));
}
