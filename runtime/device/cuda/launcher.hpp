// SPDX-License-Identifier: Apache-2.0
// Runs kernels on a GPU, for code that any compiler compiles.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_LAUNCHER_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_LAUNCHER_HPP

#include <memory>  // shared_ptr
#include <typeinfo>

#include "runtime/device/cuda/kernel.hpp"
#include "runtime/device/cuda/memory.hpp"

struct cublasContext;

namespace shardplan::runtime::cuda {

/// A GPU's stream, as operations want it. Used by the thread that made it.
class gpu_launcher {
 public:
  /// Throws engine_error where there is no such device.
  explicit gpu_launcher(int device = 0);
  gpu_launcher(const gpu_launcher&) = delete;
  gpu_launcher& operator=(const gpu_launcher&) = delete;

  /// Kernels that no .cu file names with SHARDPLAN_GPU_KERNEL do not link. Throws engine_error naming the kernel, what
  /// it asks for and the device's limit.
  template <class Kernel>
  void launch(num blocks, const typename Kernel::arguments& arguments) const;

  template <class T>
  device_memory<T> allocate(num size) const {
    return {size, stream_};
  }
  template <class T>
  device_memory<T> upload(std::span<const T> from) const {
    device_memory<T> memory(static_cast<num>(from.size()), stream_);
    copy_to_device(memory.data(), from.data(), static_cast<num>(from.size_bytes()), stream_);
    return memory;
  }
  template <class T>
  void download(std::span<const T> from, std::span<T> to) const {
    copy_to_host(to.data(), from.data(), static_cast<num>(from.size_bytes()), stream_);
  }

  const stream& on() const { return stream_; }
  /// cuBLAS on this stream.
  cublasContext* blas() const { return blas_.get(); }
  /// May products of floats round their operands to TF32 first? Not unless this says so.
  void allow_tf32(bool allowed);

 private:
  void refuse_what_does_not_fit(const std::type_info& kernel, num blocks, num threads, num shared_bytes) const;

  stream stream_;
  device_memory<char> workspace_;  // of cuBLAS: its own would be shared by streams
  std::shared_ptr<cublasContext> blas_;
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_LAUNCHER_HPP
