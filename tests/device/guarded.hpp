// SPDX-License-Identifier: Apache-2.0
// A device whose memory the host cannot touch: kernels run on the host, but what they work on is out of reach, for
// reading and writing, but for the time of a launch, a copy or a collective. What would crash or be wrong on a GPU does
// so here.
#ifndef SHARDPLAN_TESTS_DEVICE_GUARDED_HPP
#define SHARDPLAN_TESTS_DEVICE_GUARDED_HPP

#include <sys/mman.h>

#include <cstdint>  // uintptr_t
#include <cstring>  // memset
#include <functional>
#include <map>
#include <memory>  // make_shared
#include <new>     // bad_alloc
#include <stdexcept>
#include <utility>  // exchange
#include <vector>

#include "runtime/device/cuda/products.hpp"
#include "runtime/engine/threads/threads.hpp"

namespace shardplan::runtime::guarded {

/// How often something passed between a host and a device.
struct passages {
  num up = 0, down = 0;
  friend passages operator-(passages a, passages b) { return {a.up - b.up, a.down - b.down}; }
  friend bool operator==(const passages&, const passages&) = default;
};

/// Memory of one rank's device; open while there is an opened.
class arena {
 public:
  arena() : base_(mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (base_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~arena() { munmap(base_, size); }
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;

  void* allocate(std::size_t bytes) {
    std::vector<void*>& free = free_[rounded(bytes)];
    void* at = nullptr;
    if (free.empty()) {
      if (used_ + rounded(bytes) > size) throw std::bad_alloc();
      at = static_cast<char*>(base_) + used_;
      used_ += rounded(bytes);
    } else {
      at = free.back();
      free.pop_back();
    }
    const opened while_filled(*this);
    std::memset(at, 0xff, bytes);  // NaN, until it is written
    return at;
  }
  void release(void* at, std::size_t bytes) { free_[rounded(bytes)].push_back(at); }
  bool holds(const void* at) const {
    const auto a = reinterpret_cast<std::uintptr_t>(at), b = reinterpret_cast<std::uintptr_t>(base_);
    return a >= b && a < b + size;
  }

  passages passed;

  class opened {
   public:
    explicit opened(arena& a) : arena_(a) {
      if (arena_.depth_++ == 0) arena_.protect(PROT_READ | PROT_WRITE);
    }
    ~opened() {
      if (--arena_.depth_ == 0) arena_.protect(PROT_NONE);
    }
    opened(const opened&) = delete;
    opened& operator=(const opened&) = delete;

   private:
    arena& arena_;
  };

 private:
  static constexpr std::size_t size = std::size_t{1} << 28;
  static std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }
  void protect(int how) const {
    if (used_ > 0 && mprotect(base_, used_, how) != 0) throw std::bad_alloc();
  }
  void* base_;
  std::size_t used_ = 0;
  int depth_ = 0;
  std::map<std::size_t, std::vector<void*>> free_;  // by size
};

template <class T>
class memory {
 public:
  memory() = default;
  memory(arena& from, num size) : from_(&from), size_(static_cast<std::size_t>(size)) {
    if (size > 0) data_ = static_cast<T*>(from.allocate(size_ * sizeof(T)));
  }
  ~memory() {
    if (data_ != nullptr) from_->release(data_, size_ * sizeof(T));
  }
  memory(memory&& other) noexcept { swap(other); }
  memory& operator=(memory&& other) noexcept {
    swap(other);
    return *this;
  }
  num size() const { return static_cast<num>(size_); }
  T* data() { return data_; }
  std::span<T> span() { return {data_, size_}; }
  std::span<const T> span() const { return {data_, size_}; }

 private:
  void swap(memory& other) {
    std::swap(from_, other.from_), std::swap(data_, other.data_), std::swap(size_, other.size_);
  }
  arena* from_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Throws logic_error unless the values lie in the memory of the device, or unless they lie outside.
template <class T>
void require_place(const arena& a, std::span<T> values, bool on_device, const char* what) {
  if (values.empty() || a.holds(values.data()) == on_device) return;
  throw std::logic_error(std::string(what) + (on_device ? " must be in the device's memory" : " must be the host's"));
}

/// Runs kernels on the host, as cuda::host_launcher does.
class launcher {
 public:
  launcher(arena& memory, bool reversed) : arena_(&memory), host_(reversed) {}
  template <class Kernel>
  void launch(num blocks, const typename Kernel::arguments& arguments) const {
    const arena::opened now(*arena_);
    host_.launch<Kernel>(blocks, arguments);
  }
  template <class T>
  memory<T> allocate(num size) const {
    return {*arena_, size};
  }
  template <class T>
  memory<T> upload(std::span<const T> from) const {
    require_place(*arena_, from, false, "what is uploaded");
    ++arena_->passed.up;
    memory<T> to(*arena_, static_cast<num>(from.size()));
    const arena::opened now(*arena_);
    std::copy(from.begin(), from.end(), to.data());
    return to;
  }
  template <class T>
  void download(std::span<const T> from, std::span<T> to) const {
    require_place(*arena_, from, true, "what is downloaded");
    ++arena_->passed.down;
    require_place(*arena_, to, false, "what is downloaded to");
    const arena::opened now(*arena_);
    std::copy(from.begin(), from.end(), to.begin());
  }
  template <class T, class C, class A>
  void multiply(cuda::flips f, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c, A alpha,
                A beta) const {
    const arena::opened now(*arena_);
    cuda::multiply<T, C>(host_, f, a, b, c, alpha, beta);
  }
  template <class T, class C, class A>
  void multiply_group(cuda::flips f, std::span<const product_of_group<T, C>> products, A alpha, A beta) const {
    const arena::opened now(*arena_);
    cuda::multiply_group<T, C>(host_, f, products, alpha, beta);
  }

 private:
  arena* arena_;
  cuda::host_launcher host_;
};
template <class T, class C>
void multiply(const launcher& on, cuda::flips f, matrix_view<const T> a, matrix_view<const T> b, matrix_view<C> c,
              cuda::accumulated<T> alpha, cuda::accumulated<T> beta) {
  on.multiply(f, a, b, c, alpha, beta);
}
template <class T, class C>
void multiply_group(const launcher& on, cuda::flips f, std::span<const product_of_group<T, C>> products,
                    cuda::accumulated<T> alpha, cuda::accumulated<T> beta) {
  on.multiply_group(f, products, alpha, beta);
}

/// The engine of threads, as an engine of devices takes its buffers: real numbers from the device, integers all from
/// one place. Others read a rank's buffers until its call returns.
class communicator {
 public:
  using group_type = thread_communicator::group_type;
  template <class T>
  using input = std::span<const std::type_identity_t<T>>;
  using counts = std::span<const num>;
  /// As of the engine of threads: all is done in the end.
  class pending {
   public:
    pending() = default;
    explicit pending(std::function<void()> call) : call_(std::move(call)) {}
    void finish() {
      if (const auto call = std::exchange(call_, nullptr)) call();
    }

   private:
    std::function<void()> call_;
  };

  communicator(thread_communicator& to, arena& memory) : to_(to), arena_(memory) {}
  num rank() const { return to_.rank(); }
  num world_size() const { return to_.world_size(); }
  group_type group(const rank_group& ranks, axis_set axes) { return to_.group(ranks, axes); }
  void label(phase why, num layer = -1) { to_.label(why, layer); }
  recorder& ledger() { return to_.ledger(); }
  void check_abort() { to_.check_abort(); }
  void barrier(const group_type& g) { to_.barrier(g); }
  void flush(const group_type& g) { to_.flush(g); }

  template <Element T>
  void all_reduce(const group_type& g, std::span<T> inout, reduce_op op = reduce_op::sum) {
    pass<T>({}, inout, [&] { to_.all_reduce(g, inout, op); });
  }
  template <Element T>
  void all_gather(const group_type& g, input<T> mine, std::span<T> all) {
    pass<T>(mine, all, [&] { to_.all_gather(g, mine, all); });
  }
  template <Element T>
  void all_gather(const group_type& g, input<T> mine, std::span<T> all, counts parts) {
    pass<T>(mine, all, [&] { to_.all_gather(g, mine, all, parts); });
  }
  template <Element T>
  void reduce_scatter(const group_type& g, input<T> all, std::span<T> mine) {
    pass<T>(all, mine, [&] { to_.reduce_scatter(g, all, mine); });
  }
  template <Element T>
  void reduce_scatter(const group_type& g, input<T> all, std::span<T> mine, counts parts) {
    pass<T>(all, mine, [&] { to_.reduce_scatter(g, all, mine, parts); });
  }
  template <Element T>
  void all_to_all(const group_type& g, input<T> out, counts sent, std::span<T> in, counts received) {
    pass<T>(out, in, [&] { to_.all_to_all(g, out, sent, in, received); });
  }
  template <Element T>
  void broadcast(const group_type& g, std::span<T> inout, num root) {
    pass<T>({}, inout, [&] { to_.broadcast(g, inout, root); });
  }
  template <Element T>
  void gather(const group_type& g, input<T> mine, std::span<T> all, counts parts, num root) {
    pass<T>(mine, all, [&] { to_.gather(g, mine, all, parts, root); });
  }
  template <Element T>
  void send(const group_type& g, std::span<const T> message, num to) {
    pass<T>(message, {}, [&] { to_.send(g, message, to); });
  }
  template <Element T>
  void receive(const group_type& g, std::span<T> message, num from) {
    pass<T>({}, message, [&] { to_.receive(g, message, from); });
  }
  template <Element T>
  pending begin_all_gather(const group_type& g, input<T> mine, std::span<T> all, counts parts) {
    return later<T>(mine, all, to_.begin_all_gather(g, mine, all, parts));
  }
  template <Element T>
  pending begin_receive(const group_type& g, std::span<T> message, num from) {
    return later<T>({}, message, to_.begin_receive(g, message, from));
  }

 private:
  template <class T>
  pending later(std::span<const T> in, std::span<T> out, thread_communicator::pending begun) {
    return pending([=, this, call = std::make_shared<thread_communicator::pending>(std::move(begun))] {
      pass<T>(in, out, [&] { call->finish(); });
    });
  }
  template <class T, class F>
  void pass(std::span<const T> in, std::span<T> out, F&& f) {
    const bool there = is_real<T> || arena_.holds(in.empty() ? out.data() : in.data());
    require_place(arena_, in, there, "what is sent");
    require_place(arena_, out, there, "what is received");
    const arena::opened now(arena_);
    f();
  }
  thread_communicator& to_;
  arena& arena_;
};

}  // namespace shardplan::runtime::guarded
#endif  // SHARDPLAN_TESTS_DEVICE_GUARDED_HPP
