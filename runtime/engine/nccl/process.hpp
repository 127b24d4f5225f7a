// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_PROCESS_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_PROCESS_HPP

#include "runtime/engine/nccl/nccl.hpp"

struct CUstream_st;

namespace shardplan::runtime {

class cuda_library;

/// To be called before anything of CUDA: kernels are loaded when the process first uses its GPU, and not each when it
/// is first launched, unless CUDA_MODULE_LOADING says so. Loading one may wait for all that the GPU does, and
/// collectives that others must come to would never end: the host would hang in a launch, where no timeout ends it.
void load_kernels_at_once();

/// "" where the engine can run, or why it cannot.
std::string nccl_obstacle();

/// This process as a rank, with its GPU. Used by the thread that made it.
class nccl_process {
 public:
  /// Reads its place from the environment, takes its GPU, and meets the others. input_error naming a variable;
  /// engine_error without a GPU, or as rendezvous. Says so on standard error where ranks share a GPU.
  explicit nccl_process(std::chrono::milliseconds timeout);
  ~nccl_process();
  nccl_process(const nccl_process&) = delete;
  nccl_process& operator=(const nccl_process&) = delete;

  nccl_communicator& world() { return *world_; }
  int device() const { return device_; }
  /// As cuda_library.
  void follow(CUstream_st* producer);
  /// The orderly end, which takes no code of its own; nothing may be communicated afterwards.
  void finish(int exit_code);
  /// Ends this process now; the others hear of it.
  [[noreturn]] void abort(int exit_code);

 private:
  int device_ = 0;
  std::shared_ptr<cuda_library> library_;
  std::unique_ptr<nccl_communicator> world_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_PROCESS_HPP
