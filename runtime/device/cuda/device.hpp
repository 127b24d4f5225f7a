// SPDX-License-Identifier: Apache-2.0
// What runs CUDA kernels as a device of the executor: the memory and the operations of a launcher.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_DEVICE_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_DEVICE_HPP

#include <utility>  // move

#include "runtime/device/cuda/attention.hpp"
#include "runtime/device/cuda/embedding.hpp"
#include "runtime/device/cuda/exchange.hpp"
#include "runtime/device/cuda/norm.hpp"
#include "runtime/device/cuda/optimizer.hpp"
#include "runtime/device/cuda/pairs.hpp"
#include "runtime/device/cuda/products.hpp"
#include "runtime/device/cuda/rotary.hpp"
#include "runtime/device/cuda/router.hpp"
#include "runtime/device/cuda/totals.hpp"
#include "runtime/device/cuda/vocabulary.hpp"
#include "runtime/device/device.hpp"

namespace shardplan::runtime::cuda {

/// Memory of a launcher as the executor holds it. Copies are asked for by name.
template <class L, class V>
class device_buffer : public memory_of<const L, V> {
  using memory = memory_of<const L, V>;

 public:
  using value_type = V;
  device_buffer() = default;
  device_buffer(memory&& values) : memory(std::move(values)) {}  // NOLINT: what it is made of
  device_buffer(device_buffer&&) noexcept = default;
  device_buffer& operator=(device_buffer&&) noexcept = default;

  std::size_t size() const { return this->span().size(); }
  V* data() { return memory::data(); }
  const V* data() const { return this->span().data(); }
  operator std::span<V>() { return this->span(); }              // NOLINT: as a vector converts
  operator std::span<const V>() const { return this->span(); }  // NOLINT
};

/// Pairs (token, choice) sorted by expert: see sort_pairs of pairs.hpp.
template <class L>
struct device_pairs {
  device_buffer<L, num> sorted, place;  // (r, k) each; of the first as many as `counts` say are written
  std::vector<num> counts;              // by expert, on the host

  std::span<const num> order() const {
    num size = 0;
    for (num c : counts) size += c;
    return std::span<const num>(sorted).first(static_cast<std::size_t>(size));
  }
};

/// A launcher by reference, whose memory is a device's: operations of this folder run on it.
template <Launcher L>
class launcher_handle {
 public:
  explicit launcher_handle(const L& on) : on_(&on) {}
  operator const L&() const { return *on_; }  // NOLINT: what multiplies is chosen by it

  template <class Kernel>
  void launch(num blocks, const typename Kernel::arguments& arguments) const {
    on_->template launch<Kernel>(blocks, arguments);
  }
  template <class V>
  device_buffer<L, V> allocate(num size) const {
    return on_->template allocate<V>(size);
  }
  template <class V>
  device_buffer<L, V> upload(std::span<const V> from) const {
    return on_->upload(from);
  }
  template <class V>
  void download(std::span<const V> from, std::span<V> to) const {
    on_->download(from, to);
  }

 private:
  const L* on_;
};

/// See runtime::Device. The launcher, a GPU's stream or the host, must outlive this and all its memory.
template <Launcher L>
class cuda_device : public launcher_handle<L> {
  using handle = const launcher_handle<L>;

 public:
  template <class V>
  using buffer = device_buffer<L, V>;
  using places = uploaded_places<handle>;
  using pairs = device_pairs<L>;

  explicit cuda_device(const L& on) : launcher_handle<L>(on) {}

  template <class T>
  class online_attention {
   public:
    online_attention(const cuda_device& on, std::span<const T> queries, const places& at, num heads, num head_dim,
                     num window)
        : by_(on, queries.data(), at, heads, head_dim, window) {}
    void attend(std::span<const T> keys, std::span<const T> values, const places& at, num kv_heads) {
      by_.attend(keys.data(), values.data(), at, kv_heads);
    }
    void finish(std::span<T> out, std::span<accumulated<T>> log_sum) { by_.finish(out.data(), log_sum.data()); }

   private:
    cuda::online_attention<T, handle> by_;
  };
  template <class T>
  class attention_gradient {
   public:
    attention_gradient(const cuda_device& on, std::span<const T> queries, std::span<const T> out,
                       std::span<const T> dout, std::span<const accumulated<T>> log_sum, const places& at, num heads,
                       num head_dim, num window)
        : on_(on),
          size_(queries.size()),
          by_(on, queries.data(), out.data(), dout.data(), log_sum.data(), at, heads, head_dim, window) {}
    void attend(std::span<const T> keys, std::span<const T> values, const places& at, num kv_heads, std::span<T> dkeys,
                std::span<T> dvalues) {
      by_.attend(keys.data(), values.data(), at, kv_heads, dkeys.data(), dvalues.data());
    }
    buffer<T> finish() {
      buffer<T> dqueries = on_.template allocate<T>(static_cast<num>(size_));
      by_.finish(dqueries.data());
      return dqueries;
    }

   private:
    const cuda_device& on_;
    std::size_t size_;
    cuda::attention_gradient<T, handle> by_;
  };
};

// ---- memory

template <class V, class L>
device_buffer<L, V> allocate(const cuda_device<L>& on, std::size_t size) {
  return on.template allocate<V>(static_cast<num>(size));
}
template <class V, class L>
device_buffer<L, V> filled(const cuda_device<L>& on, std::size_t size, std::type_identity_t<V> value) {
  device_buffer<L, V> values = allocate<V>(on, size);
  fill<V>(on, values, value);
  return values;
}
template <class V, class L>
void copy_values(const cuda_device<L>& on, std::span<const V> from, std::span<std::type_identity_t<V>> to) {
  cuda::copy<V>(on, from, to);
}
template <class V, class L>
device_buffer<L, V> copied(const cuda_device<L>& on, std::span<const V> values) {
  device_buffer<L, V> out = allocate<V>(on, values.size());
  copy_values<V>(on, values, out);
  return out;
}
template <class V, class L>
device_buffer<L, V> upload(const cuda_device<L>& on, std::span<const V> host) {
  return on.upload(host);
}
template <class V, class Allocator, class L>
device_buffer<L, V> take(const cuda_device<L>& on, std::vector<V, Allocator>&& host) {
  return on.upload(std::span<const V>(host));
}
template <class V, class L>
device_buffer<L, V> lend(const cuda_device<L>& on, std::span<const V> host) {
  return on.upload(host);
}
template <class L, class V>
auto to_host(const cuda_device<L>& on, const device_buffer<L, V>& values) {
  runtime::buffer<V> host(values.size());
  on.download(std::span<const V>(values), std::span<V>(host));
  return host;
}
template <class L, class V, class F>
void through_engine(const cuda_device<L>& on, std::span<V> host, F&& f) {
  device_buffer<L, V> there = on.upload(std::span<const V>(host));
  f(there.span());
  on.download(std::span<const V>(there.span()), host);
}
template <class L>
uploaded_places<const launcher_handle<L>> upload_places(const cuda_device<L>& on,
                                                        const std::vector<token_places>& places) {
  return {on, places};
}

// ---- operations that take more than the kernels': numbers of the host, memory for results

template <class L>
device_pairs<L> sort_pairs(const cuda_device<L>& on, std::span<const num> experts, num first, num count) {
  device_pairs<L> pairs{allocate<num>(on, experts.size()), allocate<num>(on, experts.size()),
                        std::vector<num>(static_cast<std::size_t>(count))};
  device_buffer<L, num> counts = allocate<num>(on, pairs.counts.size());
  cuda::sort_pairs(on, experts, first, counts, pairs.sorted, pairs.place);
  on.download(std::span<const num>(counts), std::span<num>(pairs.counts));
  return pairs;
}
template <class T, class L>
device_buffer<L, T> rows_of_pairs(const cuda_device<L>& on, std::span<const T> x, const device_pairs<L>& pairs,
                                  num per_token, num H) {
  const std::span<const num> order = pairs.order();
  device_buffer<L, T> out = allocate<T>(on, order.size() * static_cast<std::size_t>(H));
  rows_of_pairs<T>(on, x, order, per_token, H, out);
  return out;
}
template <class T, class L>
device_buffer<L, T> combine_pairs(const cuda_device<L>& on, std::span<const T> rows, const device_pairs<L>& pairs,
                                  std::span<const accumulated<T>> weights, num per_token, num H) {
  device_buffer<L, T> y =
      allocate<T>(on, weights.size() / static_cast<std::size_t>(per_token) * static_cast<std::size_t>(H));
  combine_pairs<T>(on, rows, pairs.place, weights, per_token, H, y);
  return y;
}
template <class T, class L>
device_buffer<L, T> combine_pairs_backward(const cuda_device<L>& on, std::span<const T> dy,
                                           std::span<const std::type_identity_t<T>> rows, const device_pairs<L>& pairs,
                                           std::span<const accumulated<T>> weights, num per_token, num H,
                                           device_buffer<L, accumulated<T>>& dweights) {
  device_buffer<L, T> drows = allocate<T>(on, rows.size());
  dweights = allocate<accumulated<T>>(on, weights.size());
  combine_pairs_backward<T>(on, dy, rows, pairs.order(), weights, per_token, H, drows, dweights);
  return drows;
}
template <class T, class L>
void add_rows_of_pairs(const cuda_device<L>& on, std::span<T> x, std::span<const std::type_identity_t<T>> rows,
                       const device_pairs<L>& pairs, num per_token, num H) {
  add_rows_of_pairs<T>(on, x, rows, pairs.place, per_token, H);
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_DEVICE_HPP
