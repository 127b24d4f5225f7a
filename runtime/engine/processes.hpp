// SPDX-License-Identifier: Apache-2.0
// What ranks that are processes need beside the communicator: to tell each other how they ended, also when one of them
// is lost.
#ifndef SHARDPLAN_RUNTIME_ENGINE_PROCESSES_HPP
#define SHARDPLAN_RUNTIME_ENGINE_PROCESSES_HPP

#include <chrono>  // milliseconds
#include <optional>
#include <string>

#include "runtime/engine/communicator.hpp"

namespace shardplan::runtime {

/// How one process's part of the work ended.
struct verdict {
  int exit_code = 0;
  bool own = true;       ///< false when it only heard of the failure of another
  bool stays = true;     ///< false when it does not wait for the last word, nor comes to an orderly end
  std::string report{};  ///< what the process has to say, for whoever prints it
  std::string wait{};    ///< "rank 2 waits for rank 3 in ...", where a failure ended it
};

/// The end of all: the exit code of all ranks, and whether all have told their verdict, so that none is missing.
struct last_word {
  int exit_code = 0;
  bool complete = true;
};

/// Waits of these never throw, and are over when the patience is.
template <class C>
concept ProcessCommunicator = Communicator<C> &&
    requires(C& c, const C& fixed, const verdict& mine, num rank, last_word word, std::chrono::milliseconds patience) {
  { fixed.timeout() } -> std::same_as<std::chrono::milliseconds>;  // of each single wait
  c.tell(mine, patience);  // to all others, in so long; a failure ends their waits by run_aborted
  { c.verdict_of(rank) } -> std::same_as<std::optional<verdict>>;  // as far as it has come here
  c.wait_for_verdicts(patience);                                   // of all others, but not longer
  c.tell_last(word, patience);
  { c.wait_for_last(patience) } -> std::same_as<std::optional<last_word>>;
  { fixed.present_wait() } -> std::same_as<std::string>;  // verdict::wait, of the wait that was not ended in order
  { fixed.told_to_end() } -> std::same_as<bool>;          // by a signal
  c.require_all_received();  // waits for all; engine_error when a message was never received
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_PROCESSES_HPP
