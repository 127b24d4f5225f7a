// SPDX-License-Identifier: Apache-2.0
// Ranks with the host's launcher, over the engine of threads.
#ifndef SHARDPLAN_TESTS_DEVICE_RUN_ON_HOST_HPP
#define SHARDPLAN_TESTS_DEVICE_RUN_ON_HOST_HPP

#include "tests/device/executor_on_device.hpp"
#include "tests/unit/equality_helpers.hpp"

namespace shardplan::runtime {

template <class T>
gathered_result<accumulated<T>> run_kernels(const checkpoint& weights, const plan_spec& plan, num micro_batches,
                                            const batch_rows& rows, const run_options& options,
                                            std::vector<recorder>* sent = nullptr,
                                            guarded::passages* passed = nullptr) {
  gathered_result<accumulated<T>> result;
  auto ledgers = run(world_size(plan), std::chrono::seconds(120), [&](thread_communicator& comm) {
    const bool reversed = comm.rank() % 2 != 0;  // blocks and threads in either order
    const auto run_on = [&](auto& engine, const auto& launcher) {
      auto mine = run_sharded<T, planned_methods>(engine, weights, plan, micro_batches, shares_of(rows, plan), options,
                                                  cuda::cuda_device(launcher));
      if (comm.rank() == 0) result = std::move(mine);
    };
    if constexpr (!std::is_same_v<T, double>) {
      guarded::arena memory;
      guarded::communicator engine(comm, memory);
      run_on(engine, guarded::launcher(memory, reversed));
      if (passed != nullptr && comm.rank() == 0) *passed = memory.passed;
    } else {
      run_on(comm, cuda::host_launcher(reversed));
    }
  });
  if (sent != nullptr) *sent = std::move(ledgers);
  return result;
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_TESTS_DEVICE_RUN_ON_HOST_HPP
