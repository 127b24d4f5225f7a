// SPDX-License-Identifier: Apache-2.0
// A part of a tensor: per dim, at most two ranges of indices (two where gate and up rows are stored in one dim).
#ifndef SHARDPLAN_REGION_HPP
#define SHARDPLAN_REGION_HPP

#include <shardplan/meta.hpp>

namespace shardplan {

/// Indices [begin, end) of a dim.
struct dim_range {
  num begin = 0, end = 0;
  constexpr num size() const { return end > begin ? end - begin : 0; }
  friend constexpr bool operator==(const dim_range&, const dim_range&) = default;
};

/// The indices of one dim that a part holds: the first range, then the second.
struct dim_part {
  dim_range ranges[2]{};

  constexpr dim_part() = default;
  constexpr dim_part(num begin, num end) : ranges{{begin, end}, {}} {}
  constexpr dim_part(dim_range first, dim_range second) : ranges{first, second} {}
  constexpr num size() const { return ranges[0].size() + ranges[1].size(); }
  /// Index, in the whole dim, of the i-th index held.
  constexpr num at(num i) const {
    return i < ranges[0].size() ? ranges[0].begin + i : ranges[1].begin + i - ranges[0].size();
  }
  constexpr bool has(num index) const {
    return (index >= ranges[0].begin && index < ranges[0].end) || (index >= ranges[1].begin && index < ranges[1].end);
  }
  /// The held indices number [begin, end): a cut of a cut.
  constexpr dim_part slice(num begin, num end) const {
    const auto clip = [&](dim_range r, num before) {
      const num from = begin > before ? begin - before : 0;
      const num to = end - before < r.size() ? end - before : r.size();
      return from < to ? dim_range{r.begin + from, r.begin + to} : dim_range{};
    };
    return {clip(ranges[0], 0), clip(ranges[1], ranges[0].size())};
  }
  friend constexpr bool operator==(const dim_part&, const dim_part&) = default;
};

/// A part of a tensor of at most three dims: the product of its dims' parts.
struct region {
  fixed_vector<dim_part, 3> dims{};

  constexpr num size() const {
    num n = dims.empty() ? 0 : 1;
    for (const dim_part& d : dims) n *= d.size();
    return n;
  }
  friend constexpr bool operator==(const region&, const region&) = default;
};

}  // namespace shardplan
#endif  // SHARDPLAN_REGION_HPP
