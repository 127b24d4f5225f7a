// SPDX-License-Identifier: Apache-2.0
// The three ways the runtime can fail, each of which the command line turns into its exit code; and what a rank is
// left by when another has failed.
#ifndef SHARDPLAN_RUNTIME_ERROR_HPP
#define SHARDPLAN_RUNTIME_ERROR_HPP

#include <stdexcept>  // runtime_error

namespace shardplan::runtime {

/// Bad usage or bad input; the text names the file, the field and the value.
class input_error : public std::runtime_error {
 public:
  static constexpr int exit_code = 2;
  using std::runtime_error::runtime_error;
};

/// The answer is no: a plan that is illegal, or results that are not equal.
class plan_error : public std::runtime_error {
 public:
  static constexpr int exit_code = 1;
  using std::runtime_error::runtime_error;
};

/// The engine failed: a rank died, returned early or stalled, or ranks disagree about what they communicate.
class engine_error : public std::runtime_error {
 public:
  static constexpr int exit_code = 3;
  using std::runtime_error::runtime_error;
};

/// Thrown inside a rank when the run has failed elsewhere. Not a std::exception, so that a handler of ordinary errors
/// lets it pass; a rank that catches it all the same meets it again at its next collective.
struct run_aborted {};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ERROR_HPP
