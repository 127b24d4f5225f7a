// SPDX-License-Identifier: Apache-2.0
// What the attention kernels of bf16 share: as attention_tile.hpp, with products by warps. A block of threads owns a
// tile of lines and meets one tile of the other side after another; both lie in shared memory as they are, in bf16.
// Two warps share 16 lines of the owned tile: each has half of the other tile's lines where scores are computed, and
// half of head_dim where weighted lines are added. Scores are float, weights are rounded to bf16 to be multiplied.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_MATRIX_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_MATRIX_HPP

#include "runtime/device/cuda/attention_tile.hpp"
#include "runtime/device/cuda/warp_product.hpp"

namespace shardplan::runtime::cuda {

/// 16 bytes of device memory, at a multiple of 16.
SHARDPLAN_HOST_DEVICE inline quad<word> load_words(const bf16* from) {
  quad<word> to;
  __builtin_memcpy(&to, __builtin_assume_aligned(from, 16), sizeof(to));
  return to;
}

template <int Width>
struct matrix_tiles {
  using with = warp_layout;
  static constexpr int side = Width <= 128 ? 64 : 32;  // lines of a tile
  static constexpr int halves = 2, threads = side / with::rows * halves * with::lanes;
  static constexpr int across = side / halves / with::columns;  // products of a warp along the other tile
  static constexpr int groups = Width / 16 / halves;            // of 16 values of head_dim, of a warp
  static constexpr int parts = halves * 4;                      // threads that have some of a line's scores
  static constexpr int stride = Width / 2 + 4, weight_stride = side / 2 + 4;
  static_assert(side % grain == 0 && stride % 4 == 0);

  struct alignas(16) lines {
    word x[side][stride];
    SHARDPLAN_HOST_DEVICE word_lines view() const { return {x[0], stride}; }
  };
  struct alignas(16) weights {
    word x[side][weight_stride];  // of (own, other)
    SHARDPLAN_HOST_DEVICE word_lines view() const { return {x[0], weight_stride}; }
  };

  using scores = lane_sums[across];
  using sums = lane_sums[groups][2];

  SHARDPLAN_HOST_DEVICE static int lane(int thread) { return thread % with::lanes; }
  SHARDPLAN_HOST_DEVICE static int half(int thread) { return thread / with::lanes % halves; }
  /// The first of the warp's lines.
  SHARDPLAN_HOST_DEVICE static int first_line(int thread) { return thread / with::lanes / halves * with::rows; }
  /// The line of sums [i], which is one of two: i / 2.
  SHARDPLAN_HOST_DEVICE static int own_line(int thread, int i) {
    return first_line(thread) + with::c_row(lane(thread), i);
  }
  SHARDPLAN_HOST_DEVICE static int other_line(int thread, int j, int i) {
    return half(thread) * (side / halves) + with::columns * j + with::c_col(lane(thread), i);
  }
  /// Which of the `parts` of a line a thread has.
  SHARDPLAN_HOST_DEVICE static int part(int thread) { return half(thread) * 4 + lane(thread) % 4; }

  /// The tile that begins at line `begin`; zeros where there is no such line or value.
  SHARDPLAN_HOST_DEVICE static void load_lines(lines& to, const lines_view<const bf16>& from, num begin, int thread) {
    constexpr int per_line = Width / 8;
    static_assert(side * per_line % threads == 0);
    SHARDPLAN_UNROLL
    for (int n = 0; n < side * per_line / threads; ++n) {
      const int i = n * threads + thread, line = i / per_line, d = i % per_line * 8;
      const bool there = begin + line < from.count && d < from.head_dim;
      *reinterpret_cast<quad<word>*>(&to.x[line][d / 2]) = there ? load_words(from.at(begin + line, d)) : quad<word>{};
    }
  }

  template <int Count>
  SHARDPLAN_HOST_DEVICE static void clear(lane_sums (&all)[Count]) {
    SHARDPLAN_UNROLL
    for (int j = 0; j < Count; ++j) {
      SHARDPLAN_UNROLL
      for (int i = 0; i < 4; ++i) all[j][i] = 0;
    }
  }
  SHARDPLAN_HOST_DEVICE static void clear(sums& all) {
    SHARDPLAN_UNROLL
    for (int g = 0; g < groups; ++g) clear(all[g]);
  }

  /// s = own other^T, over all of Width: beyond head_dim are zeros, and a loop of known length is unrolled.
  SHARDPLAN_HOST_DEVICE static void multiply(scores& s, const lines& own, const lines& other, int thread) {
    clear(s);
    const word_lines mine = own.view().from(first_line(thread), 0),
                     met = other.view().from(half(thread) * (side / halves), 0);
    SHARDPLAN_UNROLL
    for (int d = 0; d < Width; d += with::depth)
      add_products_of_lines(s, mine.from(0, d / 2), met.from(0, d / 2), lane(thread));
  }

  SHARDPLAN_HOST_DEVICE static void put_weights(weights& to, const scores& s, int thread) {
    SHARDPLAN_UNROLL
    for (int j = 0; j < across; ++j) {
      SHARDPLAN_UNROLL
      for (int i = 0; i < 4; i += 2)
        to.x[own_line(thread, i)][other_line(thread, j, i) / 2] =
            word_of(narrow<bf16>(s[j][i]), narrow<bf16>(s[j][i + 1]));
    }
  }

  /// sum += weights other
  SHARDPLAN_HOST_DEVICE static void add_lines(sums& sum, const weights& w, const lines& other, int thread) {
    SHARDPLAN_UNROLL
    for (int k = 0; k < side; k += with::depth)
      add_weighted_lines(sum, w.view().from(first_line(thread), k / 2), other.view().from(k, 8 * half(thread)),
                         8 * halves, lane(thread));
  }

  /// Calls f(line of the tile, d, four neighbours) for all of this thread's sums, and keeps what it makes of them.
  template <class F>
  SHARDPLAN_HOST_DEVICE static void for_each_quad(sums& sum, num head_dim, int thread, F&& f) {
    SHARDPLAN_UNROLL
    for (int g = 0; g < groups; ++g) {
      SHARDPLAN_UNROLL
      for (int i = 0; i < 4; i += 2) {
        const int d = 16 * (halves * g + half(thread)) + 2 * with::c_col(lane(thread), i);
        if (d >= head_dim) continue;
        quad<float> four{{sum[g][0][i], sum[g][1][i], sum[g][0][i + 1], sum[g][1][i + 1]}};
        f(own_line(thread, i), d, four);
        sum[g][0][i] = four.x[0], sum[g][1][i] = four.x[1], sum[g][0][i + 1] = four.x[2], sum[g][1][i + 1] = four.x[3];
      }
    }
  }

  /// Calls f(j, i) for each of this thread's scores that no query may see. The tiles begin at tokens `own` and `other`.
  template <class F>
  SHARDPLAN_HOST_DEVICE static void for_each_hidden(const places_view& queries, const places_view& keys, num window,
                                                    bool owned_by_keys, num row, num own, num other, int thread,
                                                    F&& f) {
    const places_view &owner = owned_by_keys ? keys : queries, &met = owned_by_keys ? queries : keys;
    const auto place = [row](const places_view& of, num token) {
      return token < of.tokens ? of.at(row, token) : token_place{};
    };
    const num here[2] = {own + own_line(thread, 0), own + own_line(thread, 2)};
    const token_place mine[2] = {place(owner, here[0]), place(owner, here[1])};
    word hidden = 0;  // a bit for each score, so that this loop need not be unrolled: it would take many registers
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (int j = 0; j < across; ++j)
      for (int c = 0; c < 2; ++c) {
        const num there = other + other_line(thread, j, c);
        const token_place its = place(met, there);
        for (int r = 0; r < 2; ++r) {
          const bool visible = here[r] < owner.tokens && there < met.tokens &&
                               (owned_by_keys ? sees(its, mine[r], window) : sees(mine[r], its, window));
          hidden |= (visible ? 0u : 1u) << (4 * j + 2 * r + c);
        }
      }
    SHARDPLAN_UNROLL
    for (int j = 0; j < across; ++j) {
      SHARDPLAN_UNROLL
      for (int i = 0; i < 4; ++i)
        if ((hidden >> (4 * j + i) & 1u) != 0) f(j, i);
    }
  }
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_MATRIX_HPP
