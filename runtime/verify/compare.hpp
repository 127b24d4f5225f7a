// SPDX-License-Identifier: Apache-2.0
// When two results are equal: err = max|a - b| / max|b| over real positions, for every tensor, within a limit.
#ifndef SHARDPLAN_RUNTIME_VERIFY_COMPARE_HPP
#define SHARDPLAN_RUNTIME_VERIFY_COMPARE_HPP

#include <map>
#include <optional>
#include <shardplan/model.hpp>
#include <string>
#include <type_traits>

#include "runtime/real.hpp"
#include "runtime/sharded/results.hpp"
#include "runtime/verify/baseline.hpp"

namespace shardplan::runtime {

/// One value each for f64, f32 and bf16.
template <class T>
constexpr double by_type(double f64, double f32, double bf16_too) {
  return std::is_same_v<T, double> ? f64 : std::is_same_v<T, float> ? f32 : bf16_too;
}

/// What a difference is taken of, and divided by the same of the baseline.
enum class error_measure {
  largest,     ///< the largest absolute value
  mean_square  ///< the root of the mean square
};

/// In bf16 the worst of many values of a correct run is as far off as those of a wrong one; their mean is not.
template <class T>
inline constexpr error_measure measure_of =
    std::is_same_v<T, bf16> ? error_measure::mean_square : error_measure::largest;

/// The largest error of an output that counts as equal, by what activations are stored in.
template <class T>
inline constexpr double output_limit = by_type<T>(1e-10, 2e-5, 3e-2);

/// The same of a gradient, and of a parameter after steps. In bf16 the gradients of norms and routers are sums that
/// mostly cancel: after eight layers they are off by up to 1e-1, and outputs by 2e-2, over sixty random inputs.
template <class T>
inline constexpr double gradient_limit = by_type<T>(1e-10, 1e-4, 2e-1);

/// Where all of the baseline's gradient is zero (an expert without tokens), the other side reaches at most this share
/// of the largest gradient. Sums that cancel (a router whose experts are all chosen equally often) leave rounding
/// errors in place of zero: so does a gradient below `cancelled_share` of the largest count as one.
inline constexpr double zero_share = 1e-10, cancelled_share = 1e-16;

/// max|x| over all tensors.
template <class T>
double largest_of(const std::map<std::string, std::vector<T>>& tensors);

struct tensor_comparison {
  std::string name;
  std::vector<num> shape;
  double error = 0;  ///< infinite where something is not a finite number, or the shapes differ
  double limit = 0;
  bool equal = false;
  std::string note;                ///< why not, where the error alone does not say it
  std::optional<double> factor{};  ///< by which all of it is off, where there is one
};

struct comparison {
  bool equal = false;
  std::vector<tensor_comparison> tensors;
  std::string note;  ///< why the whole is not equal although every tensor is
};

/// "value 3 is nan" of the first value that is not finite; empty when there is none.
template <class T>
std::string not_finite(std::span<const T> values);

/// Compares values over the places where `counts` is not 0 (everywhere when it is empty); `counts` has one entry for
/// every `width` values. A value that is not finite fails wherever it stands. Where all of `theirs` is zero, but for
/// `zero_limit` * cancelled_share / zero_share, the largest of `ours` may reach `zero_limit`. `whose` ours are, for the
/// note.
template <class T>
tensor_comparison compare_tensor(std::string name, std::vector<num> shape, std::span<const T> ours,
                                 std::span<const T> theirs, double limit, std::span<const char> counts = {},
                                 num width = 1, double zero_limit = 0, std::string_view whose = "the plan's",
                                 error_measure measure = error_measure::largest);

/// Compares all outputs, and what the baseline has beside them: gradients as grad.NAME, parameters after steps as
/// parameter.NAME, in single precision where they are steady. `real` as from real_tokens(); `limit` instead of those of
/// `Stored`, what activations are stored in, if given. Results in which nothing is different from zero are not equal,
/// unless there was nothing to predict.
template <class T, class Stored = T>
comparison compare(const gathered_result<T>& ours, const baseline_result<T>& theirs, std::span<const char> real,
                   std::optional<double> limit = {});

/// Shapes of the parameters of a model, by name.
std::map<std::string, std::vector<num>> parameter_shapes(const model_spec& model);
/// Gives the tensors of parameters in `c` their shapes.
void set_shapes(comparison& c, const model_spec& model);

// ---- top-k is discontinuous

/// Below this margin between probabilities, rounding of what activations are stored in may make another choice than the
/// baseline's. In double precision it cannot, at the limits used.
template <class T>
inline constexpr double replay_margin = by_type<T>(0, 1e-4, 2e-2);

struct replayed_choices {
  std::vector<expert_choices> choices;  ///< of each step; empty when there is nothing to replay in any
  num tokens = 0, total = 0;            ///< (token, MoE layer) pairs that are replayed, and all, over all steps
};

/// The baseline's choices, in each of its steps, of the tokens whose margin is then below `margin`.
template <class T>
replayed_choices choices_to_replay(const baseline_result<T>& theirs, double margin);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_VERIFY_COMPARE_HPP
