// SPDX-License-Identifier: Apache-2.0
// A GPU, a stream of work on it, and memory there, for code that any compiler compiles: no header of CUDA is included.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_MEMORY_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_MEMORY_HPP

#include <shardplan/meta.hpp>
#include <span>
#include <type_traits>  // is_trivially_copyable_v
#include <utility>      // exchange

struct CUstream_st;

namespace shardplan::runtime::cuda {

/// GPUs that this process can use; 0 where there is no driver.
num count_devices();

/// What a GPU allows a kernel to ask for.
struct device_limits {
  num blocks;            ///< of a launch
  num threads;           ///< of a block
  num shared_bytes;      ///< of a block, when asked for
  num capability_major;  ///< 8 for sm_80
};

/// What is put on a stream happens in order. Throws engine_error where there is no such device.
class stream {
 public:
  /// `device` becomes the calling thread's current one.
  explicit stream(int device = 0);
  ~stream();
  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;

  int device() const { return device_; }
  const device_limits& limits() const { return limits_; }
  CUstream_st* get() const { return stream_; }  ///< as CUDA, cuBLAS and NCCL take it
  /// Waits until all is done; throws what went wrong on the way.
  void wait() const;

 private:
  int device_;
  device_limits limits_;
  CUstream_st* stream_ = nullptr;
};

/// Bytes on a GPU, allocated and freed in the order of a stream, which must outlive them.
class device_bytes {
 public:
  device_bytes() = default;
  device_bytes(num bytes, const stream& on);
  ~device_bytes();
  device_bytes(device_bytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), stream_(std::exchange(other.stream_, nullptr)) {}
  device_bytes& operator=(device_bytes&& other) noexcept {
    std::swap(data_, other.data_), std::swap(stream_, other.stream_);
    return *this;
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  const stream* stream_ = nullptr;
};

/// From the host and back; the call returns when it is done.
void copy_to_device(void* to, const void* from, num bytes, const stream& on);
void copy_to_host(void* to, const void* from, num bytes, const stream& on);

/// Values on a GPU: their addresses are good for kernels and libraries of CUDA alone.
template <class T>
class device_memory {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  device_memory() = default;
  device_memory(num size, const stream& on) : bytes_(size * static_cast<num>(sizeof(T)), on), size_(size) {}
  num size() const { return size_; }
  T* data() { return static_cast<T*>(bytes_.data()); }
  std::span<T> span() { return {data(), static_cast<std::size_t>(size_)}; }
  std::span<const T> span() const { return {static_cast<const T*>(bytes_.data()), static_cast<std::size_t>(size_)}; }

 private:
  device_bytes bytes_;
  num size_ = 0;
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_MEMORY_HPP
