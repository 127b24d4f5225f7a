// SPDX-License-Identifier: Apache-2.0
// One communicator of NCCL, which never waits: what NCCL and the device have not done yet is asked for again.
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_LINE_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_LINE_HPP

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <vector>

#include "runtime/device/cuda/memory.hpp"
#include "runtime/engine/nccl/library.hpp"

namespace shardplan::runtime::detail {

/// Whether NCCL and kernels can use the address.
bool is_on_device(const void* address);
/// What is put on `later` next waits for what is on `earlier` now.
void put_after(CUstream_st* earlier, CUstream_st* later);

class nccl_line final : public device_communicator {
 public:
  /// `producer`: what is begun waits for what is on that stream; null for nothing.
  nccl_line(const communicator_id& id, num n, num index, int device, CUstream_st* const& producer);
  ~nccl_line() override;
  nccl_line(const nccl_line&) = delete;
  nccl_line& operator=(const nccl_line&) = delete;

  bool ready() override;
  bool stages(const device_call& call) override;
  void start(const device_call& call, const std::vector<nccl_step>& steps) override;
  bool done() override;
  void abort() noexcept override;

 private:
  void stage(device_call& call);
  void enqueue(const device_call& call, const nccl_step& s);
  void enqueue_copies(const device_call& call, const std::vector<nccl_step>& steps);

  CUstream_st* const& producer_;
  cuda::stream stream_;
  cudaEvent_t reached_ = nullptr;  // the end of what was begun
  ncclComm_t comm_ = nullptr;
  bool enqueuing_ = false;  // NCCL has not put all of the last call on the stream yet
  bool running_ = false;    // reached_ is recorded, and was not seen yet
  /// Copies of buffers of the host, of a call that has not ended.
  struct staged {
    cuda::device_bytes in, out;
    std::byte* out_to = nullptr;  // where the copy of `out` is to go; null for nowhere
    num out_bytes = 0;
  };
  std::vector<staged> staged_;
};

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_LINE_HPP
