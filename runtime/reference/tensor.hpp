// SPDX-License-Identifier: Apache-2.0
// Storage of the baseline: a row-major matrix that owns its numbers.
#ifndef SHARDPLAN_RUNTIME_REFERENCE_TENSOR_HPP
#define SHARDPLAN_RUNTIME_REFERENCE_TENSOR_HPP

#include <cstddef>  // size_t
#include <new>      // align_val_t
#include <span>     // span
#include <vector>   // vector

#include "runtime/device/gemm.hpp"

namespace shardplan::runtime::reference {

/// Memory on a cache line: vector code then splits every row in the same way in every run, so that sums repeat to the
/// last bit.
template <class T>
struct cache_line_allocator {
  using value_type = T;
  static constexpr std::align_val_t alignment{64};

  cache_line_allocator() = default;
  template <class U>
  cache_line_allocator(const cache_line_allocator<U>&) {}  // NOLINT: as the standard's allocators convert
  T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), alignment)); }
  void deallocate(T* p, std::size_t) { ::operator delete(p, alignment); }
  friend bool operator==(cache_line_allocator, cache_line_allocator) { return true; }
};

/// `rows` x `cols` numbers, zero at first. Tensors of three dims are matrices whose rows are the first two.
template <class T>
class tensor {
 public:
  tensor() = default;
  tensor(num rows, num cols) : rows_(rows), cols_(cols), data_(static_cast<std::size_t>(rows * cols)) {}

  num rows() const { return rows_; }
  num cols() const { return cols_; }
  T* row(num i) { return data_.data() + i * cols_; }
  const T* row(num i) const { return data_.data() + i * cols_; }
  std::span<T> all() { return data_; }
  std::span<const T> all() const { return data_; }

  matrix_view<T> view() { return {data_.data(), rows_, cols_}; }
  matrix_view<const T> view() const { return {data_.data(), rows_, cols_}; }
  /// Rows [begin, begin + count).
  matrix_view<T> view(num begin, num count) { return {row(begin), count, cols_}; }
  matrix_view<const T> view(num begin, num count) const { return {row(begin), count, cols_}; }
  /// The same numbers in rows of `cols`: (N, heads * D) seen as (N * heads, D).
  matrix_view<T> folded(num cols) { return {data_.data(), rows_ * cols_ / cols, cols}; }
  matrix_view<const T> folded(num cols) const { return {data_.data(), rows_ * cols_ / cols, cols}; }

 private:
  num rows_ = 0, cols_ = 0;
  std::vector<T, cache_line_allocator<T>> data_;
};

}  // namespace shardplan::runtime::reference
#endif  // SHARDPLAN_RUNTIME_REFERENCE_TENSOR_HPP
