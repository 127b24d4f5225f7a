// SPDX-License-Identifier: Apache-2.0
// What the attention kernels share: a block of threads owns a tile of lines (queries, or keys) and meets one tile of
// the other side after another. It multiplies the two to scores, each thread a few rows and columns of them, turns the
// scores to weights, and adds weighted lines to sums that stay in registers. Lines are head_dim long, at most Width.
//
// Products are plain multiply-adds in the accumulator type. bf16 has kernels of its own: attention_matrix.hpp.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_TILE_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_TILE_HPP

#include "runtime/device/cuda/attention_places.hpp"
#include "runtime/device/cuda/real.hpp"

namespace shardplan::runtime::cuda {

/// Four neighbours, moved by one instruction.
template <class T>
struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) quad {
  T x[4];
};

/// Four values of device memory, at a multiple of their size (16 bytes at most).
template <class T>
SHARDPLAN_HOST_DEVICE quad<accumulated<T>> load(const T* from) {
  const quad<T> raw = *reinterpret_cast<const quad<T>*>(from);
  return {widen(raw.x[0]), widen(raw.x[1]), widen(raw.x[2]), widen(raw.x[3])};
}

/// Sizes of one attention. Queries (tokens, rows, heads, head_dim), keys (key_tokens, rows, kv_heads, head_dim).
struct attention_sizes {
  num rows, heads, kv_heads, head_dim, window;

  SHARDPLAN_HOST_DEVICE num kv_of(num head) const { return head * kv_heads / heads; }
  /// The first head that reads key/value head `kv` or a later one.
  SHARDPLAN_HOST_DEVICE num first_head_of(num kv) const { return (kv * heads + kv_heads - 1) / kv_heads; }
};

/// Which tile a block of threads owns: blocks stand as (rows, heads, tiles), heads being those of the owner's side.
struct owned_tile {
  num row, head, tile;
  /// A launch has less than 2^31 blocks, and a GPU divides 32 bits faster than 64.
  SHARDPLAN_HOST_DEVICE owned_tile(num block, num heads, num tiles)
      : owned_tile(static_cast<int>(block), static_cast<int>(heads), static_cast<int>(tiles)) {}

 private:
  SHARDPLAN_HOST_DEVICE owned_tile(int block, int heads, int tiles)
      : row(block / tiles / heads), head(block / tiles % heads), tile(block % tiles) {}
};

/// The lines of one row and head of x (count, rows, heads, head_dim).
template <class T>
struct lines_view {
  T* first;
  num stride, count, head_dim;

  SHARDPLAN_HOST_DEVICE lines_view(T* x, num tokens, num row, num rows, num head, num heads, num dim)
      : first(x + (row * heads + head) * dim), stride(rows * heads * dim), count(tokens), head_dim(dim) {}
  SHARDPLAN_HOST_DEVICE T* at(num line, num d) const { return first + line * stride + d; }
};

template <class T, int Width>
struct attention_tiles {
  using A = accumulated<T>;
  static constexpr int threads = 256, lanes = 16;  // threads stand as (16, 16): of rows, and of columns
  static constexpr int side = sizeof(A) == 4 && Width <= 128 ? 64 : 32;  // lines of a tile
  static constexpr int each = side / lanes;                              // rows, and columns, of one thread
  static constexpr int depth = 8;               // quads of head_dim multiplied at once; one more keeps banks apart
  static constexpr int quads = Width / 4;       // of a whole line
  static constexpr int across = quads / lanes;  // quads of a line of sums of one thread
  static constexpr int most_lines = 32768 / (Width * static_cast<int>(sizeof(A)));
  static constexpr int lines = most_lines < 32 ? most_lines : 32;  // whole lines held at once
  static constexpr int pieces = side / lines;
  static_assert(side % grain == 0 && side % lines == 0 && quads % lanes == 0 && lines % 4 == 0);

  struct pair {
    quad<A> own[side][depth + 1], other[side][depth + 1];
  };
  struct memory {
    union {
      pair product;                // parts of both tiles
      quad<A> line[lines][quads];  // some lines of one tile
    };
    quad<A> weight[side][side / 4 + 1];  // of (own, other)

    SHARDPLAN_HOST_DEVICE A& weight_at(int own, int other) { return weight[own][other / 4].x[other % 4]; }
  };
  static_assert(sizeof(memory) <= 47 * 1024, "must fit the 48 KiB that every GPU gives, with 1 KiB to spare");

  using scores = A[each][each];
  using sums = quad<A>[each][across];

  SHARDPLAN_HOST_DEVICE static int own_line(int thread, int i) { return thread / lanes * each + i; }
  SHARDPLAN_HOST_DEVICE static int other_line(int thread, int j) { return thread % lanes + lanes * j; }

  SHARDPLAN_HOST_DEVICE static int chunks(num head_dim) {
    return (static_cast<int>(head_dim) + 4 * depth - 1) / (4 * depth);
  }

  /// Quads [chunk * depth, + depth) of the tile that begins at line `begin`; zeros where there is no such.
  SHARDPLAN_HOST_DEVICE static void load_chunk(quad<A> (&to)[side][depth + 1], const lines_view<const T>& from,
                                               num begin, int chunk, int thread) {
    for (int i = thread; i < side * depth; i += threads) {
      const num line = begin + i / depth, d = (chunk * depth + i % depth) * 4;
      to[i / depth][i % depth] = line < from.count && d < from.head_dim ? load(from.at(line, d)) : quad<A>{};
    }
  }

  /// Lines [begin, begin + lines); zeros where there is no such.
  SHARDPLAN_HOST_DEVICE static void load_lines(quad<A> (&to)[lines][quads], const lines_view<const T>& from, num begin,
                                               int thread) {
    for (int i = thread; i < lines * quads; i += threads) {
      const num line = begin + i / quads, d = i % quads * 4;
      to[i / quads][i % quads] = line < from.count && d < from.head_dim ? load(from.at(line, d)) : quad<A>{};
    }
  }

  SHARDPLAN_HOST_DEVICE static void clear(scores& s) {
    for (int i = 0; i < each; ++i)
      for (int j = 0; j < each; ++j) s[i][j] = 0;
  }

  /// s += own other^T, over one chunk
  SHARDPLAN_HOST_DEVICE static void multiply(const pair& p, scores& s, int thread) {
    for (int d = 0; d < depth; ++d) {
      quad<A> own[each];
      SHARDPLAN_UNROLL
      for (int i = 0; i < each; ++i) own[i] = p.own[own_line(thread, i)][d];
      SHARDPLAN_UNROLL
      for (int j = 0; j < each; ++j) {
        const quad<A> other = p.other[other_line(thread, j)][d];
        SHARDPLAN_UNROLL
        for (int i = 0; i < each; ++i) {
          SHARDPLAN_UNROLL
          for (int x = 0; x < 4; ++x) s[i][j] += own[i].x[x] * other.x[x];
        }
      }
    }
  }

  SHARDPLAN_HOST_DEVICE static void put_weights(memory& m, const scores& s, int thread) {
    for (int i = 0; i < each; ++i)
      for (int j = 0; j < each; ++j) m.weight_at(own_line(thread, i), other_line(thread, j)) = s[i][j];
  }

  /// sum += weight line, over the lines of one piece
  SHARDPLAN_HOST_DEVICE static void add_lines(const memory& m, sums& sum, int piece, int thread) {
    for (int k = 0; k < lines / 4; ++k) {
      quad<A> weight[each];
      SHARDPLAN_UNROLL
      for (int i = 0; i < each; ++i) weight[i] = m.weight[own_line(thread, i)][piece * (lines / 4) + k];
      SHARDPLAN_UNROLL
      for (int y = 0; y < 4; ++y) {
        SHARDPLAN_UNROLL
        for (int c = 0; c < across; ++c) {
          const quad<A> line = m.line[4 * k + y][thread % lanes + lanes * c];
          SHARDPLAN_UNROLL
          for (int i = 0; i < each; ++i) {
            SHARDPLAN_UNROLL
            for (int x = 0; x < 4; ++x) sum[i][c].x[x] += weight[i].x[y] * line.x[x];
          }
        }
      }
    }
  }

  /// Calls f(line of the tile, d, value) for each value of this thread's sums.
  template <class F>
  SHARDPLAN_HOST_DEVICE static void for_each_sum(sums& sum, num head_dim, int thread, F&& f) {
    SHARDPLAN_UNROLL
    for (int i = 0; i < each; ++i) {
      SHARDPLAN_UNROLL
      for (int c = 0; c < across; ++c) {
        SHARDPLAN_UNROLL
        for (int x = 0; x < 4; ++x) {
          const int d = (thread % lanes + lanes * c) * 4 + x;
          if (d < head_dim) f(own_line(thread, i), d, sum[i][c].x[x]);
        }
      }
    }
  }

  /// Calls f(i, j) for each of this thread's scores that no query may see. The tiles begin at tokens `own` and `other`.
  template <class F>
  SHARDPLAN_HOST_DEVICE static void for_each_hidden(const places_view& queries, const places_view& keys, num window,
                                                    bool owned_by_keys, num row, num own, num other, int thread,
                                                    F&& f) {
    const places_view &owner = owned_by_keys ? keys : queries, &met = owned_by_keys ? queries : keys;
    for (int j = 0; j < each; ++j) {
      const num there = other + other_line(thread, j);
      const token_place its = there < met.tokens ? met.at(row, there) : token_place{};
      for (int i = 0; i < each; ++i) {
        const num here = own + own_line(thread, i);
        const token_place mine = here < owner.tokens ? owner.at(row, here) : token_place{};
        const bool visible = here < owner.tokens && there < met.tokens &&
                             (owned_by_keys ? sees(its, mine, window) : sees(mine, its, window));
        if (!visible) f(i, j);
      }
    }
  }
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_TILE_HPP
