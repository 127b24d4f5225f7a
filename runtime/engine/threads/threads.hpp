// SPDX-License-Identifier: Apache-2.0
// The engine of threads: every rank is a thread of this process, and members of a group read each other's buffers
// where they lie. Waits sleep; the thread that called run() watches over them.
#ifndef SHARDPLAN_RUNTIME_ENGINE_THREADS_THREADS_HPP
#define SHARDPLAN_RUNTIME_ENGINE_THREADS_THREADS_HPP

#include <chrono>      // milliseconds
#include <functional>  // function
#include <memory>      // shared_ptr
#include <vector>

#include "runtime/engine/basic_communicator.hpp"
#include "runtime/error.hpp"

namespace shardplan::runtime {

namespace detail {
struct thread_world;
struct thread_membership;
}  // namespace detail

/// Handle of a group; valid as long as its communicator.
class thread_group {
 public:
  explicit thread_group(detail::thread_membership* membership) : membership_(membership) {}
  num size() const;
  num index() const;
  num member(num i) const;
  axis_set axes() const;

 private:
  friend class thread_engine;
  detail::thread_membership* membership_;  // used by the rank's own thread alone
};

/// One rank's end of the engine; used through thread_communicator.
class thread_engine {
 public:
  using group_type = thread_group;

  thread_engine(std::shared_ptr<detail::thread_world> world, num rank);
  thread_engine(thread_engine&&) noexcept;
  ~thread_engine();
  num rank() const { return rank_; }
  num world_size() const;
  thread_group group(const rank_group& ranks, axis_set axes);
  void check_abort() const;
  void perform(const thread_group& g, const request& r);

 private:
  std::shared_ptr<detail::thread_world> world_;
  num rank_;
  std::vector<std::unique_ptr<detail::thread_membership>> groups_;  // few: found by looking at each
};

using thread_communicator = basic_communicator<thread_engine>;

/// Runs `body` once per rank, each in its own thread, and returns what each rank recorded (world_size), when all have
/// returned. `timeout` bounds each single wait for another rank, not the run.
///
/// When a rank throws, all ranks that wait are woken and leave by run_aborted, the threads are joined, and run() throws
///   - input_error or plan_error "rank 3: <message>", when that is what the rank threw,
///   - engine_error "rank 3: <message>" for anything else.
/// run() also throws engine_error when ranks disagree about a collective, when a rank returns while others wait for
/// it, when a wait exceeds the timeout (the text names the absent ranks and what the others wait in), when a message
/// was never received, and when threads cannot be started; input_error for a world or timeout below 1.
///
/// A thread stuck outside the engine cannot be stopped. run() waits for such a rank at most `timeout` after a failure
/// (250 ms when it is the rank that the timeout is about), then detaches it and throws. What the engine shares, `body`
/// included, lives until that thread ends; what `body` refers to is the caller's to keep alive.
std::vector<recorder> run(num world_size, std::chrono::milliseconds timeout,
                          std::function<void(thread_communicator&)> body);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_THREADS_THREADS_HPP
