// SPDX-License-Identifier: Apache-2.0
// Without a GPU only what needs none is tested, and the program says that it skipped the rest.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>  // puts

#include "runtime/device/cuda/memory.hpp"

int main(int argc, char** argv) {
  constexpr int skipped = 77;  // SKIP_RETURN_CODE of the test
  doctest::Context context(argc, argv);
  const bool gpu = shardplan::runtime::cuda::count_devices() > 0;
  if (!gpu) context.setOption("test-suite", "no GPU needed");
  const int failed = context.run();
  if (failed != 0 || gpu) return failed;
  std::puts("skipped: there is no GPU here, no kernel was run");
  return skipped;
}
