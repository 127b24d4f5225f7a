// SPDX-License-Identifier: Apache-2.0
// What is computed: the dims of a Qwen3-MoE model. Real numbers (rotary base, epsilon) are not here: no cut depends
// on them, and they may not be part of a template argument on every compiler.
#ifndef SHARDPLAN_MODEL_HPP
#define SHARDPLAN_MODEL_HPP

#include <shardplan/meta.hpp>

namespace shardplan {

/// A set of layer indices below `capacity`.
struct layer_set {
  static constexpr num capacity = 512;
  std::uint64_t words[capacity / 64]{};

  constexpr bool has(num layer) const {
    return layer >= 0 && layer < capacity && ((words[layer / 64] >> (layer % 64)) & 1u) != 0;
  }
  constexpr layer_set& insert(num layer) {
    words[layer / 64] |= std::uint64_t{1} << (layer % 64);
    return *this;
  }
  friend constexpr bool operator==(const layer_set&, const layer_set&) = default;
};

/// The dims of a model, in the spelling of its Hugging Face configuration. Sizes are logical: `moe_intermediate_size`
/// is I although gate and up are stored fused as 2*I rows.
struct model_spec {
  num num_hidden_layers = 1;
  num hidden_size = 1;
  num num_attention_heads = 1;
  num num_key_value_heads = 1;
  num head_dim = 2;
  num intermediate_size = 1;      ///< of dense layers
  num moe_intermediate_size = 1;  ///< of one expert
  num num_experts = 0;            ///< 0: a dense model
  num num_experts_per_tok = 0;
  num vocab_size = 1;
  num max_position_embeddings = 1;
  num decoder_sparse_step = 1;
  num sliding_window = 0;             ///< 0: full attention; otherwise keys in (query - window, query]
  layer_set mlp_only_layers{};        ///< dense whatever decoder_sparse_step says
  layer_set full_attention_layers{};  ///< attend without the window, where there is one
  bool attention_bias = false;        ///< of q, k, v and o
  bool head_norm = true;              ///< q and k are normalised over head_dim (q_norm, k_norm)
  bool tie_word_embeddings = false;
  bool scaled_rotary = false;  ///< rotary scaling allows positions beyond max_position_embeddings

  friend constexpr bool operator==(const model_spec&, const model_spec&) = default;
};

/// Layer i holds experts iff it is not listed as dense and its turn has come: (i + 1) % decoder_sparse_step == 0.
constexpr bool is_moe_layer(const model_spec& m, num layer) {
  return m.num_experts > 0 && m.decoder_sparse_step > 0 && !m.mlp_only_layers.has(layer) &&
         (layer + 1) % m.decoder_sparse_step == 0;
}

/// Keys a query of that layer may look back over, itself included; 0: all.
constexpr num attention_window(const model_spec& m, num layer) {
  return m.full_attention_layers.has(layer) ? 0 : m.sliding_window;
}

constexpr num num_moe_layers(const model_spec& m) {
  num n = 0;
  for (num layer = 0; layer < m.num_hidden_layers; ++layer) n += is_moe_layer(m, layer) ? 1 : 0;
  return n;
}
constexpr num num_dense_layers(const model_spec& m) { return m.num_hidden_layers - num_moe_layers(m); }

}  // namespace shardplan
#endif  // SHARDPLAN_MODEL_HPP
