// SPDX-License-Identifier: Apache-2.0
// Memory of tensors. Vector code splits a row by where its memory begins, and sums and exponentials of the two parts
// round differently; on a cache line every row is split in the same way in every run, whatever the heap looks like, so
// that results repeat to the last bit.
#ifndef SHARDPLAN_RUNTIME_DEVICE_BUFFER_HPP
#define SHARDPLAN_RUNTIME_DEVICE_BUFFER_HPP

#include <cstddef>  // size_t
#include <new>      // align_val_t
#include <utility>  // forward
#include <vector>

namespace shardplan::runtime {

template <class T>
struct cache_line_allocator {
  using value_type = T;
  static constexpr std::align_val_t alignment{64};

  cache_line_allocator() = default;
  template <class U>
  cache_line_allocator(const cache_line_allocator<U>&) {}  // NOLINT: as the standard's allocators convert
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), alignment)); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, alignment); }
  /// Values that are not given stay as the memory was: most buffers are written as a whole right after.
  template <class U>
  void construct(U* p) {
    ::new (static_cast<void*>(p)) U;
  }
  template <class U, class... Args>
  void construct(U* p, Args&&... args) {
    ::new (static_cast<void*>(p)) U(std::forward<Args>(args)...);
  }
  friend bool operator==(cache_line_allocator, cache_line_allocator) { return true; }
};

/// What everything is kept in that a rank computes with. `buffer<T>(n)` holds anything, `buffer<T>(n, T{0})` zeros.
template <class T>
using buffer = std::vector<T, cache_line_allocator<T>>;

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_BUFFER_HPP
