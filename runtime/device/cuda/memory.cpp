// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/cuda/memory.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>  // UINT64_MAX

#include "runtime/device/cuda/error.hpp"

namespace shardplan::runtime::cuda {
namespace {

num attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

num count_devices() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) return 0;
  check(code, "cudaGetDeviceCount");
  return count;
}

stream::stream(int device) : device_(device) {
  check(cudaSetDevice(device), "cudaSetDevice", device, "as the device");
  limits_ = {attribute(cudaDevAttrMaxGridDimX, device), attribute(cudaDevAttrMaxThreadsPerBlock, device),
             attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             attribute(cudaDevAttrComputeCapabilityMajor, device)};
  // Freed memory stays with the pool: layers allocate and free the same sizes over and over.
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  std::uint64_t all = UINT64_MAX;
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "cudaMemPoolSetAttribute");
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

stream::~stream() { static_cast<void>(cudaStreamDestroy(stream_)); }

void stream::wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

device_bytes::device_bytes(num bytes, const stream& on) : stream_(&on) {
  if (bytes == 0) return;
  check(cudaMallocAsync(&data_, static_cast<std::size_t>(bytes), on.get()), "cudaMallocAsync", bytes, "bytes");
}

// What goes wrong here went wrong before, and the next call says so.
device_bytes::~device_bytes() {
  if (data_ != nullptr) static_cast<void>(cudaFreeAsync(data_, stream_->get()));
}

void copy_to_device(void* to, const void* from, num bytes, const stream& on) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, on.get()), "cudaMemcpyAsync",
        bytes, "bytes to the device");
  on.wait();
}

void copy_to_host(void* to, const void* from, num bytes, const stream& on) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, on.get()), "cudaMemcpyAsync",
        bytes, "bytes to the host");
  on.wait();
}

}  // namespace shardplan::runtime::cuda
