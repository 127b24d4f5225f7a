// SPDX-License-Identifier: Apache-2.0
// When two results are equal: err = max|a - b| / max|b| over real positions, for every tensor, within a limit.
#ifndef SHARDPLAN_RUNTIME_VERIFY_COMPARE_HPP
#define SHARDPLAN_RUNTIME_VERIFY_COMPARE_HPP

#include <optional>
#include <string>
#include <type_traits>

#include "runtime/sharded/results.hpp"
#include "runtime/verify/baseline.hpp"

namespace shardplan::runtime {

/// The largest error of an output that counts as equal.
template <class T>
inline constexpr double output_limit = std::is_same_v<T, double> ? 1e-10 : 2e-5;

struct tensor_comparison {
  std::string name;
  std::vector<num> shape;
  double error = 0;  ///< infinite where something is not a finite number, or the shapes differ
  double limit = 0;
  bool equal = false;
  std::string note;  ///< why not, where the error alone does not say it
};

struct comparison {
  bool equal = false;
  std::vector<tensor_comparison> tensors;
  std::string note;  ///< why the whole is not equal although every tensor is
};

/// Compares values over the places where `counts` is not 0 (everywhere when it is empty); `counts` has one entry for
/// every `width` values. A value that is not finite fails wherever it stands. Where all of `theirs` is zero, `ours` may
/// reach `zero_limit`.
template <class T>
tensor_comparison compare_tensor(std::string name, std::vector<num> shape, std::span<const T> ours,
                                 std::span<const T> theirs, double limit, std::span<const char> counts = {},
                                 num width = 1, double zero_limit = 0);

/// Compares all outputs. `real` as from real_tokens(); `limit` instead of output_limit<T>, if given. Results in which
/// nothing is different from zero are not equal, unless there was nothing to predict.
template <class T>
comparison compare(const gathered_result<T>& ours, const baseline_result<T>& theirs, std::span<const char> real,
                   std::optional<double> limit = {});

// ---- top-k is discontinuous

/// Below this margin between probabilities, rounding of the type may make another choice than the baseline's. In
/// double precision it cannot, at the limits used.
template <class T>
inline constexpr double replay_margin = std::is_same_v<T, double> ? 0 : 1e-4;

struct replayed_choices {
  expert_choices choices;     ///< empty when there is nothing to replay
  num tokens = 0, total = 0;  ///< (token, MoE layer) pairs that are replayed, and all
};

/// The baseline's choices of the tokens whose margin is below `margin`.
template <class T>
replayed_choices choices_to_replay(const baseline_result<T>& theirs, double margin);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_VERIFY_COMPARE_HPP
