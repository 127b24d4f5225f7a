// SPDX-License-Identifier: Apache-2.0
// What went wrong, told from the values alone: each mistake that frameworks are known for is tried in turn.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <shardplan/layout.hpp>

#include "runtime/verify/foreign.hpp"

namespace shardplan::runtime {
namespace {

using values = std::vector<double>;

/// The constant c with a = c * b, but for `limit`.
std::optional<double> factor_of(std::span<const double> a, std::span<const double> b, double limit) {
  double ab = 0, bb = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i], bb += b[i] * b[i];
    largest = std::max(largest, std::abs(b[i]));
  }
  const double c = ab / bb;
  if (!(std::abs(c) > 0) || !std::isfinite(c)) return {};
  num significant = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - c * b[i]) <= limit * std::abs(c) * largest)) return {};
    significant += std::abs(b[i]) > 0.01 * largest ? 1 : 0;
  }
  // One number is always a multiple of another: only a telling multiple says something.
  const double whole = std::abs(c) >= 1 ? c : 1 / c;
  const bool telling = std::abs(whole - std::round(whole)) <= limit * std::abs(whole) && std::abs(whole) < 1024.5;
  if (significant < 2 && !telling) return {};
  return c;
}

/// `to` has one row of `width` for every entry of `from`: the row of `v` that stands there.
values take_rows(std::span<const double> v, const std::vector<num>& from, num width) {
  values out(v.size());
  for (std::size_t i = 0; i < from.size(); ++i)
    std::copy_n(v.begin() + from[i] * width, width, out.begin() + static_cast<num>(i) * width);
  return out;
}

std::vector<num> inverse(const std::vector<num>& order) {
  std::vector<num> out(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) out[static_cast<std::size_t>(order[i])] = static_cast<num>(i);
  return out;
}

/// The tokens of a row as ranks hold them, rank after rank, without padding.
std::vector<num> zigzag_order(num length, num cp) {
  std::vector<num> out;
  const num padded = round_up(length, needed_multiple(layout_kind::zigzag, cp, 1).row);
  for (num r = 0; r < cp; ++r)
    for_each_range(layout_kind::zigzag, std::vector<num>{length}, padded, cp, r, [&](token_range range) {
      for (num at = range.begin; at < range.end; ++at)
        if (at < length) out.push_back(at);
    });
  return out;
}
/// Token i on rank i modulo cp.
std::vector<num> striped_order(num length, num cp) {
  std::vector<num> out;
  for (num r = 0; r < cp; ++r)
    for (num at = r; at < length; at += cp) out.push_back(at);
  return out;
}

struct candidate {
  std::string note;
  std::function<values()> make;  ///< the baseline's values with this mistake
};

void add_token_orders(std::vector<candidate>& out, std::span<const double> baseline, std::span<const num> shape) {
  const num rows = shape[0], length = shape[1], width = shape.size() > 2 ? shape[2] : 1;
  const auto add = [&](std::string note, std::vector<num> of_row) {
    out.push_back({std::move(note), [=, order = std::move(of_row)] {
                     std::vector<num> from;
                     for (num row = 0; row < rows; ++row)
                       for (num at : order) from.push_back(row * length + at);
                     return take_rows(baseline, from, width);
                   }});
  };
  for (num cp : {2, 4, 8}) {
    if (length <= cp) break;
    const std::vector<num> zigzag = zigzag_order(length, cp), striped = striped_order(length, cp);
    add(fmt::format("tokens are in zigzag order of cp={}", cp), zigzag);
    add(fmt::format("tokens are in the inverse of the zigzag order of cp={}: put back twice, or never cut so", cp),
        inverse(zigzag));
    add(fmt::format("tokens are in striped order of cp={}: token i on rank i modulo {}", cp, cp), striped);
    add(fmt::format("tokens are in the inverse of the striped order of cp={}", cp), inverse(striped));
  }
  std::vector<num> later, earlier;
  for (num at = 0; at < length; ++at) {
    later.push_back((at + length - 1) % length);
    earlier.push_back((at + 1) % length);
  }
  add("tokens are shifted by one: each has what belongs to the one before it", later);
  add("tokens are shifted by one: each has what belongs to the one after it", earlier);
}

/// Both halves, or the pairs, of the rows of each expert.
void add_row_orders(std::vector<candidate>& out, std::span<const double> baseline, std::span<const num> shape) {
  const std::size_t dims = shape.size();
  const num cols = shape[dims - 1], rows = shape[dims - 2], groups = static_cast<num>(baseline.size()) / (rows * cols);
  const auto add = [&](std::string note, std::function<num(num)> row_of) {
    out.push_back({std::move(note), [=] {
                     std::vector<num> from;
                     for (num g = 0; g < groups; ++g)
                       for (num row = 0; row < rows; ++row) from.push_back(g * rows + row_of(row));
                     return take_rows(baseline, from, cols);
                   }});
  };
  if (rows % 2 == 0) {
    const num half = rows / 2;
    add("the two halves of the rows are swapped (gate and up?)", [=](num row) { return (row + half) % rows; });
    add("the rows of the two halves alternate (gate and up?)", [=](num row) { return row % 2 * half + row / 2; });
  }
  if (rows == cols)
    out.push_back({"transposed", [=] {
                     values v(baseline.size());
                     for (num g = 0; g < groups; ++g)
                       for (num i = 0; i < rows; ++i)
                         for (num j = 0; j < cols; ++j)
                           v[static_cast<std::size_t>((g * rows + i) * cols + j)] =
                               baseline[static_cast<std::size_t>((g * rows + j) * cols + i)];
                     return v;
                   }});
}

/// Which row of the baseline each row of the values is, when every one is another; else empty.
std::vector<num> matching_rows(std::span<const double> a, std::span<const double> b, num rows, double limit) {
  constexpr num most_work = num{1} << 30;
  const num size = static_cast<num>(a.size()), width = size / rows;
  double largest = 0;
  for (double v : b) largest = std::max(largest, std::abs(v));
  if (rows < 2 || width < 2 || largest == 0 || rows > most_work / size) return {};
  std::vector<num> out;
  std::vector<char> taken(static_cast<std::size_t>(rows), 0);
  for (num i = 0; i < rows; ++i) {
    const auto same = [&](num j) {
      for (num k = 0; k < width; ++k)
        if (!(std::abs(a[static_cast<std::size_t>(i * width + k)] - b[static_cast<std::size_t>(j * width + k)]) <=
              limit * largest))
          return false;
      return true;
    };
    num found = 0;
    while (found < rows && (taken[static_cast<std::size_t>(found)] != 0 || !same(found))) ++found;
    if (found == rows) return {};
    taken[static_cast<std::size_t>(found)] = 1;
    out.push_back(found);
  }
  return out;
}

std::string order_text(std::string_view what, const std::vector<num>& order) {
  constexpr std::size_t shown = 8;
  std::string list;
  for (std::size_t i = 0; i < std::min(shown, order.size()); ++i)
    list += fmt::format("{}{}", i == 0 ? "" : ", ", order[i]);
  return fmt::format("the {} are permuted: they are {}{} of the baseline", what, list,
                     order.size() > shown ? ", ..." : "");
}

}  // namespace

std::string factor_text(double c, double limit) {
  const auto is_whole = [&](double x) {
    return std::abs(x - std::round(x)) <= std::max(limit, 1e-6) * std::abs(x) && std::abs(x) < 1024.5;
  };
  const double times = std::round(std::abs(c)), share = std::round(1 / std::abs(c));
  const std::string sign = c < 0 ? ", of the other sign" : "";
  if (is_whole(c) && times == 1) return "x -1.0: of the other sign";
  if (is_whole(c) && times == 2) return fmt::format("x {:.1f}: counted twice{}", std::round(c), sign);
  if (is_whole(c) && times > 2) return fmt::format("x {:.1f}: counted {} times{}", std::round(c), times, sign);
  if (is_whole(1 / c) && share > 1)
    return fmt::format("x {:.4g}: divided by {}, or one of {} equal parts alone{}", c, share, share, sign);
  return fmt::format("x {:.6g}", c);
}

diagnosis diagnose(std::span<const double> v, std::span<const double> baseline, std::span<const num> shape,
                   bool by_token, double limit) {
  if (std::all_of(v.begin(), v.end(), [](double x) { return x == 0; })) return {{}, "all of it is zero"};
  if (const auto c = factor_of(v, baseline, limit)) return {c, factor_text(*c, limit)};
  if (v.size() < 2 || shape.empty()) return {};

  std::vector<candidate> candidates;
  if (by_token) {
    add_token_orders(candidates, baseline, shape);
  } else if (shape.size() > 1) {
    add_row_orders(candidates, baseline, shape);
  }
  for (const candidate& mistake : candidates)
    if (const auto c = factor_of(v, mistake.make(), limit)) {
      if (std::abs(*c - 1) <= limit) return {{}, mistake.note};
      return {c, mistake.note + "; " + factor_text(*c, limit)};
    }
  const num last = shape.size() > 1 ? shape[shape.size() - 1] : 1, all = static_cast<num>(v.size());
  if (by_token)
    if (const auto order = matching_rows(v, baseline, shape[0], limit); !order.empty())
      return {{}, order_text("rows", order)};
  if (const auto order = matching_rows(v, baseline, all / last, limit); !order.empty())
    return {{}, order_text(by_token ? "tokens" : "rows", order)};
  return {};
}

}  // namespace shardplan::runtime
