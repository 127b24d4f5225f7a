// SPDX-License-Identifier: Apache-2.0
// Letters between the processes of one MPI communicator: sending never waits, and a wait ends in time whatever became
// of the others. The data of letters belongs to the mail, so that a failure can leave a transfer behind at any moment.
#ifndef SHARDPLAN_RUNTIME_ENGINE_MPI_MAIL_HPP
#define SHARDPLAN_RUNTIME_ENGINE_MPI_MAIL_HPP

#include <mpi.h>

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <tuple>

#include "runtime/engine/mpi/letter.hpp"
#include "runtime/engine/mpi/options.hpp"

namespace shardplan::runtime::detail {

/// engine_error naming the rank and what MPI says, unless `code` is MPI_SUCCESS.
void require_success(int code, num rank, const char* call);

class mpi_mail {
 public:
  /// `world` belongs to the mail alone. Its errors must be returned, not fatal.
  mpi_mail(MPI_Comm world, const mpi_options& options);
  mpi_mail(const mpi_mail&) = delete;
  mpi_mail& operator=(const mpi_mail&) = delete;

  num rank() const { return rank_; }
  num world_size() const { return world_size_; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

  /// What a letter is known by. Letters of one sender with one key are taken in the order they were sent in.
  struct key {
    letter_kind kind{};
    std::uint64_t group = 0;
    num from = 0;       ///< rank
    unsigned axes = 0;  ///< of messages
    phase why{};        ///< of messages
    friend auto operator<=>(const key&, const key&) = default;
  };

  /// Copies the data (`data_size` bytes), and returns. `to` are ranks; the sender may be among them.
  void send(std::span<const num> to, letter what);
  void send(num to, letter what) { send(std::span<const num>(&to, 1), std::move(what)); }
  void send(std::span<const num> to, const std::shared_ptr<bytes>& packed);

  /// The next letter of each key, whole, in the order of `keys`; `call` is what it is waited for in. Throws run_aborted
  /// when another rank has failed; engine_error when an awaited rank has ended, at a signal, or when nothing more of
  /// what is awaited has come within the timeout.
  std::vector<letter> take(std::span<const key> keys, const request& call);

  /// Leaves as a wait does when the run has failed elsewhere or this process was told to end.
  void check();

  // ---- the end

  std::optional<verdict> verdict_of(num rank) const;
  const std::optional<last_word>& last() const { return last_; }
  const std::string& present_wait() const { return present_wait_; }
  /// Goes on with what is under way until `done`, but not longer than `patience`; whether it is done.
  bool go_on_until(const std::function<bool()>& done, std::chrono::milliseconds patience);
  bool all_sent() const { return outgoing_.empty(); }
  /// "" or who left a message behind that nobody received.
  std::string lost_message() const;

 private:
  struct outgoing {
    MPI_Request request;
    std::shared_ptr<bytes> data;
  };
  struct arriving {  // a letter's text
    num from;
    MPI_Request request;
    std::shared_ptr<bytes> text;
  };
  struct incoming {  // a chunk of data of the letter in `queue`'s shared buffer
    MPI_Request request;
    std::shared_ptr<letter> whole;
    num size;
  };

  void post(const std::byte* data, num size, num to, int tag, std::shared_ptr<bytes> owner);
  void poll();
  void deliver(letter l);
  num bytes_missing(std::span<const key> keys) const;
  std::vector<num> absent(std::span<const key> keys) const;
  void wait_for(std::span<const key> keys);

  MPI_Comm world_;
  mpi_options options_;
  num rank_ = 0, world_size_ = 0;
  std::list<outgoing> outgoing_;
  std::list<arriving> arriving_;
  std::list<incoming> incoming_;
  std::map<key, std::deque<std::shared_ptr<letter>>> inbox_;
  std::map<num, verdict> verdicts_;  // by rank
  std::optional<last_word> last_;
  std::string present_wait_;
};

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_MPI_MAIL_HPP
