// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_CUDA_LIBRARY_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_CUDA_LIBRARY_HPP

#include "runtime/device/cuda/memory.hpp"
#include "runtime/engine/nccl/library.hpp"

namespace shardplan::runtime {

/// NCCL and CUDA themselves, on one GPU. Used by one thread.
class cuda_library final : public device_library {
 public:
  /// engine_error where there is no such device.
  explicit cuda_library(int device);

  /// From now on what is begun waits for what was put on that stream before, so that whoever computes there need not
  /// wait itself. Results are there on the host's return, for any stream.
  void follow(CUstream_st* producer) { producer_ = producer; }

  communicator_id make_id() override;
  std::unique_ptr<device_communicator> connect(const communicator_id& id, num n, num index) override;
  std::shared_ptr<std::byte> keep(const std::byte* from, num bytes) override;
  void copy(const std::byte* from, num bytes, std::byte* to) override;

 private:
  std::shared_ptr<cuda::stream> stream_;  // outlived by what is kept
  CUstream_st* producer_ = nullptr;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_CUDA_LIBRARY_HPP
