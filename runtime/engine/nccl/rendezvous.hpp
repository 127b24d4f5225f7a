// SPDX-License-Identifier: Apache-2.0
// How processes find each other, and tell each other little things beside NCCL: all connect to rank 0 by TCP.
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_RENDEZVOUS_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_RENDEZVOUS_HPP

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "runtime/engine/nccl/hub.hpp"
#include "runtime/engine/nccl/place.hpp"

namespace shardplan::runtime::detail {

class rendezvous {
 public:
  /// Returns when all ranks are there. engine_error when they are not within the timeout (the text names the absent),
  /// when this process is turned away, or rank 0 cannot listen.
  rendezvous(const process_place& place, std::chrono::milliseconds timeout);

  num rank() const { return place_.rank; }
  num world_size() const { return place_.world_size; }

  /// To a rank, or `everybody` else. Returns at once.
  void send(num to, std::string_view payload);
  /// Hands over what has come, in the order each rank sent it in, at once or after `wait`: one payload of `from`, or
  /// none when the process of `from` is lost.
  using receiver = std::function<void(num from, const std::string* payload)>;
  void receive(std::chrono::milliseconds wait, const receiver& hand_over);
  /// Whether all was sent within the patience.
  bool flush(std::chrono::milliseconds patience);
  /// The last of a process that ends at once: rank 0 hands on what was sent, and the others find it lost.
  void close();

 private:
  void connect(std::chrono::steady_clock::time_point end);
  void wait_for_welcome(std::chrono::steady_clock::time_point end);
  void wait_until_ready(std::chrono::milliseconds wait);
  bool next_frame(frame_head& head, std::string& payload);

  process_place place_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<hub> hub_;  // on rank 0
  connection to_hub_{descriptor()};
};

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_RENDEZVOUS_HPP
