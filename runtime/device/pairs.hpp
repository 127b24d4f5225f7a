// SPDX-License-Identifier: Apache-2.0
// Pairs (token, choice) sorted by expert on a CPU, and rows that follow them there and back.
// Letters: r tokens, k choices each, H hidden.
#ifndef SHARDPLAN_RUNTIME_DEVICE_PAIRS_HPP
#define SHARDPLAN_RUNTIME_DEVICE_PAIRS_HPP

#include <algorithm>  // copy_n
#include <numeric>    // accumulate, exclusive_scan
#include <shardplan/meta.hpp>
#include <span>
#include <vector>

#include "runtime/device/buffer.hpp"
#include "runtime/device/ops.hpp"

namespace shardplan::runtime {

/// Pairs (token, choice) sorted by expert: `order[j]` is the pair in place j, `counts[e]` how many chose expert e of
/// [first, first + count). Pairs of other experts, and of padding, are left out.
struct pairs_by_expert {
  std::vector<num> order, counts;

  pairs_by_expert() = default;
  pairs_by_expert(std::span<const num> experts, num first, num count) : counts(static_cast<std::size_t>(count)) {
    const auto here = [&](num e) { return e >= first && e < first + count; };
    for (num e : experts)
      if (here(e)) ++counts[static_cast<std::size_t>(e - first)];
    std::vector<num> next(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), next.begin(), num{0});
    order.resize(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), num{0})));
    for (std::size_t pair = 0; pair < experts.size(); ++pair)
      if (here(experts[pair]))
        order[static_cast<std::size_t>(next[static_cast<std::size_t>(experts[pair] - first)]++)] =
            static_cast<num>(pair);
  }
};

/// The rows of x (r, H) that the pairs name: (pairs, H).
template <class T>
buffer<T> rows_of_pairs(std::span<const T> x, const pairs_by_expert& pairs, num per_token, num H) {
  buffer<T> out(pairs.order.size() * static_cast<std::size_t>(H));
  auto to = out.begin();
  for (num pair : pairs.order) to = std::copy_n(x.begin() + pair / per_token * H, H, to);
  return out;
}

/// y (r, H): the sum of weight * row over the pairs of each token, in the order of its choices, so that it does not
/// depend on where experts live; `weights` (r, k).
template <class T>
buffer<T> combine_pairs(std::span<const T> rows, const pairs_by_expert& pairs, std::span<const T> weights,
                        num per_token, num H) {
  std::vector<num> place(weights.size(), -1);
  for (std::size_t j = 0; j < pairs.order.size(); ++j)
    place[static_cast<std::size_t>(pairs.order[j])] = static_cast<num>(j);
  buffer<T> y(place.size() / static_cast<std::size_t>(per_token) * static_cast<std::size_t>(H), T{0});
  for (std::size_t pair = 0; pair < place.size(); ++pair) {
    if (place[pair] < 0) continue;
    const T weight = weights[pair];
    const T* from = rows.data() + place[pair] * H;
    T* to = y.data() + static_cast<num>(pair) / per_token * H;
    for (num h = 0; h < H; ++h) to[h] += weight * from[h];
  }
  return y;
}

/// From dy (r, H) to drows (pairs, H); `dweights` (r, k) of the pairs here, 0 elsewhere.
template <class T>
buffer<T> combine_pairs_backward(std::span<const T> dy, std::span<const T> rows, const pairs_by_expert& pairs,
                                 std::span<const T> weights, num per_token, num H, buffer<T>& dweights) {
  buffer<T> drows(rows.size());
  dweights.assign(weights.size(), T{0});
  for (std::size_t j = 0; j < pairs.order.size(); ++j) {
    const auto pair = static_cast<std::size_t>(pairs.order[j]);
    const T* d = dy.data() + pairs.order[j] / per_token * H;
    const T* row = rows.data() + static_cast<num>(j) * H;
    T* to = drows.data() + static_cast<num>(j) * H;
    T along = 0;
    for (num h = 0; h < H; ++h) along += d[h] * row[h], to[h] = weights[pair] * d[h];
    dweights[pair] = along;
  }
  return drows;
}

/// x (r, H) grows by the rows of its pairs: the backward of rows_of_pairs.
template <class T>
void add_rows_of_pairs(std::span<T> x, std::span<const T> rows, const pairs_by_expert& pairs, num per_token, num H) {
  for (std::size_t j = 0; j < pairs.order.size(); ++j)
    add<T>(x.subspan(static_cast<std::size_t>(pairs.order[j] / per_token * H), static_cast<std::size_t>(H)),
           rows.subspan(j * static_cast<std::size_t>(H), static_cast<std::size_t>(H)));
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_PAIRS_HPP
