// SPDX-License-Identifier: Apache-2.0
// Ranks with a GPU each, over NCCL. They are threads of this process, and meet by TCP as processes do.
#ifndef SHARDPLAN_TESTS_DEVICE_RUN_ON_GPUS_HPP
#define SHARDPLAN_TESTS_DEVICE_RUN_ON_GPUS_HPP

#include "runtime/cli/nccl_instances.hpp"
#include "runtime/engine/nccl/cuda_library.hpp"
#include "tests/nccl/ranks.hpp"
#include "tests/unit/equality_helpers.hpp"

namespace shardplan::runtime {

template <class T>
gathered_result<accumulated<T>> run_kernels(const checkpoint& weights, const plan_spec& plan, num micro_batches,
                                            const batch_rows& rows, const run_options& options,
                                            std::vector<recorder>* sent = nullptr) {
  gathered_result<accumulated<T>> result;
  const num n = world_size(plan), port = ranks::free_port();
  std::vector<recorder> ledgers(static_cast<std::size_t>(n));
  std::vector<std::function<void()>> bodies;
  for (num r = 0; r < n; ++r)
    bodies.push_back([&, r] {
      const cuda::gpu_launcher launcher(static_cast<int>(r));
      const auto library = std::make_shared<cuda_library>(static_cast<int>(r));
      library->follow(launcher.on().get());
      nccl_communicator comm(ranks::place_of(r, n, port), std::chrono::seconds(120), library);
      ranks::do_and_tell(comm, [&] {
        auto mine = run_sharded<T, planned_methods>(comm, weights, plan, micro_batches, shares_of(rows, plan), options,
                                                    cuda::cuda_device(launcher));
        ledgers[static_cast<std::size_t>(r)] = std::move(comm.ledger());
        if (r == 0) result = std::move(mine);
      });
    });
  std::string all;
  for (const std::string& thrown : ranks::at_once(bodies)) all += thrown.empty() ? "" : thrown + "\n";
  REQUIRE(all == "");
  if (sent != nullptr) *sent = std::move(ledgers);
  return result;
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_TESTS_DEVICE_RUN_ON_GPUS_HPP
