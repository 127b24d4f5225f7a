// SPDX-License-Identifier: Apache-2.0
// The engine of processes with a GPU each: data goes by NCCL, and what the processes have to say to each other beside
// it by TCP.
//
// Members of a group first tell each other what they call, as every engine checks it; so a call that not all have come
// to, or that they disagree about, never reaches NCCL, which would hang. A communicator of NCCL is made when a group's
// first collective has been agreed upon in this way: all members are there then, in one order, whoever asked for which
// group first. Its id travels in member 0's letter. No communicator is split off another, because ncclCommSplit must be
// called by all ranks of the parent in one order, and a rank asks for its own groups alone.
//
// A message has a communicator of two for its (group, axes, phase, from, to), with a stream of its own: operations of
// one communicator run one after another, so that in a ring all would send first and none receive. The sender keeps a
// copy, tells the receiver in a letter, and goes on; the letter of the first message carries the id. The copy is put on
// its way when the receiver has come to its receive and says so: nothing is on a GPU that waits for a rank to come.
//
// Sums are in an order that NCCL chooses, and a NaN need not survive max and min.
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_NCCL_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_NCCL_HPP

#include <memory>  // shared_ptr, unique_ptr
#include <vector>

#include "runtime/engine/basic_communicator.hpp"
#include "runtime/engine/nccl/library.hpp"
#include "runtime/engine/nccl/place.hpp"
#include "runtime/engine/processes.hpp"
#include "runtime/error.hpp"

namespace shardplan::runtime {

namespace detail {
class nccl_rank;
struct nccl_membership;
}  // namespace detail

/// Handle of a group; valid as long as its communicator.
class nccl_group {
 public:
  explicit nccl_group(const detail::nccl_membership* membership) : membership_(membership) {}
  num size() const;
  num index() const;
  num member(num i) const;
  axis_set axes() const;

 private:
  friend class nccl_engine;
  const detail::nccl_membership* membership_;
};

/// This process's end of the engine; used through nccl_communicator.
class nccl_engine {
 public:
  using group_type = nccl_group;

  explicit nccl_engine(std::shared_ptr<detail::nccl_rank> state);
  nccl_engine(nccl_engine&&) noexcept;
  ~nccl_engine();
  num rank() const;
  num world_size() const;
  nccl_group group(const rank_group& ranks, axis_set axes);
  void check_abort() const;
  void begin(const nccl_group& g, const request& r);
  void finish(const nccl_group& g, const request& r);
  void flush(const nccl_group& g, const request& r);
  void give_up() noexcept;

 private:
  std::shared_ptr<detail::nccl_rank> state_;
  std::vector<std::unique_ptr<detail::nccl_membership>> groups_;  // few: found by looking at each
};

/// What a rank communicates with; see processes.hpp for what it adds. Buffers are of the device, or of the host and
/// then copied to the device and back.
class nccl_communicator : public basic_communicator<nccl_engine> {
 public:
  /// Meets the other ranks, within the timeout, which then bounds each single wait.
  nccl_communicator(const process_place& place, std::chrono::milliseconds timeout,
                    std::shared_ptr<device_library> library);

  std::chrono::milliseconds timeout() const;
  void tell(const verdict& mine, std::chrono::milliseconds patience);
  std::optional<verdict> verdict_of(num rank) const;
  void wait_for_verdicts(std::chrono::milliseconds patience);
  void tell_last(last_word word, std::chrono::milliseconds patience);
  std::optional<last_word> wait_for_last(std::chrono::milliseconds patience);
  std::string present_wait() const;
  bool told_to_end() const { return false; }  ///< a signal ends the process, and the others hear of it at once
  void require_all_received();
  /// For a process that ends without the orderly end: hands on what it has told.
  void leave();

 private:
  explicit nccl_communicator(std::shared_ptr<detail::nccl_rank> state);

  std::shared_ptr<detail::nccl_rank> state_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_NCCL_HPP
