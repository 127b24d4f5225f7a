// SPDX-License-Identifier: Apache-2.0
// The engine of processes that MPI connects: one rank each, whatever launcher started them.
//
// A group is known to its members by the ranks in it, and made by none but the rank that asks: MPI's own constructors
// of communicators wait for all members, and cannot be told when to give up. For the same reason no collective of MPI
// is called; each is made of messages, in the order that gives the bits of the engine of threads.
#ifndef SHARDPLAN_RUNTIME_ENGINE_MPI_MPI_HPP
#define SHARDPLAN_RUNTIME_ENGINE_MPI_MPI_HPP

#include <memory>  // shared_ptr, unique_ptr
#include <vector>

#include "runtime/engine/basic_communicator.hpp"
#include "runtime/engine/mpi/options.hpp"
#include "runtime/engine/processes.hpp"
#include "runtime/error.hpp"

namespace shardplan::runtime {

namespace detail {
class mpi_mail;
struct mpi_membership;
}  // namespace detail

/// Handle of a group; valid as long as its communicator.
class mpi_group {
 public:
  explicit mpi_group(const detail::mpi_membership* membership) : membership_(membership) {}
  num size() const;
  num index() const;
  num member(num i) const;
  axis_set axes() const;

 private:
  friend class mpi_engine;
  const detail::mpi_membership* membership_;
};

/// This process's end of the engine; used through mpi_communicator.
class mpi_engine {
 public:
  using group_type = mpi_group;

  explicit mpi_engine(std::shared_ptr<detail::mpi_mail> mail);
  mpi_engine(mpi_engine&&) noexcept;
  ~mpi_engine();
  num rank() const;
  num world_size() const;
  mpi_group group(const rank_group& ranks, axis_set axes);
  void check_abort() const;
  void perform(const mpi_group& g, const request& r);

 private:
  std::shared_ptr<detail::mpi_mail> mail_;
  std::vector<std::unique_ptr<detail::mpi_membership>> groups_;  // few: found by looking at each
};

/// What a rank communicates with; see processes.hpp for what it adds.
class mpi_communicator : public basic_communicator<mpi_engine> {
 public:
  explicit mpi_communicator(std::shared_ptr<detail::mpi_mail> mail);

  std::chrono::milliseconds timeout() const;
  void tell(const verdict& mine, std::chrono::milliseconds patience);
  std::optional<verdict> verdict_of(num rank) const;
  void wait_for_verdicts(std::chrono::milliseconds patience);
  void tell_last(last_word word, std::chrono::milliseconds patience);
  std::optional<last_word> wait_for_last(std::chrono::milliseconds patience);
  std::string present_wait() const;
  bool told_to_end() const;
  void require_all_received();

 private:
  std::vector<num> others() const;

  std::shared_ptr<detail::mpi_mail> mail_;
};

/// MPI in this process, begun by the constructor. Only the thread that made it may use it.
class mpi_process {
 public:
  /// Ends the process with status 3, with a message, when not all ranks come within the timeout.
  explicit mpi_process(const mpi_options& options);
  mpi_process(const mpi_process&) = delete;
  mpi_process& operator=(const mpi_process&) = delete;

  mpi_communicator& world() { return *world_; }
  /// The orderly end, of all ranks; nothing may be communicated afterwards. Ends the process as the constructor does,
  /// and with this exit code, without a word, soon after SIGTERM.
  void finish(int exit_code);
  /// Ends this process now, and lets the launcher end the others.
  [[noreturn]] void abort(int exit_code);

 private:
  mpi_options options_;
  std::unique_ptr<mpi_communicator> world_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_MPI_MPI_HPP
