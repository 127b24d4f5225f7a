// SPDX-License-Identifier: Apache-2.0
// The GPUs of one process, as tests simulate them. An operation that is put on a stream runs when the host must know
// that it has: no sooner, and of several streams in an order that a seed decides, unless events order them.
//
// SHARDPLAN_SIMULATED_GPUS: how many there are, 1 unless it says otherwise; SHARDPLAN_SIMULATED_MEMORY: bytes of each;
// SHARDPLAN_SIMULATED_SEED: of all that a GPU leaves open.
#ifndef SHARDPLAN_TESTS_SIMULATED_GPU_MACHINE_HPP
#define SHARDPLAN_TESTS_SIMULATED_GPU_MACHINE_HPP

#include <cuda_runtime_api.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "tests/simulated_gpu/arena.hpp"

namespace simulated {

/// What became of an attempt to go on with an operation. `moved`: it is not done, but came nearer.
enum class step { done, moved, blocked };
using operation = std::function<step()>;

/// That a stream came to where an event was recorded.
struct mark {
  bool reached = false;
  std::chrono::steady_clock::time_point when;
};

struct queued {
  std::uint64_t number;  // in the order of calls
  operation run;
};

}  // namespace simulated

struct CUstream_st {
  int device = 0;
  bool meets_default = true;  // waits for the default stream, and it for this one
  bool is_default = false;
  bool destroyed = false;
  std::uint64_t priority = 0;
  std::deque<simulated::queued> queue;
};

struct CUevent_st {
  int device = 0;
  bool timed = true;
  std::shared_ptr<simulated::mark> last;  // null until it is recorded
};

namespace simulated {

enum class place { device, pinned, pageable, nowhere };

class machine {
 public:
  /// Never destroyed: streams may outlive main.
  static machine& it();
  machine(const machine&) = delete;
  machine& operator=(const machine&) = delete;

  /// While it is not held, the host may do anything, but not touch the memory of a device.
  class guard {
   public:
    explicit guard(std::mutex& m) : lock_(m) {}
    ~guard() {
      if (lock_.owns_lock()) arena::close_idle();
    }
    guard(const guard&) = delete;
    guard& operator=(const guard&) = delete;
    void unlock() { arena::close_idle(), lock_.unlock(); }
    void lock() { lock_.lock(); }

   private:
    std::unique_lock<std::mutex> lock_;
  };
  guard lock() { return guard(mutex_); }

  // All that follows: pre: locked. What waits lets go of the lock meanwhile.

  int num_devices() const { return static_cast<int>(memory_.size()); }
  arena& memory(int device) { return *memory_.at(static_cast<std::size_t>(device)); }
  arena* memory_of(const void* at);
  int device_of(const void* at) const;  ///< -1: of the host
  /// `nowhere`: addresses of a device that are no allocation.
  place place_of(const void* at, std::size_t bytes) const;
  std::map<const void*, std::size_t>& pinned() { return pinned_; }

  std::uint64_t random() { return random_(); }
  bool by_chance(unsigned one_in) { return random_() % one_in == 0; }

  /// The stream that a call means on this thread's device; null where there is none.
  CUstream_st* find(cudaStream_t stream);
  CUstream_st* create_stream(bool meets_default);
  void destroy(CUstream_st* stream) { stream->destroyed = true, reap(); }
  void enqueue(CUstream_st* stream, operation what);
  /// A mark that is reached when all that is on the stream now has run.
  std::shared_ptr<mark> record(CUstream_st* stream);

  /// Goes on with one operation of one stream; false where none can.
  bool run_one(CUstream_st* preferred = nullptr);
  /// Runs what can run until `done`, and waits where nothing can: another process may let it go on.
  void run_until(guard& held, const std::function<bool()>& done, CUstream_st* preferred = nullptr);
  /// A look at the device: meanwhile some of what waits there may run.
  void pass_time(const std::function<bool()>& done);
  bool is_idle(int device) const;
  void wait_for(guard& held, int device) {
    run_until(held, [&] { return is_idle(device); });
  }
  void wait_for(guard& held, CUstream_st* stream) {
    run_until(
        held, [&] { return stream->queue.empty(); }, stream);
  }

  /// An operation did what ends a GPU's work: every later call says so.
  void fail(const std::string& why);
  bool has_failed() const { return failed_; }

  static int& current_device();
  static cudaError_t& last_error();

 private:
  machine();
  bool may_run(const CUstream_st& stream) const;
  void reap();

  std::mutex mutex_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<arena>> memory_;          // of each device
  std::vector<std::unique_ptr<CUstream_st>> defaults_;  // of each device
  std::vector<std::unique_ptr<CUstream_st>> streams_;   // in the order of creation
  std::map<const void*, std::size_t> pinned_;           // bytes
  std::uint64_t next_number_ = 0;
  bool failed_ = false;
};

/// Says on standard error what a call did wrong: CUDA's errors have no words for it.
void complain(const std::string& what);
/// A number of the environment.
std::uint64_t variable(const char* name, std::uint64_t otherwise);

/// Remembers what a call of the runtime has to report, as cudaGetLastError does.
inline cudaError_t report(cudaError_t code) {
  if (code != cudaSuccess) machine::last_error() = code;
  return code;
}

}  // namespace simulated
#endif  // SHARDPLAN_TESTS_SIMULATED_GPU_MACHINE_HPP
