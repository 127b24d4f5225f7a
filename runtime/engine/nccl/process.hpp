// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_PROCESS_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_PROCESS_HPP

#include "runtime/engine/nccl/nccl.hpp"

struct CUstream_st;

namespace shardplan::runtime {

class cuda_library;

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
