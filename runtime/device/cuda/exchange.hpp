// SPDX-License-Identifier: Apache-2.0
// Orders of rows and heads before and after they travel: blocks by sender and by expert, tokens and heads of a Ulysses
// group.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_EXCHANGE_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_EXCHANGE_HPP

#include <shardplan/run_shape.hpp>

#include "runtime/device/cuda/loops.hpp"
#include "runtime/device/row_block.hpp"

namespace shardplan::runtime::cuda {

using runtime::row_block;

template <class T>
struct copy_blocks_body {
  const T* from;
  const row_block* blocks;  // ascending places, which follow one another
  num count, width;
  T* to;
  bool by_expert;  // `to` is by expert, `from` as received; else the other way round
  static constexpr int at_once = in_16_bytes<T>;
  bool is_aligned() const { return are_aligned<at_once>(from, to) && width % at_once == 0; }
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {
    num low = 0, high = count;  // the last block that begins at or before the row; empty ones begin there too
    while (high - low > 1) {
      const num middle = low + (high - low) / 2;
      (blocks[middle].place <= row ? low : high) = middle;
    }
    const num received = blocks[low].received + (row - blocks[low].place);
    const T* source = from + (by_expert ? received : row) * width;
    T* target = to + (by_expert ? row : received) * width;
    c.each(constant<at_once>{}, [&](num i, auto n) { copy_neighbours(source + i, target + i, n); });
  }
};

/// to (rows, width): what was received block by block, in the order of `blocks`. Their places begin at 0 and follow one
/// another; a block may be empty.
template <class T, Launcher L>
void sort_blocks(L& on, std::span<const T> from, std::span<const row_block> blocks, num width,
                 std::span<std::type_identity_t<T>> to) {
  for_each_row(
      on, width == 0 ? 0 : static_cast<num>(to.size()) / width, width,
      copy_blocks_body<T>{from.data(), blocks.data(), static_cast<num>(blocks.size()), width, to.data(), true});
}
/// The way back: rows by expert to the order they were received in.
template <class T, Launcher L>
void unsort_blocks(L& on, std::span<const T> from, std::span<const row_block> blocks, num width,
                   std::span<std::type_identity_t<T>> to) {
  for_each_row(
      on, width == 0 ? 0 : static_cast<num>(to.size()) / width, width,
      copy_blocks_body<T>{from.data(), blocks.data(), static_cast<num>(blocks.size()), width, to.data(), false});
}

template <class T>
struct pack_heads_body {
  const T* x;
  num n, heads, head_dim, ranks;
  T* out;
  static constexpr int at_once = in_16_bytes<T>;
  bool is_aligned() const { return are_aligned<at_once>(x, out) && head_dim % at_once == 0; }
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {  // a row: what one rank gets of one token
    const num rank = row / n, token = row % n, share = num_traded_heads(heads, ranks) * head_dim;
    const T* from = x + (token * heads + first_traded_head(heads, ranks, rank)) * head_dim;
    c.each(constant<at_once>{},
           [&](num i, auto several) { copy_neighbours(from + i, out + row * share + i, several); });
  }
};

template <class T>
struct sum_heads_body {
  const T* in;
  num n, heads, head_dim, ranks;
  T* out;
  static constexpr int at_once = in_16_bytes<T>;
  bool is_aligned() const { return are_aligned<at_once>(in, out) && head_dim % at_once == 0; }
  SHARDPLAN_HOST_DEVICE void operator()(num row, columns c) const {  // a row: one head of one token
    const num token = row / heads, head = row % heads, share = num_traded_heads(heads, ranks);
    num first = 0, last = 0;  // the ranks that had this head: neighbours
    for (num rank = 0; rank < ranks; ++rank) {
      const num begin = first_traded_head(heads, ranks, rank);
      if (begin + share <= head) first = rank + 1;
      if (begin <= head) last = rank + 1;
    }
    c.each(constant<at_once>{}, [&](num i, auto several) {
      accumulated<T> sum[several()] = {};
      for (num rank = first; rank < last; ++rank) {
        const num here = head - first_traded_head(heads, ranks, rank);
        const auto part = load(in + ((rank * n + token) * share + here) * head_dim + i, several);
        for_each_of(several, [&](int k) { sum[k] += widen(part[k]); });
      }
      store(out + row * head_dim + i, several, [&](int k) { return narrow<T>(sum[k]); });
    });
  }
};

/// What a Ulysses group of `ranks` sends when tokens are traded for heads: from x (n, heads, D) to out
/// (ranks, n, share, D), each rank's share of the heads together.
template <class T, Launcher L>
void pack_heads(L& on, std::span<const T> x, num heads, num head_dim, num ranks,
                std::span<std::type_identity_t<T>> out) {
  const num n = static_cast<num>(x.size()) / (heads * head_dim);
  for_each_row(on, ranks * n, num_traded_heads(heads, ranks) * head_dim,
               pack_heads_body<T>{x.data(), n, heads, head_dim, ranks, out.data()});
}

/// What it makes of the answer: from (ranks, n, share, D) to out (n, heads, D). A head that went to several ranks is
/// summed, in their order: that is a gradient, which each of them owes a part of.
template <class T, Launcher L>
void sum_heads(L& on, std::span<const T> in, num heads, num head_dim, num ranks,
               std::span<std::type_identity_t<T>> out) {
  const num n = static_cast<num>(out.size()) / (heads * head_dim);
  for_each_row(on, n * heads, head_dim, sum_heads_body<T>{in.data(), n, heads, head_dim, ranks, out.data()});
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_EXCHANGE_HPP
