// SPDX-License-Identifier: Apache-2.0
// All that one process has of the engine: its mail, and its communicators of NCCL.
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_RANK_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_RANK_HPP

#include <deque>
#include <map>

#include "runtime/engine/nccl/library.hpp"
#include "runtime/engine/nccl/mail.hpp"

namespace shardplan::runtime::detail {

/// How this rank knows a group.
struct nccl_membership {
  rank_group asked;
  axis_set axes;
  num index = 0;
  std::vector<num> ranks;
};

class nccl_rank {
 public:
  nccl_rank(const process_place& place, std::chrono::milliseconds timeout, std::shared_ptr<device_library> library);

  tcp_mail& mail() { return mail_; }
  /// Begins a call of any kind: when its members have agreed upon it, it is on its way. Between this and its end its
  /// buffers are not the caller's. When either throws, all communicators are aborted.
  void begin(const nccl_membership& m, const request& r);
  /// Waits for the end of what was begun.
  void finish(const nccl_membership& m, const request& r);
  /// Waits until what was sent over the group, in the phase of `r`, is on its way: its receivers have come to it.
  void flush(const nccl_membership& m, const request& r);
  /// Waits until all messages are with their receivers, which must have come to them.
  void finish_sending(const request& call);

  /// Ends what is under way.
  void abort() noexcept;

 private:
  /// One direction of messages, at either end.
  struct channel {
    struct parcel {
      request call;
      std::shared_ptr<std::byte> data;
    };
    std::unique_ptr<device_communicator> line;
    std::deque<parcel> waiting;  // to be fetched by their receiver; or, of messages to itself, to be received
    num fetched = 0;             // how many of those that wait
    std::vector<std::shared_ptr<std::byte>> under_way;
  };
  using channel_key = std::pair<letter_address, num>;  // of the messages, and the rank at the other end

  void collect(const nccl_membership& m, const request& r);
  void collect_alone(const request& r);
  void send(const nccl_membership& m, const request& r);
  void receive(const nccl_membership& m, const request& r);
  void start(device_communicator& line, const request& r, const std::vector<nccl_step>& steps,
             const std::vector<num>& others);
  void wait_until_ready(device_communicator& line, const request& r, const std::vector<num>& others);
  void wait_until_done(device_communicator& line, const request& r, const std::vector<num>& others);
  /// The line of a call, null where it has none.
  device_communicator* line_of(const nccl_membership& m, const request& r);
  /// f(); when it throws, all communicators are aborted, and what NCCL or CUDA say is told with rank and call.
  template <class F>
  void or_abort(const nccl_membership& m, const request& r, F&& f);
  void go_on();

  tcp_mail mail_;
  std::shared_ptr<device_library> library_;
  std::map<std::vector<num>, std::unique_ptr<device_communicator>> lines_;  // by the ranks of a group
  std::map<channel_key, channel> outgoing_, incoming_;
};

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_RANK_HPP
