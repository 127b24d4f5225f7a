// SPDX-License-Identifier: Apache-2.0
// Letters between ranks, and every wait of the engine: it ends in time whatever became of the others.
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_MAIL_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_MAIL_HPP

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "runtime/engine/nccl/letter.hpp"
#include "runtime/engine/nccl/rendezvous.hpp"

namespace shardplan::runtime::detail {

class tcp_mail {
 public:
  /// As rendezvous.
  tcp_mail(const process_place& place, std::chrono::milliseconds timeout);

  num rank() const { return line_.rank(); }
  num world_size() const { return line_.world_size(); }
  std::chrono::milliseconds timeout() const { return timeout_; }

  /// To ranks other than this one, or `everybody` else; returns at once.
  void send(num to, const letter& what) { line_.send(to, pack(what)); }
  void send(const std::vector<num>& ranks, const letter& what);

  /// The next letter of each of `from`, in that order, which is waited for in `call`. collective_error as wait().
  std::vector<letter> take(const letter_address& address, const std::vector<num>& from, const request& call);
  /// Takes a letter that is there; whether there was one.
  bool take_if_there(const letter_address& address, num from);

  /// Waits until `done`, and meanwhile calls what `on_progress` was given. `awaited`: the ranks that it is up to, as
  /// far as known; `they_come`: whether they have yet to come, so that one that has ended never will. run_aborted when
  /// another rank has failed; collective_error when the process of a rank is lost, when one has ended that has yet to
  /// come, and after the timeout. present_wait() says what was waited for.
  void wait(const std::function<bool()>& done, const std::function<std::vector<num>()>& awaited, bool they_come,
            const request& call);
  void on_progress(std::function<void()> what) { progress_ = std::move(what); }
  /// Leaves as a wait does when another rank has failed or is lost.
  void check();
  /// Whether another rank tells of its failure within the patience.
  bool hears_of_failure(std::chrono::milliseconds patience);

  // ---- the end

  std::optional<verdict> verdict_of(num rank) const;
  const std::optional<last_word>& last() const { return last_; }
  const std::string& present_wait() const { return present_wait_; }
  /// Reads what comes until `done` or nobody is left to wait for, but not longer than `patience`.
  void go_on_until(const std::function<bool()>& done, std::chrono::milliseconds patience);
  bool flush(std::chrono::milliseconds patience) { return line_.flush(patience); }
  void close() { line_.close(); }
  bool is_lost(num rank) const { return lost_.contains(rank); }
  /// "" or who left a message behind that nobody received.
  std::string lost_message() const;

 private:
  void poll(std::chrono::milliseconds wait);
  bool another_failed() const;
  void fail_when_hopeless(const std::vector<num>& awaited, bool they_come) const;

  rendezvous line_;
  std::chrono::milliseconds timeout_;
  std::map<std::pair<letter_address, num>, std::deque<letter>> inbox_;
  std::map<num, verdict> verdicts_;  // by rank
  std::set<num> lost_;               // ranks whose processes are gone
  std::optional<last_word> last_;
  std::function<void()> progress_;
  std::string present_wait_;
};

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_MAIL_HPP
