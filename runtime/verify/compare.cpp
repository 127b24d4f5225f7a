// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <shardplan/parameters.hpp>

namespace shardplan::runtime {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

constexpr std::string_view prefixes[] = {"grad.", "parameter."};

/// Every tensor of either side, by name: one that a side has not is not equal.
template <class T>
void compare_named(comparison& out, std::string_view prefix, const std::map<std::string, std::vector<T>>& ours,
                   const std::map<std::string, std::vector<T>>& theirs, double limit, double zero_limit,
                   error_measure measure, const std::map<std::string, std::vector<char>>& counts = {}) {
  const auto counts_of = [&](const std::string& name) {
    const auto found = counts.find(name);
    return found == counts.end() ? std::span<const char>() : std::span<const char>(found->second);
  };
  const auto missing = [&](const std::string& name, std::string_view whose) {
    out.tensors.push_back(
        {std::string(prefix) + name, {}, infinity, limit, false, fmt::format("{} has none", whose), {}});
  };
  for (const auto& [name, values] : theirs)
    if (const auto found = ours.find(name); found == ours.end())
      missing(name, "the plan");
    else
      out.tensors.push_back(compare_tensor<T>(std::string(prefix) + name, {static_cast<num>(values.size())},
                                              found->second, values, limit, counts_of(name), 1, zero_limit,
                                              "the plan's", measure));
  for (const auto& [name, values] : ours)
    if (theirs.count(name) == 0) missing(name, "the baseline");
}

}  // namespace

template <class T>
std::string not_finite(std::span<const T> values) {
  const auto at = std::find_if(values.begin(), values.end(), [](T v) { return !std::isfinite(v); });
  if (at == values.end()) return "";
  return fmt::format("value {} is {}", at - values.begin(), std::isnan(*at) ? "nan" : *at > 0 ? "inf" : "-inf");
}

template <class T>
double largest_of(const std::map<std::string, std::vector<T>>& tensors) {
  double largest = 0;
  for (const auto& [name, values] : tensors)
    for (T v : values) largest = std::max(largest, std::abs(static_cast<double>(v)));
  return largest;
}

template <class T>
tensor_comparison compare_tensor(std::string name, std::vector<num> shape, std::span<const T> ours,
                                 std::span<const T> theirs, double limit, std::span<const char> counts, num width,
                                 double zero_limit, std::string_view whose, error_measure measure) {
  tensor_comparison out{std::move(name), std::move(shape), infinity, limit, false, {}, {}};
  if (ours.size() != theirs.size()) {
    out.note = fmt::format("{} values, but the baseline has {}", ours.size(), theirs.size());
    return out;
  }
  for (const auto& [owner, values] : {std::pair(whose, ours), std::pair(std::string_view("the baseline's"), theirs)})
    if (const std::string what = not_finite(values); !what.empty()) {
      out.note = fmt::format("{} {}", owner, what);
      return out;
    }

  double difference = 0, largest = 0, difference_squares = 0, squares = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (!counts.empty() && counts[i / static_cast<std::size_t>(width)] == 0) continue;
    const double a = static_cast<double>(ours[i]), b = static_cast<double>(theirs[i]);
    difference = std::max(difference, std::abs(a - b));
    largest = std::max(largest, std::abs(b));
    difference_squares += (a - b) * (a - b), squares += b * b;
  }
  if (largest <= zero_limit * (cancelled_share / zero_share)) {
    out.error = difference;
    out.limit = zero_limit;
  } else {
    out.error =
        measure == error_measure::largest ? difference / largest : std::sqrt(difference_squares) / std::sqrt(squares);
  }
  out.equal = out.error <= out.limit;
  return out;
}

template <class T, class Stored>
comparison compare(const gathered_result<T>& ours, const baseline_result<T>& theirs, std::span<const char> real,
                   std::optional<double> given_limit) {
  const double limit = given_limit.value_or(output_limit<Stored>);
  const std::vector<num> rows{theirs.rows, theirs.length}, whole{theirs.rows, theirs.length, theirs.vocab};
  const double our_items = static_cast<double>(ours.num_items), their_items = static_cast<double>(theirs.num_items);
  comparison out;
  const auto add_outputs = [&](const char* name, const std::vector<num>& shape, const std::vector<T>& a,
                               const std::vector<T>& b, num width) {
    out.tensors.push_back(
        compare_tensor<T>(name, shape, a, b, limit, real, width, 0, "the plan's", measure_of<Stored>));
  };
  add_outputs("logits", whole, ours.logits, theirs.logits, theirs.vocab);
  add_outputs("token_loss", rows, ours.token_loss, theirs.token_loss, 1);
  out.tensors.push_back(compare_tensor<double>("loss", {}, {&ours.loss, 1}, {&theirs.loss, 1}, limit));
  out.tensors.push_back(compare_tensor<double>("num_items", {}, {&our_items, 1}, {&their_items, 1}, 0));
  const double wide = given_limit.value_or(gradient_limit<Stored>);
  const auto add_number = [&](const char* name, const double& a, const double& b, double most) {
    out.tensors.push_back(compare_tensor<double>(name, {}, {&a, 1}, {&b, 1}, most));
  };
  if (theirs.has_balance_loss) add_number("balance_loss", ours.balance_loss, theirs.balance_loss, limit);
  if (!theirs.step_losses.empty())
    out.tensors.push_back(compare_tensor<double>("step_losses", {static_cast<num>(theirs.step_losses.size())},
                                                 ours.step_losses, theirs.step_losses, wide));
  const bool trained = !theirs.gradients.empty() || !theirs.step_losses.empty();
  if (trained) add_number("gradient_norm", ours.gradient_norm, theirs.gradient_norm, wide);
  const double zero_limit = zero_share * largest_of(theirs.gradients);
  if (!theirs.gradients.empty())
    compare_named(out, prefixes[0], ours.gradients, theirs.gradients, wide, zero_limit, measure_of<Stored>);
  if (!theirs.step_losses.empty())
    compare_named(out, prefixes[1], ours.parameters, theirs.parameters, wide, 0, measure_of<Stored>,
                  std::is_same_v<T, double> ? std::map<std::string, std::vector<char>>{} : theirs.steady);
  out.equal = std::all_of(out.tensors.begin(), out.tensors.end(), [](const auto& t) { return t.equal; });

  const auto zero = [](const auto& values) {
    return std::all_of(values.begin(), values.end(), [](T v) { return v == 0; });
  };
  const auto nothing = [&](const char* what) {
    out.equal = false;
    out.note = fmt::format("every {} of the baseline is zero: nothing was compared", what);
  };
  if (!out.equal || theirs.num_items == 0) return out;
  if (zero(theirs.logits) && zero(theirs.token_loss)) nothing("output");
  if (trained && theirs.gradient_norm == 0) nothing("gradient");
  return out;
}

std::map<std::string, std::vector<num>> parameter_shapes(const model_spec& model) {
  std::map<std::string, std::vector<num>> out;
  for_each_parameter(model, [&](const parameter& p) {
    out[std::string(name_of(p).view())] = {p.shape.begin(), p.shape.end()};
  });
  return out;
}

void set_shapes(comparison& c, const model_spec& model) {
  const auto shapes = parameter_shapes(model);
  for (tensor_comparison& t : c.tensors)
    for (std::string_view prefix : prefixes)
      if (t.name.starts_with(prefix))
        if (const auto found = shapes.find(t.name.substr(prefix.size())); found != shapes.end())
          t.shape = found->second;
}

template <class T>
replayed_choices choices_to_replay(const baseline_result<T>& theirs, double margin) {
  replayed_choices out;
  const auto tokens = static_cast<std::size_t>(theirs.rows * theirs.length);
  const auto add_step = [&](const std::vector<layer_routing>& routing) {
    expert_choices& step = out.choices.emplace_back(expert_choices{theirs.rows, theirs.length, 0, {}});
    for (const layer_routing& layer : routing) {
      const std::size_t k = layer.experts.size() / tokens;
      step.per_token = static_cast<num>(k);
      for (std::size_t t = 0; t < tokens; ++t) {
        const bool close = layer.margins[t] < margin;
        out.tokens += close ? 1 : 0;
        for (std::size_t i = 0; i < k; ++i) step.experts.push_back(close ? layer.experts[t * k + i] : -1);
      }
      out.total += static_cast<num>(tokens);
    }
  };
  add_step(theirs.routing);
  for (const std::vector<layer_routing>& routing : theirs.later_routing) add_step(routing);
  if (out.tokens == 0) out.choices.clear();
  return out;
}

#define SHARDPLAN_FOR_TYPE(T)                                                                                      \
  template std::string not_finite(std::span<const T>);                                                             \
  template double largest_of(const std::map<std::string, std::vector<T>>&);                                        \
  template tensor_comparison compare_tensor(std::string, std::vector<num>, std::span<const T>, std::span<const T>, \
                                            double, std::span<const char>, num, double, std::string_view,          \
                                            error_measure);                                                        \
  template comparison compare(const gathered_result<T>&, const baseline_result<T>&, std::span<const char>,         \
                              std::optional<double>);                                                              \
  template replayed_choices choices_to_replay(const baseline_result<T>&, double)
SHARDPLAN_FOR_TYPE(float);
SHARDPLAN_FOR_TYPE(double);
#undef SHARDPLAN_FOR_TYPE
template comparison compare<float, bf16>(const gathered_result<float>&, const baseline_result<float>&,
                                         std::span<const char>, std::optional<double>);

}  // namespace shardplan::runtime
