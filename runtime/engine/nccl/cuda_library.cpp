// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/cuda_library.hpp"

#include <cstring>  // memcpy

#include "runtime/device/cuda/error.hpp"
#include "runtime/engine/nccl/line.hpp"
#include "runtime/engine/nccl/nccl_error.hpp"

namespace shardplan::runtime {

using namespace detail;

cuda_library::cuda_library(int device) : stream_(std::make_shared<cuda::stream>(device)) {}

communicator_id cuda_library::make_id() {
  ncclUniqueId made;
  check(ncclGetUniqueId(&made), "ncclGetUniqueId");
  communicator_id id;
  std::memcpy(id.data(), made.internal, id.size());
  return id;
}

std::unique_ptr<device_communicator> cuda_library::connect(const communicator_id& id, num n, num index) {
  return std::make_unique<nccl_line>(id, n, index, stream_->device(), producer_);
}

std::shared_ptr<std::byte> cuda_library::keep(const std::byte* from, num bytes) {
  struct kept {
    std::shared_ptr<cuda::stream> stream;
    cuda::device_bytes memory;  // destroyed first
  };
  auto owner = std::make_shared<kept>(kept{stream_, cuda::device_bytes(bytes, *stream_)});
  auto* const to = static_cast<std::byte*>(owner->memory.data());
  copy(from, bytes, to);
  return {std::move(owner), to};
}

void cuda_library::copy(const std::byte* from, num bytes, std::byte* to) {
  if (bytes == 0) return;
  const bool from_device = is_on_device(from), to_device = is_on_device(to);
  if (!from_device && !to_device) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
    return;
  }
  put_after(producer_, stream_->get());
  cuda::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_->get()),
              "cudaMemcpyAsync", bytes, "bytes");
  // Who computes goes on after the copy, and the host need not wait; but the host's own memory it may touch at once.
  if (producer_ != nullptr && from_device && to_device)
    put_after(stream_->get(), producer_);
  else
    stream_->wait();
}

}  // namespace shardplan::runtime
