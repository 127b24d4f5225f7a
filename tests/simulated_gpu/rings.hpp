// SPDX-License-Identifier: Apache-2.0
// How members of a communicator of the simulated NCCL, in any processes, pass each other bytes: a ring from each to
// each, in memory that they share. Nobody waits, and nobody learns that another is gone.
#ifndef SHARDPLAN_TESTS_SIMULATED_GPU_RINGS_HPP
#define SHARDPLAN_TESTS_SIMULATED_GPU_RINGS_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace simulated {

class rings {
 public:
  /// Meets the others under a name, as member `me` of n. Throws runtime_error when they have another n, or a `me` that
  /// is there already.
  rings(const std::string& name, int n, int me, const std::string& gpu);
  ~rings();
  rings(const rings&) = delete;
  rings& operator=(const rings&) = delete;

  bool all_there() const;
  /// The member before this one with the same GPU as another, and that one; -1, -1 for none. pre: all_there()
  std::pair<int, int> duplicate() const;

  std::size_t write(int to, const std::byte* from, std::size_t bytes);  ///< how many went
  std::size_t read(int from, std::byte* to, std::size_t bytes);         ///< how many came
  std::uint64_t written(int to) const;                                  ///< ever
  std::uint64_t taken(int to) const;                                    ///< of these, by the other

 private:
  static constexpr std::size_t capacity = std::size_t{1} << 16;
  struct ring {
    std::atomic<std::uint64_t> written, taken;
    std::byte data[capacity];
  };
  struct member {
    std::atomic<int> there;  // 1: on its way, 2: there
    char gpu[128];
  };
  struct header {
    std::atomic<int> n;
    std::atomic<int> num_there;
    member members[64];
  };
  ring& from_to(int from, int to) const { return rings_[from * n_ + to]; }

  int n_, me_;
  std::size_t size_;
  header* header_ = nullptr;
  ring* rings_ = nullptr;
};

}  // namespace simulated
#endif  // SHARDPLAN_TESTS_SIMULATED_GPU_RINGS_HPP
