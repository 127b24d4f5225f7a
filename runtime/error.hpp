// SPDX-License-Identifier: Apache-2.0
// The three ways the runtime can fail; the command line turns each into its exit code.
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

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ERROR_HPP
