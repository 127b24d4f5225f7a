// SPDX-License-Identifier: Apache-2.0
// Attention of whole rows, head by head. A block of queries meets only the keys between the first that any of them
// sees and the last, so that most of what causality hides is never computed.
#include <algorithm>  // fill, min
#include <cmath>      // sqrt
#include <limits>     // numeric_limits

#include "runtime/reference/ops.hpp"
#include "runtime/reference/rows.hpp"

namespace shardplan::runtime::reference {
namespace {

/// Queries of one block: enough for a fast product, few enough that their scores stay in a cache.
constexpr num queries_per_block = 128;

/// Rows and columns of a matrix.
template <class T>
matrix_view<T> part_of(matrix_view<T> x, num first_row, num rows, num first_col, num cols) {
  return {x.data + first_row * x.stride + first_col, rows, cols, x.stride};
}

/// Softmax of scores[begin, end), the keys one query may see, without the hidden ones; all the others become 0.
template <class T>
void softmax_of_visible(T* scores, num num_keys, num begin, num end, const char* hidden) {
  const auto seen = array_of(scores + begin, end - begin);
  if (hidden != nullptr)
    for (num j = begin; j < end; ++j)
      if (hidden[j]) scores[j] = -std::numeric_limits<T>::infinity();
  const T largest = seen.maxCoeff();
  if (largest == -std::numeric_limits<T>::infinity()) {  // nothing to see
    std::fill(scores, scores + num_keys, T(0));
    return;
  }
  array_of(scores + begin, end - begin) = (seen - largest).exp();
  if (hidden != nullptr)
    for (num j = begin; j < end; ++j)
      if (hidden[j]) scores[j] = 0;  // vector code makes exp(-infinity) tiny, not 0
  array_of(scores + begin, end - begin) *= 1 / seen.sum();
  std::fill(scores, scores + begin, T(0));
  std::fill(scores + end, scores + num_keys, T(0));
}

/// A block of queries of one head, and the keys that any of them sees: rows of matrices of all tokens.
struct attention_block {
  num first_query, num_queries, first_key, num_keys;
  num query_head, key_head;

  template <class T>
  matrix_view<T> queries(matrix_view<T> x, num D) const {  // (num_queries, D)
    return part_of(x, first_query, num_queries, query_head * D, D);
  }
  template <class T>
  matrix_view<T> keys(matrix_view<T> x, num D) const {  // (num_keys, D)
    return part_of(x, first_key, num_keys, key_head * D, D);
  }
};

/// Calls `f(block, p)` for every block, where p (num_queries, num_keys) is softmax(q k^T / sqrt(D)).
template <class T, class F>
void for_each_block(const token_info& tokens, num window, num D, matrix_view<const T> q, matrix_view<const T> k,
                    F&& f) {
  const num S = tokens.length, num_heads = q.cols / D, group = num_heads / (k.cols / D);
  const T scale = 1 / std::sqrt(T(D));
  tensor<T> scores(std::min(queries_per_block, S), round_up(S, 16));  // rows stay on cache lines

  for (num row = 0; row < tokens.rows; ++row)
    for (num h = 0; h < num_heads; ++h)
      for (num begin = 0; begin < S; begin += queries_per_block) {
        const num end = std::min(begin + queries_per_block, S), token = row * S + begin;
        // The first keys never decrease along a row: that of the first query is that of the block.
        const num base = tokens.first_key(token, window), num_keys = end - base;
        const attention_block block{token, end - begin, row * S + base, num_keys, h, h / group};
        const char* hidden = tokens.is_hidden.empty() ? nullptr : &tokens.is_hidden[row * S + base];

        const auto p = part_of(scores.view(), 0, end - begin, 0, num_keys);
        gemm_nt(block.queries(q, D), block.keys(k, D), p, scale);
        for (num i = begin; i < end; ++i)
          softmax_of_visible(scores.row(i - begin), num_keys, tokens.first_key(row * S + i, window) - base,
                             i + 1 - base, hidden);
        f(block, p);
      }
}

}  // namespace

template <class T>
void attention(const token_info& tokens, num window, num D, read_view<T> q, read_view<T> k, read_view<T> v,
               matrix_view<T> heads) {
  for_each_block<T>(tokens, window, D, q, k, [&](const attention_block& block, matrix_view<T> p) {
    gemm_nn(p, block.keys(v, D), block.queries(heads, D));  // (num_queries, D)
  });
}

template <class T>
void attention_backward(const token_info& tokens, num window, num D, read_view<T> q, read_view<T> k, read_view<T> v,
                        read_view<T> d_heads, matrix_view<T> d_q, matrix_view<T> d_k, matrix_view<T> d_v) {
  const T scale = 1 / std::sqrt(T(D));
  tensor<T> buffer(std::min(queries_per_block, tokens.length), round_up(tokens.length, 16));
  for_each_block<T>(tokens, window, D, q, k, [&](const attention_block& block, matrix_view<T> p) {
    const auto d_scores = part_of(buffer.view(), 0, p.rows, 0, p.cols);  // (num_queries, num_keys)
    gemm_tn(p, block.queries(d_heads, D), block.keys(d_v, D), 1, 1);
    gemm_nt(block.queries(d_heads, D), block.keys(v, D), d_scores);  // so far of p
    for (num i = 0; i < p.rows; ++i) softmax_backward(p.data + i * p.stride, buffer.row(i), p.cols);
    gemm_nn(d_scores, block.keys(k, D), block.queries(d_q, D), scale, 1);
    gemm_tn(d_scores, block.queries(q, D), block.keys(d_k, D), scale, 1);  // of all queries that read this head
  });
}

template void attention<float>(const token_info&, num, num, read_view<float>, read_view<float>, read_view<float>,
                               matrix_view<float>);
template void attention<double>(const token_info&, num, num, read_view<double>, read_view<double>, read_view<double>,
                                matrix_view<double>);
template void attention_backward<float>(const token_info&, num, num, read_view<float>, read_view<float>,
                                        read_view<float>, read_view<float>, matrix_view<float>, matrix_view<float>,
                                        matrix_view<float>);
template void attention_backward<double>(const token_info&, num, num, read_view<double>, read_view<double>,
                                         read_view<double>, read_view<double>, matrix_view<double>, matrix_view<double>,
                                         matrix_view<double>);

}  // namespace shardplan::runtime::reference
