// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardplan::runtime {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

template <class T>
std::string not_finite(std::string_view whose, std::span<const T> values) {
  const auto at = std::find_if(values.begin(), values.end(), [](T v) { return !std::isfinite(v); });
  return at == values.end() ? "" : fmt::format("{} value {} is {}", whose, at - values.begin(), *at);
}

}  // namespace

template <class T>
tensor_comparison compare_tensor(std::string name, std::vector<num> shape, std::span<const T> ours,
                                 std::span<const T> theirs, double limit, std::span<const char> counts, num width,
                                 double zero_limit) {
  tensor_comparison out{std::move(name), std::move(shape), infinity, limit, false, {}};
  if (ours.size() != theirs.size()) {
    out.note = fmt::format("{} values, but the baseline has {}", ours.size(), theirs.size());
    return out;
  }
  out.note = not_finite("the plan's", ours);
  if (out.note.empty()) out.note = not_finite("the baseline's", theirs);
  if (!out.note.empty()) return out;

  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (!counts.empty() && counts[i / static_cast<std::size_t>(width)] == 0) continue;
    difference = std::max(difference, std::abs(static_cast<double>(ours[i]) - static_cast<double>(theirs[i])));
    largest = std::max(largest, std::abs(static_cast<double>(theirs[i])));
  }
  if (largest == 0) {
    out.error = difference;
    out.limit = zero_limit;
  } else {
    out.error = difference / largest;
  }
  out.equal = out.error <= out.limit;
  return out;
}

template <class T>
comparison compare(const gathered_result<T>& ours, const baseline_result<T>& theirs, std::span<const char> real,
                   std::optional<double> given_limit) {
  const double limit = given_limit.value_or(output_limit<T>);
  const std::vector<num> rows{theirs.rows, theirs.length}, whole{theirs.rows, theirs.length, theirs.vocab};
  const double our_items = static_cast<double>(ours.num_items), their_items = static_cast<double>(theirs.num_items);
  comparison out;
  out.tensors.push_back(compare_tensor<T>("logits", whole, ours.logits, theirs.logits, limit, real, theirs.vocab));
  out.tensors.push_back(compare_tensor<T>("token_loss", rows, ours.token_loss, theirs.token_loss, limit, real));
  out.tensors.push_back(compare_tensor<double>("loss", {}, {&ours.loss, 1}, {&theirs.loss, 1}, limit));
  out.tensors.push_back(compare_tensor<double>("num_items", {}, {&our_items, 1}, {&their_items, 1}, 0));
  out.equal = std::all_of(out.tensors.begin(), out.tensors.end(), [](const auto& t) { return t.equal; });

  const auto zero = [](const auto& values) {
    return std::all_of(values.begin(), values.end(), [](T v) { return v == 0; });
  };
  if (out.equal && theirs.num_items > 0 && zero(theirs.logits) && zero(theirs.token_loss)) {
    out.equal = false;
    out.note = "every output of the baseline is zero: nothing was compared";
  }
  return out;
}

template <class T>
replayed_choices choices_to_replay(const baseline_result<T>& theirs, double margin) {
  replayed_choices out;
  const auto tokens = static_cast<std::size_t>(theirs.rows * theirs.length);
  for (const layer_routing& layer : theirs.routing) {
    const std::size_t k = layer.experts.size() / tokens;
    out.choices.per_token = static_cast<num>(k);
    for (std::size_t t = 0; t < tokens; ++t) {
      const bool close = layer.margins[t] < margin;
      out.tokens += close ? 1 : 0;
      for (std::size_t i = 0; i < k; ++i) out.choices.experts.push_back(close ? layer.experts[t * k + i] : -1);
    }
    out.total += static_cast<num>(tokens);
  }
  if (out.tokens == 0) out.choices.experts.clear();
  out.choices.rows = theirs.rows, out.choices.length = theirs.length;
  return out;
}

#define SHARDPLAN_FOR_TYPE(T)                                                                                      \
  template tensor_comparison compare_tensor(std::string, std::vector<num>, std::span<const T>, std::span<const T>, \
                                            double, std::span<const char>, num, double);                           \
  template comparison compare(const gathered_result<T>&, const baseline_result<T>&, std::span<const char>,         \
                              std::optional<double>);                                                              \
  template replayed_choices choices_to_replay(const baseline_result<T>&, double)
SHARDPLAN_FOR_TYPE(float);
SHARDPLAN_FOR_TYPE(double);
#undef SHARDPLAN_FOR_TYPE

}  // namespace shardplan::runtime
