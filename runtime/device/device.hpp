// SPDX-License-Identifier: Apache-2.0
// What the executor asks of the thing that a rank computes on: memory of its own, and the operations of a model on it.
// The CPU is one (cpu_device.hpp), whatever runs CUDA kernels another (cuda/device.hpp).
//
// A device is a handle, cheap to copy; the rank's thread alone uses it. Operations are functions whose first argument
// is a device, called without a namespace: `rms_norm<T>(on, x, weight, eps, out)`. They are documented in ops.hpp,
// pairs.hpp, loops.hpp and gemm.hpp, whose functions are the CPU's. They take spans of the device's memory, start after
// all those asked for before, and need not have ended when the call returns; to_host waits.
//
// Spans that an engine is given are of the device's memory where they hold real numbers; where they hold integers, of
// either, because many steer, and the host must know those.
#ifndef SHARDPLAN_RUNTIME_DEVICE_DEVICE_HPP
#define SHARDPLAN_RUNTIME_DEVICE_DEVICE_HPP

#include <concepts>  // copyable, same_as
#include <cstddef>   // size_t
#include <shardplan/meta.hpp>
#include <span>
#include <vector>

#include "runtime/device/attention.hpp"  // token_places
#include "runtime/device/buffer.hpp"
#include "runtime/device/gemm.hpp"

namespace shardplan::runtime {

/// Values in a device's memory; movable, and a span to whoever wants one. One made without a size is empty.
template <class B, class V>
concept DeviceBuffer = std::default_initializable<B> && std::movable<B> && std::same_as<typename B::value_type, V> &&
    std::convertible_to<B&, std::span<V>> && std::convertible_to<const B&, std::span<const V>> && requires(const B& b) {
  { b.size() } -> std::same_as<std::size_t>;
};

/// The memory of a device. `V`: float, double, num, char, or a struct of numbers; bf16 where it computes on that.
template <class D, class V>
concept DeviceMemory = DeviceBuffer<typename D::template buffer<V>, V> &&
    requires(const D& on, std::size_t size, std::span<const V> from, std::span<V> to, std::span<const V> host,
             std::span<V> host_out, runtime::buffer<V> given, const typename D::template buffer<V>& values) {
  { allocate<V>(on, size) } -> std::same_as<typename D::template buffer<V>>;       // holding anything
  { filled<V>(on, size, V{}) } -> std::same_as<typename D::template buffer<V>>;    // with one value
  { copied<V>(on, from) } -> std::same_as<typename D::template buffer<V>>;         // from the device's memory
  copy_values<V>(on, from, to);                                                    // inside the device's memory
  { upload<V>(on, host) } -> std::same_as<typename D::template buffer<V>>;         // from the host's memory
  { take(on, std::move(given)) } -> std::same_as<typename D::template buffer<V>>;  // the same, and may keep it
  { lend<V>(on, host) } -> std::convertible_to<std::span<const V>>;                // the same, while both live
  { to_host(on, values).data() } -> std::convertible_to<const V*>;                 // a vector of the host
  through_engine(on, host_out, [](std::span<V>) {});  // real numbers of the host, where engines take them
};

/// The operations; a few stand for all: those that are missing are named where they are called.
template <class D>
concept Device = std::copyable<D> && DeviceMemory<D, float> && DeviceMemory<D, double> &&
    requires(const D& on, std::span<const float> x, std::span<float> y, matrix_view<const float> a,
             matrix_view<float> c, std::span<const product_of_group<float>> group, std::span<const num> experts,
             std::vector<token_places> rows, num n) {
  add<float>(on, y, x);
  rms_norm<float>(on, x, x, 1e-6, y);
  gemm_nt<float>(on, a, a, c);
  gemm_nn<float>(on, a, a, c);
  gemm_tn<float>(on, a, a, c, 1, 1);
  gemm_group<float>(on, flips{}, group, 1, 1);
  { sort_pairs(on, experts, n, n) } -> std::same_as<typename D::pairs>;  // its `counts` are on the host
  { upload_places(on, std::move(rows)) } -> std::same_as<typename D::places>;
  { add_up_squares<float>(on, x, 0.0) } -> std::same_as<double>;  // to what there is; on the host
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_DEVICE_HPP
