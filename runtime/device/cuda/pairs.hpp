// SPDX-License-Identifier: Apache-2.0
// Pairs (token, choice) sorted by expert, and rows that follow them there and back.
// Letters: r tokens, k choices each, H hidden, p pairs whose experts are here.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_PAIRS_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_PAIRS_HPP

#include "runtime/device/cuda/elementwise.hpp"

namespace shardplan::runtime::cuda {

// The sort counts by tile: how many pairs of each tile chose each expert; where each tile's pairs of each expert begin;
// then each expert has a thread that goes through the tile and puts its own pairs in place, in their order.

struct sort_pairs_arguments {
  const num* experts;
  num pairs, first, count, tiles;
  num* starts;  // (tiles, count): at first the counts of the tile, then its places
  num* counts;  // (count)
  num *order, *place;
};

struct sort_pairs_shared {
  static constexpr num tile = 1024;
  int expert[tile];  // counted from the first one here; -1: elsewhere

  SHARDPLAN_HOST_DEVICE static num size(const sort_pairs_arguments& a, num tile_here) {
    const num rest = a.pairs - tile_here * tile;
    return rest < tile ? rest : tile;
  }
  SHARDPLAN_HOST_DEVICE void read(const sort_pairs_arguments& a, const place& at, int threads) {
    for (num j = at.thread; j < size(a, at.block); j += threads) {
      const num e = a.experts[at.block * tile + j] - a.first;
      expert[j] = e >= 0 && e < a.count ? static_cast<int>(e) : -1;
    }
  }
};

/// One block per tile.
struct count_pairs_kernel {
  static constexpr int threads = 256;
  using arguments = sort_pairs_arguments;
  using shared = sort_pairs_shared;
  struct state {};
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 2; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state&, shared& shared) {
    if (s == 0) return shared.read(a, at, threads);
    const num size = shared.size(a, at.block);
    for (num e = at.thread; e < a.count; e += threads) {
      num sum = 0;
      for (num j = 0; j < size; ++j) sum += shared.expert[j] == e ? 1 : 0;
      a.starts[at.block * a.count + e] = sum;
    }
  }
};

/// One block.
struct place_tiles_kernel {
  static constexpr int threads = 256;
  using arguments = sort_pairs_arguments;
  struct shared {};
  struct state {};
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 2; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state&, shared&) {
    for (num e = at.thread; e < a.count; e += threads) {
      if (s == 0) {
        num sum = 0;
        for (num tile = 0; tile < a.tiles; ++tile) sum += a.starts[tile * a.count + e];
        a.counts[e] = sum;
      } else {
        num next = 0;
        for (num before = 0; before < e; ++before) next += a.counts[before];
        for (num tile = 0; tile < a.tiles; ++tile) {
          num& start = a.starts[tile * a.count + e];
          const num size = start;
          start = next, next += size;
        }
      }
    }
  }
};

/// One block per tile.
struct order_pairs_kernel {
  static constexpr int threads = 256;
  using arguments = sort_pairs_arguments;
  using shared = sort_pairs_shared;
  struct state {};
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 2; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state&, shared& shared) {
    const num first = at.block * shared::tile, size = shared.size(a, at.block);
    if (s == 0) {
      shared.read(a, at, threads);
      for (num j = at.thread; j < size; j += threads)
        if (shared.expert[j] < 0) a.place[first + j] = -1;
      return;
    }
    for (num e = at.thread; e < a.count; e += threads) {
      num next = a.starts[at.block * a.count + e];
      for (num j = 0; j < size; ++j)
        if (shared.expert[j] == e) a.order[next] = first + j, a.place[first + j] = next++;
    }
  }
};

/// Sorts the pairs of `experts` (r, k) by expert, those of one expert in their own order: `order[j]` is the pair in
/// place j, `place` (r, k) the inverse, -1 where the expert is not one of [first, first + counts.size()), as for
/// padding; `counts` how many chose each expert. Of `order` (r * k) the first p values are written.
template <Launcher L>
void sort_pairs(L& on, std::span<const num> experts, num first, std::span<num> counts, std::span<num> order,
                std::span<num> place) {
  const num pairs = static_cast<num>(experts.size()), count = static_cast<num>(counts.size());
  if (pairs == 0) return fill<num>(on, counts, 0);
  const num tiles = ceil_div(pairs, sort_pairs_shared::tile);
  auto starts = on.template allocate<num>(tiles * count);
  const sort_pairs_arguments a{experts.data(), pairs,         first,        count,       tiles,
                               starts.data(),  counts.data(), order.data(), place.data()};
  on.template launch<count_pairs_kernel>(tiles, a);
  on.template launch<place_tiles_kernel>(1, a);
  on.template launch<order_pairs_kernel>(tiles, a);
}

template <class T>
struct rows_of_pairs_body {
  static constexpr int at_once = in_16_bytes<T>;
  const T* x;
  const num* order;
  num per_token, width;
  T* out;
  bool is_aligned() const { return are_aligned<at_once>(x, out) && width % at_once == 0; }
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {
    const T* from = x + order[row] / per_token * width;
    c.each(constant<at_once>{}, [&](num i, auto n) { copy_neighbours(from + i, out + row * width + i, n); });
  }
};

/// A token sums the rows of its pairs, each times its weight if there are weights, to what is there if `add`.
template <class T>
struct combine_pairs_body {
  static constexpr int at_once = in_16_bytes<T>;
  const T* rows;
  const num* place;
  const accumulated<T>* weights;
  num per_token, width;
  T* y;
  bool add;
  bool is_aligned() const { return are_aligned<at_once>(rows, y) && width % at_once == 0; }
  SHARDPLAN_HOST_DEVICE void operator()(num token, columns c) const {
    c.each(constant<at_once>{}, [&](num i, auto n) {
      T* to = y + token * width + i;
      accumulated<T> sum[n()] = {};
      if (add) {
        const auto before = load(to, n);
        for_each_of(n, [&](int k) { sum[k] = widen(before[k]); });
      }
      for (num pair = token * per_token; pair < (token + 1) * per_token; ++pair)
        if (const num j = place[pair]; j >= 0) {
          const accumulated<T> weight = weights != nullptr ? weights[pair] : 1;
          const auto row = load(rows + j * width + i, n);
          for_each_of(n, [&](int k) { sum[k] = std::fma(weight, widen(row[k]), sum[k]); });
        }
      store(to, n, [&](int k) { return narrow<T>(sum[k]); });
    });
  }
};

template <class T>
struct combine_pairs_backward_arguments {
  const T *dy, *rows;
  const num* order;
  const accumulated<T>* weights;
  num pairs, per_token, width;
  T* drows;
  accumulated<T>* dweights;
  bool at_once;  // neighbours are moved so
};

/// A pair is a row.
template <class T, int Lanes>
struct combine_pairs_backward_kernel {
  static constexpr int threads = threads_of_rows;
  using A = accumulated<T>;
  using arguments = combine_pairs_backward_arguments<T>;
  struct shared {
    block_fold<A, Lanes> along[row_of_block<Lanes>::rows];
  };
  struct state {};
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 3; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state&, shared& shared) {
    const row_of_block<Lanes> my(at.block, at.thread);
    if (my.row >= a.pairs) return;
    const num pair = a.order[my.row];
    auto& all_along = shared.along[my.within];
    if (s == 0) {
      const T *dy = a.dy + pair / a.per_token * a.width, *row = a.rows + my.row * a.width;
      T* to = a.drows + my.row * a.width;
      const A weight = a.weights[pair];
      A along = 0;
      each_group<Lanes>(constant<in_16_bytes<T>>{}, my.lane, a.width, a.at_once, [&](num i, auto n) {
        const auto gradients = load(dy + i, n), values = load(row + i, n);
        for_each_of(n, [&](int k) { along = std::fma(widen(gradients[k]), widen(values[k]), along); });
        store(to + i, n, [&](int k) { return narrow<T>(weight * widen(gradients[k])); });
      });
      all_along.put(my.lane, along);
    } else if (s == 1) {
      all_along.fold(my.lane);
    } else if (my.lane == 0) {
      a.dweights[pair] = all_along.result();
    }
  }
};

/// The rows of x (r, H) that the pairs `order` (p) name: out (p, H).
template <class T, Launcher L>
void rows_of_pairs(L& on, std::span<const T> x, std::span<const num> order, num per_token, num H,
                   std::span<std::type_identity_t<T>> out) {
  for_each_row(on, static_cast<num>(order.size()), H,
               rows_of_pairs_body<T>{x.data(), order.data(), per_token, H, out.data()});
}

/// y (r, H): the sum of weight * row over the pairs of each token, in the order of its choices, so that it does not
/// depend on where experts live; `place` and `weights` (r, k).
template <class T, Launcher L>
void combine_pairs(L& on, std::span<const T> rows, std::span<const num> place, std::span<const accumulated<T>> weights,
                   num per_token, num H, std::span<std::type_identity_t<T>> y) {
  for_each_row(on, static_cast<num>(place.size()) / per_token, H,
               combine_pairs_body<T>{rows.data(), place.data(), weights.data(), per_token, H, y.data(), false});
}

/// From dy (r, H) to drows (p, H); `dweights` (r, k) of the pairs here, 0 elsewhere.
template <class T, Launcher L>
void combine_pairs_backward(L& on, std::span<const T> dy, std::span<const std::type_identity_t<T>> rows,
                            std::span<const num> order, std::span<const accumulated<T>> weights, num per_token, num H,
                            std::span<std::type_identity_t<T>> drows, std::span<accumulated<T>> dweights) {
  fill<accumulated<T>>(on, dweights, 0);
  constexpr int group = in_16_bytes<T>;
  const num pairs = static_cast<num>(order.size());
  const bool at_once = H % group == 0 && are_aligned<group>(dy.data(), rows.data(), drows.data());
  with_threads_for(ceil_div(H, num{group}), [&](auto lanes) {
    on.template launch<combine_pairs_backward_kernel<T, lanes>>(
        row_of_block<lanes>::blocks(pairs), {dy.data(), rows.data(), order.data(), weights.data(), pairs, per_token, H,
                                             drows.data(), dweights.data(), at_once});
  });
}

/// x (r, H) grows by the rows of its pairs, in the order of its choices: the backward of rows_of_pairs.
template <class T, Launcher L>
void add_rows_of_pairs(L& on, std::span<T> x, std::span<const std::type_identity_t<T>> rows, std::span<const num> place,
                       num per_token, num H) {
  for_each_row(on, static_cast<num>(place.size()) / per_token, H,
               combine_pairs_body<T>{rows.data(), place.data(), nullptr, per_token, H, x.data(), true});
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_PAIRS_HPP
