// SPDX-License-Identifier: Apache-2.0
// Kernels of attention's backward. With p = exp(score - log_sum) the weight of a key and ds = p (dout v - along) that
// of its score: dq sums ds k, dk sums ds q, dv sums p dout. Each sum belongs to one block of threads, which adds in a
// fixed order: one kernel owns queries, one owns keys.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_BACKWARD_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_BACKWARD_HPP

#include <cmath>  // exp

#include "runtime/device/cuda/attention_tile.hpp"

namespace shardplan::runtime::cuda {

/// along (rows, heads, tokens): sum of out * dout; 16 threads for each query and head.
template <class T>
struct along_kernel {
  using A = accumulated<T>;
  static constexpr int threads = 256, lanes = 16;
  struct arguments {
    const T *out, *dout;  // (tokens, rows, heads, head_dim)
    A* along;
    num tokens, rows, heads, head_dim;
  };
  struct shared {
    A part[threads];
  };
  struct state {};
  static num blocks(num size) { return (size + threads / lanes - 1) / (threads / lanes); }
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 2; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state&, shared& sh) {
    const num i = at.block * (threads / lanes) + at.thread / lanes, row_heads = a.rows * a.heads;
    const int lane = at.thread % lanes;
    if (i >= a.tokens * row_heads) return;
    A sum = 0;
    if (s == 0) {
      for (num d = i * a.head_dim + lane; d < (i + 1) * a.head_dim; d += lanes)
        sum += widen(a.out[d]) * widen(a.dout[d]);
      sh.part[at.thread] = sum;
    } else if (lane == 0) {
      for (int k = 0; k < lanes; ++k) sum += sh.part[at.thread + k];
      a.along[i % row_heads * a.tokens + i / row_heads] = sum;
    }
  }
};

/// What both gradient kernels read.
template <class T>
struct gradient_inputs {
  using A = accumulated<T>;
  const T *queries, *dout;   // (tokens, rows, heads, head_dim)
  const T *keys, *values;    // (key_tokens, rows, kv_heads, head_dim)
  const A *log_sum, *along;  // (rows, heads, tokens)
  places_view query_places, key_places;
  tile_lists visible;
  attention_sizes sizes;
  A scale;

  SHARDPLAN_HOST_DEVICE lines_view<const T> of_queries(const T* x, num row, num head) const {
    return {x, query_places.tokens, row, sizes.rows, head, sizes.heads, sizes.head_dim};
  }
  SHARDPLAN_HOST_DEVICE lines_view<const T> of_keys(const T* x, num row, num kv) const {
    return {x, key_places.tokens, row, sizes.rows, kv, sizes.kv_heads, sizes.head_dim};
  }
  SHARDPLAN_HOST_DEVICE num at_query(num row, num head, num token) const {
    return (row * sizes.heads + head) * query_places.tokens + token;
  }
};

/// The scores of a tile and their gradients, by the side that owns the tile.
template <class T, int Width>
struct gradient_scores : attention_tiles<T, Width> {
  using tiles = attention_tiles<T, Width>;
  using A = typename tiles::A;
  using tiles::each, tiles::side, tiles::threads;

  struct values {
    typename tiles::scores p, ds;
  };

  /// Two pairs of a load and a multiplication for each chunk of head_dim: queries with keys, and dout with values.
  SHARDPLAN_HOST_DEVICE static int products(num head_dim) { return 4 * tiles::chunks(head_dim); }

  /// Step `now` of products(): after the last of them `v` holds p and ds. The tiles are the `own`-th and `other`-th.
  template <bool OwnedByKeys>
  SHARDPLAN_HOST_DEVICE static void multiply(const gradient_inputs<T>& in, num row, num head, num own, num other,
                                             bool masked, int now, int thread, values& v,
                                             typename tiles::memory& memory) {
    const int chunks = tiles::chunks(in.sizes.head_dim), chunk = now / 2 % chunks;
    const bool second = now >= 2 * chunks;
    if (now % 2 == 0) {
      const num kv = in.sizes.kv_of(head);
      const lines_view<const T> queries = in.of_queries(second ? in.dout : in.queries, row, head);
      const lines_view<const T> keys = in.of_keys(second ? in.values : in.keys, row, kv);
      tiles::load_chunk(memory.product.own, OwnedByKeys ? keys : queries, own * side, chunk, thread);
      tiles::load_chunk(memory.product.other, OwnedByKeys ? queries : keys, other * side, chunk, thread);
      if (now == 0) tiles::clear(v.p), tiles::clear(v.ds);
      return;
    }
    if (!second) return tiles::multiply(memory.product, v.p, thread);
    tiles::multiply(memory.product, v.ds, thread);
    if (chunk + 1 < chunks) return;

    for (int i = 0; i < each; ++i)
      for (int j = 0; j < each; ++j) {
        const num query =
            OwnedByKeys ? other * side + tiles::other_line(thread, j) : own * side + tiles::own_line(thread, i);
        const bool there = query < in.query_places.tokens;
        v.p[i][j] = there ? std::exp(v.p[i][j] * in.scale - in.log_sum[in.at_query(row, head, query)]) : A{0};
        v.ds[i][j] = there ? (v.ds[i][j] - in.along[in.at_query(row, head, query)]) * in.scale : A{0};
      }
    if (masked)
      tiles::for_each_hidden(in.query_places, in.key_places, in.sizes.window, OwnedByKeys, row, own * side,
                             other * side, thread, [&](int i, int j) { v.p[i][j] = 0; });
    for (int i = 0; i < each; ++i)
      for (int j = 0; j < each; ++j) v.ds[i][j] *= v.p[i][j];
  }
};

/// dqueries of a tile of queries of one head, which grow by what one block of keys owes them.
template <class T, int Width>
struct query_gradient_kernel : gradient_scores<T, Width> {
  using with = gradient_scores<T, Width>;
  using tiles = attention_tiles<T, Width>;
  using A = typename tiles::A;
  using tiles::side, tiles::threads;

  struct arguments {
    gradient_inputs<T> in;  // visible: owned by queries
    A* dqueries;            // (tokens, rows, heads, head_dim)
  };
  struct state {
    typename with::values scores;
    typename tiles::sums sums;
  };
  struct shared {
    typename tiles::memory memory;
  };

  SHARDPLAN_HOST_DEVICE static int steps_per_tile(num head_dim) { return with::products(head_dim) + 2 * tiles::pieces; }
  SHARDPLAN_HOST_DEVICE static num steps(const arguments& a, num block) {
    const owned_tile own(block, a.in.sizes.heads, a.in.visible.tiles);
    return static_cast<num>(a.in.visible.count(own.row, own.tile)) * steps_per_tile(a.in.sizes.head_dim);
  }

  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state& my, shared& sh) {
    const gradient_inputs<T>& in = a.in;
    const owned_tile own(at.block, in.sizes.heads, in.visible.tiles);
    const int per_tile = steps_per_tile(in.sizes.head_dim), i = static_cast<int>(s) / per_tile;
    const num tile = in.visible.tile(own.row, own.tile, i);
    int now = static_cast<int>(s) % per_tile;
    if (s == 0)
      for (auto& row : my.sums)
        for (auto& q : row) q = {};

    const int products = with::products(in.sizes.head_dim);
    if (now < products) {
      with::template multiply<false>(in, own.row, own.head, own.tile, tile, in.visible.masked(own.row, own.tile, i),
                                     now, at.thread, my.scores, sh.memory);
      if (now + 1 == products) tiles::put_weights(sh.memory, my.scores.ds, at.thread);
      return;
    }
    now -= products;
    if (now % 2 == 0)
      return tiles::load_lines(sh.memory.line, in.of_keys(in.keys, own.row, in.sizes.kv_of(own.head)),
                               tile * side + now / 2 * tiles::lines, at.thread);
    tiles::add_lines(sh.memory, my.sums, now / 2, at.thread);
    if (s + 1 < steps(a, at.block)) return;
    const lines_view<A> to(a.dqueries, in.query_places.tokens, own.row, in.sizes.rows, own.head, in.sizes.heads,
                           in.sizes.head_dim);
    tiles::for_each_sum(my.sums, in.sizes.head_dim, at.thread, [&](int line, int d, A& x) {
      if (own.tile * side + line < to.count) *to.at(own.tile * side + line, d) += x;
    });
  }
};

/// dkeys and dvalues, stored as G, of a tile of keys of one key/value head, which grow by what all queries that see it
/// owe it: head after head of its group, tile after tile.
template <class T, class G, int Width>
struct key_gradient_kernel : gradient_scores<T, Width> {
  using with = gradient_scores<T, Width>;
  using tiles = attention_tiles<T, Width>;
  using A = typename tiles::A;
  using tiles::pieces, tiles::side, tiles::threads;

  struct arguments {
    gradient_inputs<T> in;  // visible: owned by keys
    G *dkeys, *dvalues;     // (key_tokens, rows, kv_heads, head_dim)
  };
  struct state {
    typename with::values scores;
    typename tiles::sums dkeys, dvalues;
  };
  struct shared {
    typename tiles::memory memory;
  };

  SHARDPLAN_HOST_DEVICE static int steps_per_tile(num head_dim) { return with::products(head_dim) + 4 * pieces; }
  SHARDPLAN_HOST_DEVICE static num steps(const arguments& a, num block) {
    const attention_sizes& sizes = a.in.sizes;
    const owned_tile own(block, sizes.kv_heads, a.in.visible.tiles);
    return (sizes.first_head_of(own.head + 1) - sizes.first_head_of(own.head)) * a.in.visible.count(own.row, own.tile) *
           steps_per_tile(sizes.head_dim);
  }

  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state& my, shared& sh) {
    const gradient_inputs<T>& in = a.in;
    const owned_tile own(at.block, in.sizes.kv_heads, in.visible.tiles);
    const int per_tile = steps_per_tile(in.sizes.head_dim), count = in.visible.count(own.row, own.tile);
    const int i = static_cast<int>(s) / per_tile;
    const num tile = in.visible.tile(own.row, own.tile, i % count);
    const num head = in.sizes.first_head_of(own.head) + i / count;
    int now = static_cast<int>(s) % per_tile;
    if (s == 0)
      for (int r = 0; r < tiles::each; ++r)
        for (int c = 0; c < tiles::across; ++c) my.dkeys[r][c] = {}, my.dvalues[r][c] = {};

    const int products = with::products(in.sizes.head_dim);
    if (now < products) {
      with::template multiply<true>(in, own.row, head, own.tile, tile, in.visible.masked(own.row, own.tile, i % count),
                                    now, at.thread, my.scores, sh.memory);
      if (now + 1 == products) tiles::put_weights(sh.memory, my.scores.p, at.thread);
      return;
    }
    now -= products;
    const bool of_dkeys = now >= 2 * pieces;
    const int piece = now / 2 % pieces;
    if (now % 2 == 0) {
      tiles::load_lines(sh.memory.line, in.of_queries(of_dkeys ? in.queries : in.dout, own.row, head),
                        tile * side + piece * tiles::lines, at.thread);
      if (now == 2 * pieces) tiles::put_weights(sh.memory, my.scores.ds, at.thread);
      return;
    }
    if (!of_dkeys) return tiles::add_lines(sh.memory, my.dvalues, piece, at.thread);
    tiles::add_lines(sh.memory, my.dkeys, piece, at.thread);
    if (s + 1 == steps(a, at.block)) {
      add_to(a, a.dkeys, own, at.thread, my.dkeys);
      add_to(a, a.dvalues, own, at.thread, my.dvalues);
    }
  }

 private:
  SHARDPLAN_HOST_DEVICE static void add_to(const arguments& a, G* gradient, const owned_tile& own, int thread,
                                           typename tiles::sums& sums) {
    const lines_view<G> to(gradient, a.in.key_places.tokens, own.row, a.in.sizes.rows, own.head, a.in.sizes.kv_heads,
                           a.in.sizes.head_dim);
    tiles::for_each_sum(sums, a.in.sizes.head_dim, thread, [&](int line, int d, A& x) {
      if (own.tile * side + line >= to.count) return;
      G& y = *to.at(own.tile * side + line, d);
      y = narrow<G>(widen(y) + x);
    });
  }
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_BACKWARD_HPP
