// SPDX-License-Identifier: Apache-2.0
// Products of small matrices of bf16 by a whole warp, in sums of float: on a GPU mma.sync.m16n8k16, on the host the
// same sums, each lane its own. The operands lie in shared memory, so that a lane of the host reads what an instruction
// would get from other lanes; nobody may write them in the same step.
//
// An instruction adds a (16, 16) b (16, 8) to c (16, 8), of which a lane holds 4 sums, 4 words of a and 2 words of b. A
// word is two neighbours in k, the first in its low half. Where they stand is written down once, below: the host's sums
// follow c_row and c_col, the words that a GPU loads the other functions, and a test plays the instruction with them.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_WARP_PRODUCT_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_WARP_PRODUCT_HPP

#include <cstdint>

#include "runtime/device/cuda/real.hpp"

namespace shardplan::runtime::cuda {

using word = std::uint32_t;

SHARDPLAN_HOST_DEVICE constexpr word word_of(bf16 low, bf16 high) {
  return low.bits | static_cast<word>(high.bits) << 16;
}
SHARDPLAN_HOST_DEVICE constexpr bf16 half_of(word w, int which) {
  return {static_cast<std::uint16_t>(w >> 16 * which)};
}

/// Where lanes hold the operands and sums of an instruction.
struct warp_layout {
  static constexpr int rows = 16, columns = 8, depth = 16, lanes = 32;

  SHARDPLAN_HOST_DEVICE static constexpr int c_row(int lane, int i) { return lane / 4 + i / 2 * 8; }
  SHARDPLAN_HOST_DEVICE static constexpr int c_col(int lane, int i) { return lane % 4 * 2 + i % 2; }
  SHARDPLAN_HOST_DEVICE static constexpr int a_row(int lane, int i) { return lane / 4 + i % 2 * 8; }
  SHARDPLAN_HOST_DEVICE static constexpr int a_k(int lane, int i) { return lane % 4 * 2 + i / 2 * 8; }
  SHARDPLAN_HOST_DEVICE static constexpr int b_k(int lane, int i) { return lane % 4 * 2 + i * 8; }
  SHARDPLAN_HOST_DEVICE static constexpr int b_col(int lane) { return lane / 4; }
};

/// Lines of words in shared memory, `stride` words apart. For all lanes to read at once, 4 more than a multiple of 32.
struct word_lines {
  const word* first;
  int stride;

  SHARDPLAN_HOST_DEVICE word_lines from(int line, int w) const { return {first + line * stride + w, stride}; }
  SHARDPLAN_HOST_DEVICE word at(int line, int w) const { return first[line * stride + w]; }
  SHARDPLAN_HOST_DEVICE float value(int line, int i) const { return widen(half_of(at(line, i / 2), i % 2)); }
};

/// What a lane holds of an operand.
template <int Count>
struct lane_words {
  word x[Count];
};

/// A lane's words of a, whose rows are lines.
SHARDPLAN_HOST_DEVICE inline lane_words<4> words_of_rows(const word_lines& a, int lane) {
  using w = warp_layout;
  return {{a.at(w::a_row(lane, 0), w::a_k(lane, 0) / 2), a.at(w::a_row(lane, 1), w::a_k(lane, 1) / 2),
           a.at(w::a_row(lane, 2), w::a_k(lane, 2) / 2), a.at(w::a_row(lane, 3), w::a_k(lane, 3) / 2)}};
}

/// A lane's words of b, whose columns are lines.
SHARDPLAN_HOST_DEVICE inline lane_words<2> words_of_columns(const word_lines& b, int lane) {
  using w = warp_layout;
  return {{b.at(w::b_col(lane), w::b_k(lane, 0) / 2), b.at(w::b_col(lane), w::b_k(lane, 1) / 2)}};
}

/// A lane's words of two b, whose rows are lines. A word of a line holds neighbours in it, and that of an operand
/// neighbours in k: so column j of the first b is value 2 j of a line, that of the second value 2 j + 1, and a lane
/// makes its words of both from the same four.
struct words_of_two {
  lane_words<2> of[2];
};
SHARDPLAN_HOST_DEVICE inline words_of_two words_of_lines(const word_lines& b, int lane) {
  using w = warp_layout;
  words_of_two out{};
  SHARDPLAN_UNROLL
  for (int i = 0; i < 2; ++i) {
    const word first = b.at(w::b_k(lane, i), w::b_col(lane)), next = b.at(w::b_k(lane, i) + 1, w::b_col(lane));
    out.of[0].x[i] = (first & 0xffffu) | next << 16;
    out.of[1].x[i] = first >> 16 | (next & 0xffff0000u);
  }
  return out;
}

/// A lane's sums of one instruction.
using lane_sums = float[4];

#ifndef __CUDA_ARCH__
/// A lane's part of c += a b on the host: of two rows and two columns, widened once.
class lane_product {
 public:
  lane_product(const word_lines& a, int lane) : lane_(lane) {
    for (int r = 0; r < 2; ++r)
      for (int k = 0; k < warp_layout::depth; ++k) rows_[r][k] = a.value(warp_layout::c_row(lane, 2 * r), k);
  }
  /// `element(k, column)` is b's.
  template <class F>
  void add_to(lane_sums& c, F&& element) const {
    for (int i = 0; i < 2; ++i) {
      float column[warp_layout::depth];
      for (int k = 0; k < warp_layout::depth; ++k) column[k] = element(k, warp_layout::c_col(lane_, i));
      for (int r = 0; r < 2; ++r)
        for (int k = 0; k < warp_layout::depth; ++k) c[2 * r + i] += rows_[r][k] * column[k];
    }
  }

 private:
  int lane_;
  float rows_[2][warp_layout::depth];
};
#else
/// c += a b, all lanes of a warp together.
__device__ inline void multiply_words(lane_sums& c, const lane_words<4>& a, const lane_words<2>& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
}
#endif

/// c[j] += a b^T of lines [8 j, 8 j + 8) of b; 16 values deep. All lanes of a warp call this together.
template <int Count>
SHARDPLAN_HOST_DEVICE void add_products_of_lines(lane_sums (&c)[Count], const word_lines& a, const word_lines& b,
                                                 int lane) {
  using w = warp_layout;
#ifdef __CUDA_ARCH__
  const lane_words<4> words = words_of_rows(a, lane);
  SHARDPLAN_UNROLL
  for (int j = 0; j < Count; ++j) multiply_words(c[j], words, words_of_columns(b.from(w::columns * j, 0), lane));
#else
  const lane_product product(a, lane);
  for (int j = 0; j < Count; ++j)
    product.add_to(c[j], [&](int k, int column) { return b.value(w::columns * j + column, k); });
#endif
}

/// c[g] += a b, for 16 lines of b: c[g][p] of their values 2 j + p from word apart * g on. All lanes of a warp call
/// this together.
template <int Count>
SHARDPLAN_HOST_DEVICE void add_weighted_lines(lane_sums (&c)[Count][2], const word_lines& a, const word_lines& b,
                                              int apart, int lane) {
#ifdef __CUDA_ARCH__
  const lane_words<4> words = words_of_rows(a, lane);
  SHARDPLAN_UNROLL
  for (int g = 0; g < Count; ++g) {
    const words_of_two both = words_of_lines(b.from(0, apart * g), lane);
    multiply_words(c[g][0], words, both.of[0]);
    multiply_words(c[g][1], words, both.of[1]);
  }
#else
  const lane_product product(a, lane);
  for (int g = 0; g < Count; ++g)
    for (int p = 0; p < 2; ++p)
      product.add_to(c[g][p], [&](int k, int column) { return b.value(k, 2 * (apart * g + column) + p); });
#endif
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_WARP_PRODUCT_HPP
