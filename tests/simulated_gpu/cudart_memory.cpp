// SPDX-License-Identifier: Apache-2.0
// Allocations, copies and fills of the CUDA runtime.
#include "tests/simulated_gpu/machine.hpp"

using namespace simulated;

struct CUmemPoolHandle_st {};

namespace {

/// The stream of a call, or what the call has to return.
struct call {
  machine& m = machine::it();
  machine::guard held = m.lock();
  CUstream_st* stream = nullptr;
  cudaError_t code = cudaSuccess;

  explicit call(cudaStream_t on) : stream(m.find(on)) {
    if (m.has_failed())
      code = cudaErrorIllegalAddress;
    else if (stream == nullptr)
      code = cudaErrorInvalidResourceHandle;
  }
  cudaError_t end() { return report(m.has_failed() ? cudaErrorIllegalAddress : code); }
};

cudaError_t refuse(const std::string& why) {
  complain(why);
  return report(cudaErrorInvalidValue);
}

}  // namespace

// ---- allocations

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  static CUmemPoolHandle_st one;
  if (device < 0 || device >= machine::it().num_devices()) return report(cudaErrorInvalidDevice);
  *pool = &one;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }

cudaError_t cudaMallocAsync(void** at, std::size_t bytes, cudaStream_t on) {
  call c(on);
  *at = nullptr;
  if (c.code != cudaSuccess || bytes == 0) return c.end();
  const int device = c.stream->device;
  arena& memory = c.m.memory(device);
  void* made = memory.allocate(bytes);
  // What is freed on some stream, and not yet, can still be had.
  while (made == nullptr && bytes <= memory.size() && c.m.run_one()) made = memory.allocate(bytes);
  if (made == nullptr) return report(cudaErrorMemoryAllocation);
  c.m.enqueue(c.stream, [&memory, made, bytes] {  // whatever came too early is gone
    memory.poison(made, bytes);
    return step::done;
  });
  *at = made;
  return c.end();
}

cudaError_t cudaFreeAsync(void* at, cudaStream_t on) {
  call c(on);
  if (c.code != cudaSuccess || at == nullptr) return c.end();
  arena* const memory = c.m.memory_of(at);
  if (memory == nullptr || !memory->is_allocation(at)) return refuse("cudaFreeAsync of what is no allocation");
  memory->retire(at);
  c.m.enqueue(c.stream, [memory, at] {
    memory->free(at);
    return step::done;
  });
  return c.end();
}

cudaError_t cudaMemGetInfo(std::size_t* unused, std::size_t* all) {
  call c(nullptr);
  if (c.code != cudaSuccess) return c.end();
  *unused = c.m.memory(c.stream->device).unused();
  *all = c.m.memory(c.stream->device).size();
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** at, std::size_t bytes, unsigned) {
  call c(nullptr);
  *at = nullptr;
  if (c.code != cudaSuccess || bytes == 0) return c.end();
  *at = ::operator new(bytes);
  std::memset(*at, 0xff, bytes);
  c.m.pinned()[*at] = bytes;
  return c.end();
}

/// Waits for the device first, as CUDA's does.
cudaError_t cudaFreeHost(void* at) {
  call c(nullptr);
  if (c.code != cudaSuccess || at == nullptr) return c.end();
  if (!c.m.pinned().contains(at)) return refuse("cudaFreeHost of what is no allocation");
  for (int i = 0; i < c.m.num_devices(); ++i) c.m.wait_for(c.held, i);
  c.m.pinned().erase(at);
  ::operator delete(at);
  return c.end();
}

// ---- copies and fills

namespace {

bool fits(cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !from_device && !to_device;
    case cudaMemcpyHostToDevice:
      return !from_device && to_device;
    case cudaMemcpyDeviceToHost:
      return from_device && !to_device;
    case cudaMemcpyDeviceToDevice:
      return from_device && to_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

/// memcpy while the memory of the devices involved is open; null for memory of the host.
void copy_now(void* to, const void* from, std::size_t bytes) {
  machine& m = machine::it();
  arena* const a = m.memory_of(to);
  arena* const b = m.memory_of(from);
  const auto open = [](arena* x) { return x == nullptr ? nullptr : std::make_unique<arena::opened>(*x); };
  const auto first = open(a), second = open(b);
  std::memcpy(to, from, bytes);
}

bool overlap(const void* a, const void* b, std::size_t bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + bytes && y < x + bytes;
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t on) {
  call c(on);
  if (c.code != cudaSuccess || bytes == 0) return c.end();
  const place to_place = c.m.place_of(to, bytes), from_place = c.m.place_of(from, bytes);
  if (to_place == place::nowhere || from_place == place::nowhere)
    return refuse("cudaMemcpyAsync beyond an allocation, or of what was freed");
  if (!fits(kind, from_place == place::device, to_place == place::device))
    return refuse("cudaMemcpyAsync of kind " + std::to_string(kind) + ", which its addresses are not");
  if (overlap(to, from, bytes)) return refuse("cudaMemcpyAsync between buffers that overlap");
  if (from_place == place::pageable && to_place == place::device) {
    // Read before the call returns, written when the stream comes to it.
    auto staged =
        std::make_shared<std::vector<char>>(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
    c.m.enqueue(c.stream, [=] {
      copy_now(to, staged->data(), bytes);
      return step::done;
    });
    return c.end();
  }
  c.m.enqueue(c.stream, [=] {
    copy_now(to, from, bytes);
    return step::done;
  });
  if (to_place == place::pageable) {  // never returns before its end
    const auto end = c.m.record(c.stream);
    c.m.run_until(
        c.held, [&] { return end->reached; }, c.stream);
  }
  return c.end();
}

cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t on) {
  call c(on);
  if (c.code != cudaSuccess || bytes == 0) return c.end();
  arena* const memory = c.m.memory_of(at);
  if (c.m.place_of(at, bytes) != place::device) return refuse("cudaMemsetAsync of what is no allocation of a device");
  c.m.enqueue(c.stream, [=] {
    const arena::opened now(*memory);
    std::memset(at, value, bytes);
    return step::done;
  });
  return c.end();
}
