// SPDX-License-Identifier: Apache-2.0
// The request to end that launchers send, and an end to calls of MPI that cannot be asked to give up.
#ifndef SHARDPLAN_RUNTIME_ENGINE_MPI_SIGNALS_HPP
#define SHARDPLAN_RUNTIME_ENGINE_MPI_SIGNALS_HPP

#include <chrono>

namespace shardplan::runtime::detail {

/// From now on SIGTERM is noted, and acted on where the rank waits; it leaves a time_limit half a second at most. The
/// second one ends the process.
void note_requests_to_end();
bool told_to_end();

/// While it lives, the process has so long: then it writes the text to standard error and ends with status 3. One at
/// a time.
class time_limit {
 public:
  /// `text` must outlive it; null writes nothing.
  time_limit(std::chrono::milliseconds limit, const char* text);
  ~time_limit();
  time_limit(const time_limit&) = delete;
  time_limit& operator=(const time_limit&) = delete;
};

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_MPI_SIGNALS_HPP
