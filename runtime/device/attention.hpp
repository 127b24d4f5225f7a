// SPDX-License-Identifier: Apache-2.0
// Attention to blocks of keys that arrive one after another, whatever tokens they hold: softmax is accumulated online,
// and who may attend to whom is decided by where tokens stand in their padded row, never by their place in memory.
#ifndef SHARDPLAN_RUNTIME_DEVICE_ATTENTION_HPP
#define SHARDPLAN_RUNTIME_DEVICE_ATTENTION_HPP

#include <shardplan/meta.hpp>
#include <span>
#include <vector>

#include "runtime/device/buffer.hpp"

namespace shardplan::runtime {

/// Where the tokens of one row that somebody holds stand, in the order they are held.
struct token_places {
  std::vector<num> offset;    ///< in the padded row
  std::vector<num> document;  ///< tokens attend inside their document alone
  std::vector<char> key;      ///< may it be attended to? padding may not
};

/// Query q attends to key k iff k.key, same document, k.offset <= q.offset, and q.offset - k.offset < window (if any).
/// The result is softmax(q k / sqrt(D)) v over all keys seen; 0 for a query that saw none.
template <class T>
class online_attention {
 public:
  /// `queries` (tokens, rows, heads, head_dim), with places of each row. Both must outlive this object.
  online_attention(std::span<const T> queries, std::span<const token_places> places, num heads, num head_dim,
                   num window);

  /// Sees the keys and values (key_tokens, rows, kv_heads, head_dim); head h reads key/value head h * kv_heads / heads.
  void attend(std::span<const T> keys, std::span<const T> values, std::span<const token_places> places, num kv_heads);

  /// out (tokens, rows, heads, head_dim), and log_sum (rows, heads, tokens): the log of each query's softmax sum, which
  /// is all that the backward needs of the scores; 0 where nothing was seen.
  void finish(std::span<T> out, std::span<T> log_sum) const;

 private:
  std::span<const T> queries_;
  std::span<const token_places> places_;
  num rows_, tokens_, heads_, head_dim_, window_;
  buffer<T> largest_, sum_;  // (rows, heads, tokens)
  buffer<T> weighted_;       // (rows, heads, tokens, head_dim)
};

/// The gradients of attention, one block of keys after another, scores recomputed from their log sums.
template <class T>
class attention_gradient {
 public:
  /// `queries`, `out` and `dout` (tokens, rows, heads, head_dim), `log_sum` as finish() left it; all but `out` must
  /// outlive this object.
  attention_gradient(std::span<const T> queries, std::span<const T> out, std::span<const T> dout,
                     std::span<const T> log_sum, std::span<const token_places> places, num heads, num head_dim,
                     num window);

  /// Adds to dkeys and dvalues (key_tokens, rows, kv_heads, head_dim) what these queries owe these keys.
  void attend(std::span<const T> keys, std::span<const T> values, std::span<const token_places> places, num kv_heads,
              std::span<T> dkeys, std::span<T> dvalues);

  /// The gradient of the queries, once all keys were seen.
  buffer<T>& dqueries() { return dqueries_; }

 private:
  std::span<const T> queries_, dout_, log_sum_;
  std::span<const token_places> places_;
  num rows_, tokens_, heads_, head_dim_, window_;
  buffer<T> along_;  // (rows, heads, tokens): sum of out * dout
  buffer<T> dqueries_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_ATTENTION_HPP
