// SPDX-License-Identifier: Apache-2.0
// Kernels of attention's forward: softmax is accumulated online, tile of keys after tile of keys.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_FORWARD_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_FORWARD_HPP

#include <cmath>   // exp, log
#include <limits>  // infinity

#include "runtime/device/cuda/attention_tile.hpp"

namespace shardplan::runtime::cuda {

/// A tile of queries of one head sees all visible tiles of one block of keys.
template <class T, int Width>
struct attend_kernel : attention_tiles<T, Width> {
  using tiles = attention_tiles<T, Width>;
  using A = typename tiles::A;
  using tiles::each, tiles::pieces, tiles::side, tiles::threads;

  struct arguments {
    const T *queries, *keys, *values;
    places_view query_places, key_places;
    tile_lists visible;  // owned by queries
    attention_sizes sizes;
    A scale;
    A *largest, *sum;  // (rows, heads, tokens)
    A* weighted;       // (rows, heads, tokens, head_dim)
  };

  // A query's scores are summed up by `parts` threads, each of which knows the largest, and sums its own.
  static constexpr int parts = threads / side;
  struct state {
    typename tiles::scores scores;
    typename tiles::sums weighted;
    A largest, sum;
  };
  struct shared {
    typename tiles::memory memory;
    A part[side][parts], fade[side];
  };

  SHARDPLAN_HOST_DEVICE static int steps_per_tile(num head_dim) { return 2 * tiles::chunks(head_dim) + 2 + 2 * pieces; }

  SHARDPLAN_HOST_DEVICE static num steps(const arguments& a, num block) {
    const owned_tile own(block, a.sizes.heads, a.visible.tiles);
    const num count = a.visible.count(own.row, own.tile);
    return count == 0 ? 0 : count * steps_per_tile(a.sizes.head_dim) + 2;
  }

  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state& my, shared& sh) {
    const owned_tile own(at.block, a.sizes.heads, a.visible.tiles);
    const int per_tile = steps_per_tile(a.sizes.head_dim), i = static_cast<int>(s) / per_tile;
    int now = static_cast<int>(s) % per_tile;
    if (s == 0) begin(a, own, at.thread, my);
    if (i == a.visible.count(own.row, own.tile)) return finish(a, own, now, at.thread, my, sh);

    const num tile = a.visible.tile(own.row, own.tile, i);
    const int products = 2 * tiles::chunks(a.sizes.head_dim);
    if (now < products) return multiply(a, own, tile, a.visible.masked(own.row, own.tile, i), now, at.thread, my, sh);
    now -= products;
    if (now == 0) return find_largest(at.thread, sh);
    if (now == 1) return to_weights(at.thread, my, sh);
    now -= 2;
    if (now % 2 == 0)
      return tiles::load_lines(sh.memory.line, of_keys(a, a.values, own), tile * side + now / 2 * tiles::lines,
                               at.thread);
    if (now == 1)
      for (int r = 0; r < each; ++r)
        for (auto& q : my.weighted[r])
          for (A& x : q.x) x *= sh.fade[tiles::own_line(at.thread, r)];
    tiles::add_lines(sh.memory, my.weighted, now / 2, at.thread);
  }

 private:
  SHARDPLAN_HOST_DEVICE static lines_view<const T> of_keys(const arguments& a, const T* x, const owned_tile& own) {
    return {x, a.key_places.tokens, own.row, a.sizes.rows, a.sizes.kv_of(own.head), a.sizes.kv_heads, a.sizes.head_dim};
  }
  /// Where the state of the tile's first query is kept.
  SHARDPLAN_HOST_DEVICE static num state_at(const arguments& a, const owned_tile& own) {
    return (own.row * a.sizes.heads + own.head) * a.query_places.tokens + own.tile * side;
  }
  SHARDPLAN_HOST_DEVICE static bool is_query(const arguments& a, const owned_tile& own, int line) {
    return own.tile * side + line < a.query_places.tokens;
  }

  SHARDPLAN_HOST_DEVICE static void begin(const arguments& a, const owned_tile& own, int thread, state& my) {
    const num first = state_at(a, own), dim = a.sizes.head_dim;
    const int line = thread / parts;
    my.largest = is_query(a, own, line) ? a.largest[first + line] : -std::numeric_limits<A>::infinity();
    my.sum = thread % parts == 0 && is_query(a, own, line) ? a.sum[first + line] : A{0};
    for (auto& row : my.weighted)
      for (auto& q : row) q = {};
    tiles::for_each_sum(my.weighted, dim, thread, [&](int l, int d, A& x) {
      if (is_query(a, own, l)) x = a.weighted[(first + l) * dim + d];
    });
  }

  /// Scores of queries and keys, -infinity where they are hidden.
  SHARDPLAN_HOST_DEVICE static void multiply(const arguments& a, const owned_tile& own, num tile, bool masked, int now,
                                             int thread, state& my, shared& sh) {
    const int chunk = now / 2;
    auto& product = sh.memory.product;
    if (now % 2 == 0) {
      const lines_view<const T> queries(a.queries, a.query_places.tokens, own.row, a.sizes.rows, own.head,
                                        a.sizes.heads, a.sizes.head_dim);
      tiles::load_chunk(product.own, queries, own.tile * side, chunk, thread);
      tiles::load_chunk(product.other, of_keys(a, a.keys, own), tile * side, chunk, thread);
      if (chunk == 0) tiles::clear(my.scores);
      return;
    }
    tiles::multiply(product, my.scores, thread);
    if (chunk + 1 < tiles::chunks(a.sizes.head_dim)) return;
    for (auto& row : my.scores)
      for (A& x : row) x *= a.scale;
    if (masked)
      tiles::for_each_hidden(a.query_places, a.key_places, a.sizes.window, false, own.row, own.tile * side, tile * side,
                             thread, [&](int r, int c) { my.scores[r][c] = -std::numeric_limits<A>::infinity(); });
    tiles::put_weights(sh.memory, my.scores, thread);
  }

  SHARDPLAN_HOST_DEVICE static void find_largest(int thread, shared& sh) {
    const int line = thread / parts, part = thread % parts;
    A largest = sh.memory.weight_at(line, part);
    for (int k = part + parts; k < side; k += parts) {
      const A x = sh.memory.weight_at(line, k);
      largest = x > largest ? x : largest;
    }
    sh.part[line][part] = largest;
  }

  SHARDPLAN_HOST_DEVICE static void to_weights(int thread, state& my, shared& sh) {
    const int line = thread / parts, part = thread % parts;
    A largest = my.largest;
    for (const A x : sh.part[line]) largest = x > largest ? x : largest;
    const bool any = largest > -std::numeric_limits<A>::infinity();  // else -infinity - -infinity would be NaN
    const A fade = any ? std::exp(my.largest - largest) : A{1};
    A sum = 0;
    for (int k = part; k < side; k += parts) {
      A& x = sh.memory.weight_at(line, k);
      x = any ? std::exp(x - largest) : A{0};
      sum += x;
    }
    my.sum = my.sum * fade + sum;
    my.largest = largest;
    if (part == 0) sh.fade[line] = fade;
  }

  SHARDPLAN_HOST_DEVICE static void finish(const arguments& a, const owned_tile& own, int now, int thread, state& my,
                                           shared& sh) {
    const int line = thread / parts, part = thread % parts;
    if (now == 0) {
      sh.part[line][part] = my.sum;
      return;
    }
    const num first = state_at(a, own), dim = a.sizes.head_dim;
    if (part == 0 && is_query(a, own, line)) {
      A sum = 0;
      for (const A x : sh.part[line]) sum += x;
      a.largest[first + line] = my.largest, a.sum[first + line] = sum;
    }
    tiles::for_each_sum(my.weighted, dim, thread, [&](int l, int d, A& x) {
      if (is_query(a, own, l)) a.weighted[(first + l) * dim + d] = x;
    });
  }
};

/// out and log_sum from what was accumulated: 16 threads for each query and head.
template <class T>
struct finish_kernel : one_step {
  using A = accumulated<T>;
  static constexpr int threads = 256, lanes = 16;
  struct arguments {
    const A *largest, *sum, *weighted;  // as attend_kernel left them
    T* out;                             // (tokens, rows, heads, head_dim)
    A* log_sum;                         // (rows, heads, tokens)
    num tokens, rows, heads, head_dim;
  };
  static num blocks(num size) { return (size + threads / lanes - 1) / (threads / lanes); }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num, const place& at, state&, shared&) {
    const num i = at.block * (threads / lanes) + at.thread / lanes, row_heads = a.rows * a.heads;
    if (i >= a.tokens * row_heads) return;
    const num from = i % row_heads * a.tokens + i / row_heads;
    const A sum = a.sum[from], share = sum > 0 ? 1 / sum : A{0};
    for (num d = at.thread % lanes; d < a.head_dim; d += lanes)
      a.out[i * a.head_dim + d] = narrow<T>(a.weighted[from * a.head_dim + d] * share);
    if (at.thread % lanes == 0) a.log_sum[from] = sum > 0 ? std::log(sum) + a.largest[from] : A{0};
  }
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_FORWARD_HPP
