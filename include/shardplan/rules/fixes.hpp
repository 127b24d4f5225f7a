// SPDX-License-Identifier: Apache-2.0
// Numbers for what a rule tells to write instead. Run-time help: bounded work, not the nearest in every case.
#ifndef SHARDPLAN_RULES_FIXES_HPP
#define SHARDPLAN_RULES_FIXES_HPP

#include <shardplan/question.hpp>

namespace shardplan::detail {

inline constexpr num fix_search_steps = 4096;

/// "4 or 8": the divisors of `whole` next to `near`, below and above.
constexpr fix_text nearest_divisors(num whole, num near) {
  num below = near < whole ? near : whole, above = near;
  for (num i = 0; i < fix_search_steps && below > 1 && whole % below != 0; ++i) --below;
  if (below < 1 || whole % below != 0) below = 1;
  for (num i = 0; i < fix_search_steps && above < whole && whole % above != 0; ++i) ++above;
  fix_text out;
  out.add(below);
  if (above > below && above <= whole && whole % above == 0) out.add(" or ").add(above);
  return out;
}

/// "layers:3+2", or empty when the list would not fit a plan.
constexpr fix_text stage_list(const stage_layer_counts& stages) {
  fix_text out;
  for (std::size_t i = 0; i < stages.size(); ++i) out.add(i == 0 ? "layers:" : "+").add(stages[i]);
  return out.truncated ? fix_text{} : out;
}

}  // namespace shardplan::detail
#endif  // SHARDPLAN_RULES_FIXES_HPP
