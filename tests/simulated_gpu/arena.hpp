// SPDX-License-Identifier: Apache-2.0
// The memory of one simulated GPU: out of the host's reach but while an operation of the device is carried out.
#ifndef SHARDPLAN_TESTS_SIMULATED_GPU_ARENA_HPP
#define SHARDPLAN_TESTS_SIMULATED_GPU_ARENA_HPP

#include <sys/mman.h>

#include <algorithm>  // max, min
#include <cstddef>
#include <cstdint>  // uintptr_t
#include <cstring>  // memset
#include <map>
#include <new>  // bad_alloc

namespace simulated {

class arena {
 public:
  explicit arena(std::size_t size) : size_(size) {
    const std::size_t reserved = (size / large_page + 2) * large_page;
    void* const at = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    const std::size_t ahead = large_page - reinterpret_cast<std::uintptr_t>(at) % large_page;
    base_ = static_cast<char*>(at) + ahead;
    static_cast<void>(madvise(base_, reserved - ahead, MADV_HUGEPAGE));  // opens and closes in no time
    free_[0] = size;
  }
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;

  /// Within its life the memory is open. It stays so until that of another device is opened, or close_idle().
  class opened {
   public:
    explicit opened(arena& a) : arena_(a) {
      if (arena_.depth_++ > 0 || open_ == &arena_) return;
      close_idle();
      arena_.protect(PROT_READ | PROT_WRITE);
      open_ = &arena_;
    }
    ~opened() {
      if (--arena_.depth_ == 0 && open_ != &arena_) arena_.protect(PROT_NONE);
    }
    opened(const opened&) = delete;
    opened& operator=(const opened&) = delete;

   private:
    arena& arena_;
  };
  static void close_idle() {
    if (open_ != nullptr && open_->depth_ == 0) open_->protect(PROT_NONE);
    open_ = nullptr;
  }

  std::size_t size() const { return size_; }
  std::size_t unused() const { return size_ - taken_; }

  /// Memory that holds NaN; null where there is not so much in one piece.
  void* allocate(std::size_t bytes) {
    if (bytes > size_) return nullptr;
    const std::size_t want = rounded(bytes);
    for (auto i = free_.begin(); i != free_.end(); ++i) {
      if (i->second < want) continue;
      const auto [offset, there] = *i;
      free_.erase(i);
      if (there > want) free_[offset + want] = there - want;
      reached_ = std::max(reached_, offset + want);
      if (reached_ > open_to_) close_idle();  // it is not open so far
      taken_ += want;
      void* const at = static_cast<char*>(base_) + offset;
      allocations_[offset] = {bytes, false};
      poison(at, bytes);
      return at;
    }
    return nullptr;
  }
  /// The host may not pass it to a call any more; what is under way may still use it.
  void retire(const void* at) { allocations_.at(offset_of(at)).retired = true; }
  void free(void* at) {
    const auto found = allocations_.find(offset_of(at));
    poison(at, found->second.bytes);
    std::size_t offset = found->first, bytes = rounded(found->second.bytes);
    taken_ -= bytes;
    allocations_.erase(found);
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == offset)
      std::prev(next)->second += bytes;
    else
      free_[offset] = bytes;
  }
  /// Fills with NaN, which is -1 in whole numbers. Of what is large, as workspaces are, only the first part, because
  /// memory that is never touched costs nothing.
  void poison(void* at, std::size_t bytes) {
    const opened now(*this);
    std::memset(at, 0xff, std::min(bytes, std::size_t{1} << 20));
  }

  bool holds(const void* at) const {
    const auto a = reinterpret_cast<std::uintptr_t>(at), b = reinterpret_cast<std::uintptr_t>(base_);
    return a >= b && a < b + size_;
  }
  /// Whether all of it lies in one allocation, which a call may use; or, if `retired`, what was called before it was.
  bool is_usable(const void* at, std::size_t bytes, bool retired = false) const {
    if (!holds(at)) return false;
    const std::size_t offset = offset_of(at);
    auto next = allocations_.upper_bound(offset);
    if (next == allocations_.begin()) return false;
    const auto& [begin, a] = *std::prev(next);
    return (retired || !a.retired) && offset - begin <= a.bytes && bytes <= a.bytes - (offset - begin);
  }
  /// Whether an allocation that a call may use begins there.
  bool is_allocation(const void* at) const {
    if (!holds(at)) return false;
    const auto found = allocations_.find(offset_of(at));
    return found != allocations_.end() && !found->second.retired;
  }

 private:
  struct allocation {
    std::size_t bytes = 0;
    bool retired = false;
  };
  static std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
  std::size_t offset_of(const void* at) const {
    return static_cast<std::size_t>(static_cast<const char*>(at) - static_cast<const char*>(base_));
  }
  void protect(int how) {
    if (how != PROT_NONE) open_to_ = (reached_ + large_page - 1) / large_page * large_page;
    if (open_to_ > 0 && mprotect(base_, open_to_, how) != 0) throw std::bad_alloc();
  }

  static constexpr std::size_t large_page = std::size_t{2} << 20;
  inline static arena* open_ = nullptr;

  std::size_t size_;
  void* base_ = nullptr;
  std::size_t reached_ = 0, open_to_ = 0, taken_ = 0;
  int depth_ = 0;
  std::map<std::size_t, std::size_t> free_;        // bytes by offset
  std::map<std::size_t, allocation> allocations_;  // by offset
};

}  // namespace simulated
#endif  // SHARDPLAN_TESTS_SIMULATED_GPU_ARENA_HPP
