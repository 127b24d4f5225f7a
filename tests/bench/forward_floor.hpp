// SPDX-License-Identifier: Apache-2.0
// The least time a GPU needs for the forward of a model: every operation takes as long as its products or its bytes,
// whichever is more, at the rates that a GPU reached in the same run.
#ifndef SHARDPLAN_TESTS_BENCH_FORWARD_FLOOR_HPP
#define SHARDPLAN_TESTS_BENCH_FORWARD_FLOOR_HPP

#include <algorithm>
#include <shardplan/model.hpp>

namespace bench {

using shardplan::model_spec;
using shardplan::num;

/// What a GPU reached: operations of products, bytes read and written, a second.
struct ceilings {
  double operations = 0, bytes = 0;
};

/// Operations (two per multiplication and addition) and bytes that cannot be avoided; values of two bytes.
struct work {
  double operations = 0, bytes = 0;
  double seconds(const ceilings& c) const { return std::max(operations / c.operations, bytes / c.bytes); }
};

/// n x k times k x m, operands read and the result written once.
inline work product(num n, num k, num m) {
  const double a = static_cast<double>(n), b = static_cast<double>(k), c = static_cast<double>(m);
  return {2 * a * b * c, 2 * (a * b + b * c + a * c)};
}

/// Causal attention of one row of `length` tokens: two products over each pair of a query and a key that it sees.
inline work causal_attention(const model_spec& m, num length) {
  const double n = static_cast<double>(length), heads = static_cast<double>(m.num_attention_heads),
               dim = static_cast<double>(m.head_dim);
  return {4 * n * (n + 1) / 2 * heads * dim,
          2 * n * dim * (2 * heads + 2 * static_cast<double>(m.num_key_value_heads))};
}

/// The experts of a layer: every token meets num_experts_per_tok of them, and every expert is met.
inline work experts(const model_spec& m, num length) {
  const num rows = length * m.num_experts_per_tok, H = m.hidden_size, I = m.moe_intermediate_size;
  const double weights = 2.0 * 3 * static_cast<double>(m.num_experts * H * I);
  const work up = product(rows, H, 2 * I), down = product(rows, I, H);
  const double shared = 2.0 * static_cast<double>(2 * H * I + H * I);  // weights of one expert, which `product` counted
  return {up.operations + down.operations, up.bytes + down.bytes - shared + weights};
}

/// Reads and writes `values` values.
inline work touch(num values) { return {0, 2 * static_cast<double>(values)}; }

/// One layer of Qwen3-MoE on a row of `length` tokens.
inline double layer_seconds(const model_spec& m, num length, const ceilings& c) {
  const num H = m.hidden_size, q = m.num_attention_heads * m.head_dim, kv = m.num_key_value_heads * m.head_dim,
            chosen = length * m.num_experts_per_tok;
  const work parts[] = {
      touch(2 * length * H),                        // norm
      product(length, H, q + 2 * kv),               // queries, keys, values
      touch(2 * length * (q + kv)),                 // their norms and rotary embedding
      causal_attention(m, length),                  //
      product(length, q, H),                        // back
      touch(3 * length * H),                        // residual sum
      touch(2 * length * H),                        // norm
      product(length, H, m.num_experts),            // router
      touch(length * H + chosen * H),               // rows to experts
      experts(m, length),                           //
      touch(chosen * 3 * m.moe_intermediate_size),  // SwiGLU
      touch(chosen * H + length * H),               // and back
      touch(3 * length * H),                        // residual sum
  };
  double seconds = 0;
  for (const work& w : parts) seconds += w.seconds(c);
  return seconds;
}

/// Embedding, final norm, head and loss.
inline double ends_seconds(const model_spec& m, num length, const ceilings& c) {
  const num H = m.hidden_size;
  return touch(2 * length * H).seconds(c) + touch(2 * length * H).seconds(c) +
         product(length, H, m.vocab_size).seconds(c) + touch(length * m.vocab_size).seconds(c);
}

}  // namespace bench
#endif  // SHARDPLAN_TESTS_BENCH_FORWARD_FLOOR_HPP
