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
  /// A call of any kind. When it throws, all communicators are aborted.
  void perform(const nccl_membership& m, const request& r);
  /// Waits until all messages are with their receivers, which must have come to them.
  void finish_sending(const request& call);

 private:
  /// One direction of messages, at either end.
  struct channel {
    struct parcel {
      request call;
      std::shared_ptr<std::byte> data;
    };
    std::unique_ptr<device_communicator> line;
    std::deque<parcel> waiting;  // for the line to be connected; or, of messages to itself, to be received
    std::vector<std::shared_ptr<std::byte>> under_way;
  };
  using channel_key = std::pair<letter_address, num>;  // of the messages, and the rank at the other end

  void collect(const nccl_membership& m, const request& r);
  void collect_alone(const request& r);
  void send(const nccl_membership& m, const request& r);
  void receive(const nccl_membership& m, const request& r);
  void carry_out(device_communicator& line, const request& r, const std::vector<nccl_step>& steps,
                 const std::vector<num>& others);
  void connect(device_communicator& line, const request& r, const std::vector<num>& others);
  void go_on();
  void abort();

  tcp_mail mail_;
  std::shared_ptr<device_library> library_;
  std::map<std::vector<num>, std::unique_ptr<device_communicator>> lines_;  // by the ranks of a group
  std::map<channel_key, channel> outgoing_, incoming_;
};

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_RANK_HPP
