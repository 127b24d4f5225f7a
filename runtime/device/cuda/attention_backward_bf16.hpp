// SPDX-License-Identifier: Apache-2.0
// query_gradient_kernel and key_gradient_kernel of bf16, with products by warps. Weights and gradients of scores are
// float, and rounded to bf16 where they are multiplied with lines.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_BACKWARD_BF16_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_BACKWARD_BF16_HPP

#include "runtime/device/cuda/attention_backward.hpp"
#include "runtime/device/cuda/attention_matrix.hpp"

namespace shardplan::runtime::cuda {

/// The scores of a tile and their gradients, by the side that owns the tile.
template <int Width>
struct gradient_scores_bf16 : matrix_tiles<Width> {
  using tiles = matrix_tiles<Width>;
  using tiles::across, tiles::side, tiles::threads;

  static constexpr int blocks_at_once = 2;  // on a multiprocessor: one loads while the other multiplies

  struct shared {
    typename tiles::lines queries, dout, keys, values;
    typename tiles::weights weight;
  };

  SHARDPLAN_HOST_DEVICE static void load_queries(const gradient_inputs<bf16>& in, num row, num head, num tile,
                                                 int thread, shared& sh) {
    tiles::load_lines(sh.queries, in.of_queries(in.queries, row, head), tile * side, thread);
    tiles::load_lines(sh.dout, in.of_queries(in.dout, row, head), tile * side, thread);
  }
  SHARDPLAN_HOST_DEVICE static void load_keys(const gradient_inputs<bf16>& in, num row, num kv, num tile, int thread,
                                              shared& sh) {
    tiles::load_lines(sh.keys, in.of_keys(in.keys, row, kv), tile * side, thread);
    tiles::load_lines(sh.values, in.of_keys(in.values, row, kv), tile * side, thread);
  }

  /// p and ds of the loaded tiles, which are the `own`-th and `other`-th.
  template <bool OwnedByKeys>
  SHARDPLAN_HOST_DEVICE static void compute(const gradient_inputs<bf16>& in, num row, num head, num own, num other,
                                            bool masked, int thread, const shared& sh, typename tiles::scores& p,
                                            typename tiles::scores& ds) {
    tiles::multiply(p, OwnedByKeys ? sh.keys : sh.queries, OwnedByKeys ? sh.queries : sh.keys, thread);
    tiles::multiply(ds, OwnedByKeys ? sh.values : sh.dout, OwnedByKeys ? sh.dout : sh.values, thread);
    SHARDPLAN_UNROLL
    for (int j = 0; j < across; ++j) {
      SHARDPLAN_UNROLL
      for (int i = 0; i < 4; ++i) {
        const num query =
            OwnedByKeys ? other * side + tiles::other_line(thread, j, i) : own * side + tiles::own_line(thread, i);
        const bool there = query < in.query_places.tokens;
        p[j][i] = there ? std::exp(p[j][i] * in.scale - in.log_sum[in.at_query(row, head, query)]) : 0.0f;
        ds[j][i] = there ? (ds[j][i] - in.along[in.at_query(row, head, query)]) * in.scale : 0.0f;
      }
    }
    if (masked)
      tiles::for_each_hidden(in.query_places, in.key_places, in.sizes.window, OwnedByKeys, row, own * side,
                             other * side, thread, [&](int j, int i) { p[j][i] = 0; });
    SHARDPLAN_UNROLL
    for (int j = 0; j < across; ++j) {
      SHARDPLAN_UNROLL
      for (int i = 0; i < 4; ++i) ds[j][i] *= p[j][i];
    }
  }

  /// The lines of `to` that begin at `first` grow by the sums.
  template <class G>
  SHARDPLAN_HOST_DEVICE static void add_to(const lines_view<G>& to, num first, typename tiles::sums& sums, int thread) {
    tiles::for_each_quad(sums, to.head_dim, thread, [&](int line, int d, const quad<float>& four) {
      if (first + line >= to.count) return;
      quad<G>& y = *reinterpret_cast<quad<G>*>(to.at(first + line, d));
      quad<G> sum = y;
      SHARDPLAN_UNROLL
      for (int x = 0; x < 4; ++x) sum.x[x] = narrow<G>(widen(sum.x[x]) + four.x[x]);
      y = sum;
    });
  }
};

/// dqueries of a tile of queries of one head, which grow by what one block of keys owes them.
template <int Width>
struct query_gradient_bf16_kernel : gradient_scores_bf16<Width> {
  using with = gradient_scores_bf16<Width>;
  using tiles = matrix_tiles<Width>;
  using arguments = typename query_gradient_kernel<bf16, Width>::arguments;
  using shared = typename with::shared;
  using tiles::side;

  struct state {
    typename tiles::sums sums;
  };
  static constexpr int steps_per_tile = 3;

  SHARDPLAN_HOST_DEVICE static num steps(const arguments& a, num block) {
    const owned_tile own(block, a.in.sizes.heads, a.in.visible.tiles);
    return static_cast<num>(a.in.visible.count(own.row, own.tile)) * steps_per_tile;
  }

  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state& my, shared& sh) {
    const gradient_inputs<bf16>& in = a.in;
    const owned_tile own(at.block, in.sizes.heads, in.visible.tiles);
    const int i = static_cast<int>(s) / steps_per_tile, now = static_cast<int>(s) % steps_per_tile, thread = at.thread;
    const num tile = in.visible.tile(own.row, own.tile, i);
    if (s == 0) {
      tiles::clear(my.sums);
      with::load_queries(in, own.row, own.head, own.tile, thread, sh);
    }
    if (now == 0) return with::load_keys(in, own.row, in.sizes.kv_of(own.head), tile, thread, sh);
    if (now == 1) {
      typename tiles::scores p, ds;
      with::template compute<false>(in, own.row, own.head, own.tile, tile, in.visible.masked(own.row, own.tile, i),
                                    thread, sh, p, ds);
      return tiles::put_weights(sh.weight, ds, thread);
    }
    tiles::add_lines(my.sums, sh.weight, sh.keys, thread);
    if (s + 1 < steps(a, at.block)) return;
    with::template add_to<float>(
        {a.dqueries, in.query_places.tokens, own.row, in.sizes.rows, own.head, in.sizes.heads, in.sizes.head_dim},
        own.tile * side, my.sums, thread);
  }
};

/// dkeys and dvalues, stored as G, of a tile of keys of one key/value head, which grow by what all queries that see it
/// owe it: head after head of its group, tile after tile.
template <class G, int Width>
struct key_gradient_bf16_kernel : gradient_scores_bf16<Width> {
  using with = gradient_scores_bf16<Width>;
  using tiles = matrix_tiles<Width>;
  using arguments = typename key_gradient_kernel<bf16, G, Width>::arguments;
  using shared = typename with::shared;
  using tiles::side;

  struct state {
    typename tiles::scores ds;
    typename tiles::sums dkeys, dvalues;
  };
  static constexpr int steps_per_tile = 5;

  SHARDPLAN_HOST_DEVICE static num steps(const arguments& a, num block) {
    const attention_sizes& sizes = a.in.sizes;
    const owned_tile own(block, sizes.kv_heads, a.in.visible.tiles);
    return (sizes.first_head_of(own.head + 1) - sizes.first_head_of(own.head)) * a.in.visible.count(own.row, own.tile) *
           steps_per_tile;
  }

  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state& my, shared& sh) {
    const gradient_inputs<bf16>& in = a.in;
    const owned_tile own(at.block, in.sizes.kv_heads, in.visible.tiles);
    const int count = in.visible.count(own.row, own.tile), thread = at.thread;
    const int i = static_cast<int>(s) / steps_per_tile, now = static_cast<int>(s) % steps_per_tile;
    const num tile = in.visible.tile(own.row, own.tile, i % count);
    const num head = in.sizes.first_head_of(own.head) + i / count;
    if (s == 0) {
      tiles::clear(my.dkeys), tiles::clear(my.dvalues);
      with::load_keys(in, own.row, own.head, own.tile, thread, sh);
    }
    if (now == 0) return with::load_queries(in, own.row, head, tile, thread, sh);
    if (now == 1) {
      typename tiles::scores p;
      with::template compute<true>(in, own.row, head, own.tile, tile, in.visible.masked(own.row, own.tile, i % count),
                                   thread, sh, p, my.ds);
      return tiles::put_weights(sh.weight, p, thread);
    }
    if (now == 2) return tiles::add_lines(my.dvalues, sh.weight, sh.dout, thread);
    if (now == 3) return tiles::put_weights(sh.weight, my.ds, thread);
    tiles::add_lines(my.dkeys, sh.weight, sh.queries, thread);
    if (s + 1 < steps(a, at.block)) return;
    with::add_to(gradient(a, a.dkeys, own), own.tile * side, my.dkeys, thread);
    with::add_to(gradient(a, a.dvalues, own), own.tile * side, my.dvalues, thread);
  }

 private:
  SHARDPLAN_HOST_DEVICE static lines_view<G> gradient(const arguments& a, G* x, const owned_tile& own) {
    const attention_sizes& sizes = a.in.sizes;
    return {x, a.in.key_places.tokens, own.row, sizes.rows, own.head, sizes.kv_heads, sizes.head_dim};
  }
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_BACKWARD_BF16_HPP
