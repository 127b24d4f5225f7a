// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/nccl_engine.hpp"

#include "runtime/cli/nccl_instances.hpp"
#include "runtime/cli/process_engine.hpp"
#include "runtime/engine/nccl/process.hpp"

namespace shardplan::cli {
namespace {

/// A rank with the GPU it computes on; what it sends waits for what it has computed.
class gpu_process : public runtime::nccl_process {
 public:
  explicit gpu_process(std::chrono::milliseconds timeout) : nccl_process(timeout), launcher_(device()) {
    follow(launcher_.on().get());
  }
  runtime::gpu on() const { return runtime::gpu(launcher_); }

 private:
  runtime::cuda::gpu_launcher launcher_;
};

}  // namespace

std::unique_ptr<plan_engine> make_nccl_engine(std::chrono::milliseconds timeout, printer print) {
  auto process = std::make_unique<gpu_process>(timeout);
  const runtime::gpu on = process->on();
  return std::make_unique<process_engine<gpu_process, runtime::gpu>>(engine_kind::nccl, std::move(process),
                                                                     std::move(print), on);
}

}  // namespace shardplan::cli
