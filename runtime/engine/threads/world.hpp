// SPDX-License-Identifier: Apache-2.0
// What the ranks of a run share. Owned by every thread of the run, so that a thread that had to be left behind still
// finds it. Locks are per rank and per inbox; a collective touches only its group's atomics.
#ifndef SHARDPLAN_RUNTIME_ENGINE_THREADS_WORLD_HPP
#define SHARDPLAN_RUNTIME_ENGINE_THREADS_WORLD_HPP

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "runtime/engine/threads/threads.hpp"

namespace shardplan::runtime::detail {

/// A word to sleep on. It changes at every event, and its lowest bit says that the run is aborted.
class wait_word {
 public:
  using value = std::uint32_t;
  static bool aborted(value v) { return (v & 1u) != 0; }
  static bool same_event(value a, value b) { return (a | 1u) == (b | 1u); }

  value read() const { return word_.load(); }
  void signal() {
    word_.fetch_add(2);
    word_.notify_all();
  }
  void abort() {
    word_.fetch_or(1);
    word_.notify_all();
  }
  /// Sleeps until the next event after `seen`, or abort, and returns the word then.
  value wait_beyond(value seen) const {
    value now = read();
    for (; same_event(now, seen) && !aborted(now); now = read()) word_.wait(now);
    return now;
  }

 private:
  std::atomic<value> word_{0};
};

/// A call as the other members of the group see it.
struct published_call {
  static constexpr std::size_t capacity = 512;
  request call;
  bool copied = false;  ///< `call` refers to `storage`, not to the caller's buffers, which are then free at once
  alignas(8) std::byte storage[capacity];
};

struct message {
  request call;  ///< of the sender; its buffers are gone
  std::vector<std::byte> data;
};

/// Messages to one member that it has not received yet.
struct inbox {
  using key = std::tuple<unsigned, phase, num>;  // axes, why it is sent, sending member
  std::mutex mutex;
  std::map<key, std::deque<message>> messages;
  bool waiting = false;  ///< the owner waits for a message of `awaited`
  key awaited{};
  wait_word arrived;
};

struct alignas(64) member_slot {
  std::atomic<std::uint64_t> arrivals{0};  ///< barriers that the member has come to; written by it alone
  std::uint64_t num_calls = 0;             ///< the member's own
  /// By turns: a member that publishes call k + 2 has seen all others come to call k + 1, so none reads call k.
  published_call calls[2];
  inbox box;
};

struct shared_group {
  explicit shared_group(std::vector<num> members)
      : ranks(std::move(members)), slots(std::make_unique<member_slot[]>(ranks.size())) {}
  num size() const { return static_cast<num>(ranks.size()); }
  member_slot& slot(num i) const { return slots[static_cast<std::size_t>(i)]; }

  const std::vector<num> ranks;
  const std::unique_ptr<member_slot[]> slots;
  std::atomic<num> num_arrived{0};
  wait_word generation;
  /// Members that read the others' buffers right now. A member whose buffers are published may leave the collective
  /// early (on abort) only when there is none.
  std::atomic<int> num_readers{0};
};

/// How one rank knows a group.
struct thread_membership {
  rank_group asked;
  axis_set axes;
  num index = 0;
  shared_group* group = nullptr;
  // Of the call in progress, by member: what was published, and its input. Here to be allocated once.
  std::vector<const request*> calls;
  std::vector<const std::byte*> inputs;
};

/// Where a rank is, for the watch. `mutex` guards the plain members.
struct alignas(64) rank_status {
  std::mutex mutex;
  request call;                         ///< the latest, without its buffers
  const shared_group* group = nullptr;  ///< of that call; null before the first
  num index = 0;                        ///< in that group
  std::atomic<std::int64_t> since{0};   ///< when the present wait began, steady clock in ns; 0: does not wait
  std::atomic<bool> returned{false};    ///< its body has come to its end
  bool ended = false;                   ///< its thread is done with the world; guarded by thread_world::mutex
};

struct thread_world {
  enum class outcome : unsigned char { good, input, plan, engine, stalled };

  thread_world(num world_size, std::chrono::milliseconds wait_timeout, std::function<void(thread_communicator&)> what)
      : size(world_size),
        timeout(wait_timeout),
        body(std::move(what)),
        statuses(std::make_unique<rank_status[]>(static_cast<std::size_t>(world_size))),
        records(static_cast<std::size_t>(world_size)) {}

  rank_status& status(num rank) const { return statuses[static_cast<std::size_t>(rank)]; }
  /// The group with these members, made by whoever asks first. run_aborted when it is too late.
  shared_group& find_group(const std::vector<num>& ranks);
  /// Wakes everybody for good.
  void abort();
  /// Notes how the run failed, the first time, and aborts it.
  void fail(outcome how, const std::string& why);
  /// Looks for a wait that can not or should not end, and fails the run.
  void watch();
  /// "" or who left a message behind that nobody received.
  std::string lost_messages();

  const num size;
  const std::chrono::milliseconds timeout;
  const std::function<void(thread_communicator&)> body;
  const std::unique_ptr<rank_status[]> statuses;
  std::atomic<bool> aborted{false};

  std::mutex groups_mutex;
  std::map<std::vector<num>, std::unique_ptr<shared_group>> groups;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  num num_ended = 0;
  outcome how = outcome::good;
  std::string why;
  std::vector<recorder> records;
};

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_THREADS_WORLD_HPP
