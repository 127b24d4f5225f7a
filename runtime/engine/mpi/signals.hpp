// SPDX-License-Identifier: Apache-2.0
// The request to end that launchers send, and an end to calls of MPI that cannot be asked to give up.
#ifndef SHARDPLAN_RUNTIME_ENGINE_MPI_SIGNALS_HPP
#define SHARDPLAN_RUNTIME_ENGINE_MPI_SIGNALS_HPP

#include <chrono>

namespace shardplan::runtime::detail {

/// From now on SIGTERM is noted, and acted on where the rank waits; the second one ends
/// the process.
void note_requests_to_end();
bool told_to_end();

/// How a time_limit ends the process: with this status, the text written to standard error; null writes nothing.
struct limit_end {
  const char* text;  ///< must outlive the limit
  int status;
};

/// While it lives, the process has so long; or half a second from a request to end on. One at a time.
class time_limit {
 public:
  time_limit(std::chrono::milliseconds limit, const limit_end& at_limit, const limit_end& at_request);
  ~time_limit();
  time_limit(const time_limit&) = delete;
  time_limit& operator=(const time_limit&) = delete;
};

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_MPI_SIGNALS_HPP
