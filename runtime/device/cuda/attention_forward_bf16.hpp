// SPDX-License-Identifier: Apache-2.0
// attend_kernel of bf16, with products by warps.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_FORWARD_BF16_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_FORWARD_BF16_HPP

#include "runtime/device/cuda/attention_forward.hpp"
#include "runtime/device/cuda/attention_matrix.hpp"

namespace shardplan::runtime::cuda {

/// A tile of queries of one head sees all visible tiles of one block of keys.
template <int Width>
struct attend_bf16_kernel : matrix_tiles<Width> {
  using tiles = matrix_tiles<Width>;
  using arguments = typename attend_kernel<bf16, Width>::arguments;
  using tiles::across, tiles::parts, tiles::side, tiles::threads;

  struct state {
    typename tiles::scores scores;
    typename tiles::sums weighted;
    float largest[2], sum[2];  // of the two lines of this thread: the largest of all, the sum of its own
  };
  struct shared {
    typename tiles::lines queries, values;
    union {
      typename tiles::lines keys;
      typename tiles::weights weight;  // once scores are computed
    };
    float part[side][parts];
  };

  static constexpr int blocks_at_once = 2;  // on a multiprocessor: one loads while the other multiplies
  static constexpr int steps_per_tile = 4;

  SHARDPLAN_HOST_DEVICE static num steps(const arguments& a, num block) {
    const owned_tile own(block, a.sizes.heads, a.visible.tiles);
    const num count = a.visible.count(own.row, own.tile);
    return count == 0 ? 0 : count * steps_per_tile + 2;
  }

  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state& my, shared& sh) {
    const owned_tile own(at.block, a.sizes.heads, a.visible.tiles);
    const int i = static_cast<int>(s) / steps_per_tile, now = static_cast<int>(s) % steps_per_tile, thread = at.thread;
    if (s == 0) begin(a, own, thread, my, sh);
    if (i == a.visible.count(own.row, own.tile)) return finish(a, own, now, thread, my, sh);

    const num tile = a.visible.tile(own.row, own.tile, i);
    if (now == 0) {
      tiles::load_lines(sh.keys, of_keys(a, a.keys, own), tile * side, thread);
      tiles::load_lines(sh.values, of_keys(a, a.values, own), tile * side, thread);
    } else if (now == 1) {
      tiles::multiply(my.scores, sh.queries, sh.keys, thread);
      find_largest(a, own, tile, a.visible.masked(own.row, own.tile, i), thread, my, sh);
    } else if (now == 2) {
      to_weights(thread, my, sh);
    } else {
      tiles::add_lines(my.weighted, sh.weight, sh.values, thread);
    }
  }

 private:
  SHARDPLAN_HOST_DEVICE static lines_view<const bf16> of_keys(const arguments& a, const bf16* x,
                                                              const owned_tile& own) {
    return {x, a.key_places.tokens, own.row, a.sizes.rows, a.sizes.kv_of(own.head), a.sizes.kv_heads, a.sizes.head_dim};
  }
  /// Where the state of the tile's first query is kept.
  SHARDPLAN_HOST_DEVICE static num state_at(const arguments& a, const owned_tile& own) {
    return (own.row * a.sizes.heads + own.head) * a.query_places.tokens + own.tile * side;
  }
  SHARDPLAN_HOST_DEVICE static bool is_query(const arguments& a, const owned_tile& own, int line) {
    return own.tile * side + line < a.query_places.tokens;
  }

  SHARDPLAN_HOST_DEVICE static void begin(const arguments& a, const owned_tile& own, int thread, state& my,
                                          shared& sh) {
    const num first = state_at(a, own), dim = a.sizes.head_dim;
    SHARDPLAN_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int line = tiles::own_line(thread, 2 * r);
      my.largest[r] = is_query(a, own, line) ? a.largest[first + line] : -std::numeric_limits<float>::infinity();
      my.sum[r] = tiles::part(thread) == 0 && is_query(a, own, line) ? a.sum[first + line] : 0.0f;
    }
    tiles::clear(my.weighted);
    tiles::for_each_quad(my.weighted, dim, thread, [&](int line, int d, quad<float>& four) {
      if (is_query(a, own, line)) four = *reinterpret_cast<const quad<float>*>(a.weighted + (first + line) * dim + d);
    });
    tiles::load_lines(sh.queries,
                      {a.queries, a.query_places.tokens, own.row, a.sizes.rows, own.head, a.sizes.heads, dim},
                      own.tile * side, thread);
  }

  /// Scales the scores, hides what may not be seen, and tells the largest of this thread's.
  SHARDPLAN_HOST_DEVICE static void find_largest(const arguments& a, const owned_tile& own, num tile, bool masked,
                                                 int thread, state& my, shared& sh) {
    SHARDPLAN_UNROLL
    for (int j = 0; j < across; ++j) {
      SHARDPLAN_UNROLL
      for (int i = 0; i < 4; ++i) my.scores[j][i] *= a.scale;
    }
    if (masked)
      tiles::for_each_hidden(a.query_places, a.key_places, a.sizes.window, false, own.row, own.tile * side, tile * side,
                             thread, [&](int j, int i) { my.scores[j][i] = -std::numeric_limits<float>::infinity(); });
    SHARDPLAN_UNROLL
    for (int r = 0; r < 2; ++r) {
      float largest = my.scores[0][2 * r];
      SHARDPLAN_UNROLL
      for (int j = 0; j < across; ++j) {
        SHARDPLAN_UNROLL
        for (int c = 0; c < 2; ++c) largest = largest_of()(largest, my.scores[j][2 * r + c]);
      }
      sh.part[tiles::own_line(thread, 2 * r)][tiles::part(thread)] = largest;
    }
  }

  /// Scores become weights, and what was summed fades to the new largest score. Sums are of weights as they were before
  /// rounding, as log sums are what the backward recomputes weights from.
  SHARDPLAN_HOST_DEVICE static void to_weights(int thread, state& my, shared& sh) {
    SHARDPLAN_UNROLL
    for (int r = 0; r < 2; ++r) {
      float largest = my.largest[r];
      SHARDPLAN_UNROLL
      for (int p = 0; p < parts; ++p) largest = largest_of()(largest, sh.part[tiles::own_line(thread, 2 * r)][p]);
      const bool any = largest > -std::numeric_limits<float>::infinity();  // else -infinity - -infinity would be NaN
      const float fade = any ? std::exp(my.largest[r] - largest) : 1.0f;
      float sum = 0;
      SHARDPLAN_UNROLL
      for (int j = 0; j < across; ++j) {
        SHARDPLAN_UNROLL
        for (int c = 0; c < 2; ++c) {
          float& x = my.scores[j][2 * r + c];
          x = any ? std::exp(x - largest) : 0.0f;
          sum += x;
        }
      }
      SHARDPLAN_UNROLL
      for (auto& group : my.weighted) {
        SHARDPLAN_UNROLL
        for (auto& x : group) x[2 * r] *= fade, x[2 * r + 1] *= fade;
      }
      my.sum[r] = my.sum[r] * fade + sum;
      my.largest[r] = largest;
    }
    tiles::put_weights(sh.weight, my.scores, thread);
  }

  SHARDPLAN_HOST_DEVICE static void finish(const arguments& a, const owned_tile& own, int now, int thread, state& my,
                                           shared& sh) {
    const num first = state_at(a, own), dim = a.sizes.head_dim;
    SHARDPLAN_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int line = tiles::own_line(thread, 2 * r);
      float(&of_line)[parts] = sh.part[line];
      if (now == 0) of_line[tiles::part(thread)] = my.sum[r];
      if (now == 1 && tiles::part(thread) == 0 && is_query(a, own, line)) {
        float sum = 0;
        for (const float x : of_line) sum += x;
        a.largest[first + line] = my.largest[r], a.sum[first + line] = sum;
      }
    }
    if (now == 0) return;
    tiles::for_each_quad(my.weighted, dim, thread, [&](int line, int d, quad<float>& four) {
      if (is_query(a, own, line)) *reinterpret_cast<quad<float>*>(a.weighted + (first + line) * dim + d) = four;
    });
  }
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_FORWARD_BF16_HPP
