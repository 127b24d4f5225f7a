// SPDX-License-Identifier: Apache-2.0
// What rank 0's process does for the others: all connect to it, and it hands on what one tells another. It has a thread
// of its own, so that it answers while rank 0 computes.
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_HUB_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_HUB_HPP

#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "runtime/engine/nccl/socket.hpp"

namespace shardplan::runtime::detail {

/// What a process says first. Another byte order shows in the version.
struct hello {
  static constexpr char expected_magic[9] = "shrdplan";
  static constexpr num expected_version = 1;
  char magic[8];
  num version, world_size, rank;
};

/// Before each piece of what is told: how long it is, and the rank it is for or from.
struct frame_head {
  num size, peer;
};
inline constexpr num longest_frame = num{1} << 30;

/// `peer` of frames: to all others; and from the hub itself, with a text or a rank.
enum : num { everybody = -1, welcome = -2, refused = -3, lost = -4 };

std::string to_frame(num peer, std::string_view payload);

class hub {
 public:
  /// Listens at once; engine_error when the port is taken.
  hub(num world_size, num port, std::chrono::milliseconds timeout);
  /// What was told is handed on first.
  ~hub();
  hub(const hub&) = delete;
  hub& operator=(const hub&) = delete;

 private:
  void serve();
  void wait();
  void meet();
  void greet(connection guest, const hello& said);
  void turn_away(const std::string& why);
  void give_up();
  void hand_on(num from);
  void bury(num rank);
  void tell(num to, std::string_view frame);

  num world_size_, port_;
  std::chrono::milliseconds timeout_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::vector<descriptor> listeners_;
  descriptor wake_;
  std::vector<connection> guests_;     // that have not said who they are
  std::set<num> buried_;               // of the members, whose end is told
  std::map<num, connection> members_;  // by rank
  std::string turned_away_;            // why some were
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_HUB_HPP
