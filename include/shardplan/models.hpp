// SPDX-License-Identifier: Apache-2.0
// The published Qwen3-MoE models by name.
#ifndef SHARDPLAN_MODELS_HPP
#define SHARDPLAN_MODELS_HPP

#include <shardplan/model.hpp>

namespace shardplan::models {

inline constexpr model_spec qwen3_30b_a3b = [] {
  model_spec m;
  m.num_hidden_layers = 48;
  m.hidden_size = 2048;
  m.num_attention_heads = 32;
  m.num_key_value_heads = 4;
  m.head_dim = 128;
  m.intermediate_size = 6144;
  m.moe_intermediate_size = 768;
  m.num_experts = 128;
  m.num_experts_per_tok = 8;
  m.vocab_size = 151936;
  m.max_position_embeddings = 40960;
  return m;
}();

/// The 2507 release of the 30B model: the same dims, longer positions.
inline constexpr model_spec qwen3_30b_a3b_2507 = [] {
  model_spec m = qwen3_30b_a3b;
  m.max_position_embeddings = 262144;
  return m;
}();

inline constexpr model_spec qwen3_235b_a22b = [] {
  model_spec m = qwen3_30b_a3b;
  m.num_hidden_layers = 94;
  m.hidden_size = 4096;
  m.num_attention_heads = 64;
  m.intermediate_size = 12288;
  m.moe_intermediate_size = 1536;
  return m;
}();

inline constexpr model_spec qwen3_235b_a22b_2507 = [] {
  model_spec m = qwen3_235b_a22b;
  m.max_position_embeddings = 262144;
  return m;
}();

inline constexpr model_spec qwen3_coder_480b_a35b = [] {
  model_spec m = qwen3_30b_a3b;
  m.num_hidden_layers = 62;
  m.hidden_size = 6144;
  m.num_attention_heads = 96;
  m.num_key_value_heads = 8;
  m.intermediate_size = 8192;
  m.moe_intermediate_size = 2560;
  m.num_experts = 160;
  m.max_position_embeddings = 262144;
  return m;
}();

struct published_model {
  text_view name;
  model_spec spec;
  double rope_theta;  ///< rotary base, for whoever writes a checkpoint
};

/// Every published model, by the name a command line uses.
inline constexpr published_model published[] = {
    {"qwen3-30b-a3b", qwen3_30b_a3b, 1e6},
    {"qwen3-30b-a3b-2507", qwen3_30b_a3b_2507, 1e7},
    {"qwen3-235b-a22b", qwen3_235b_a22b, 1e6},
    {"qwen3-235b-a22b-2507", qwen3_235b_a22b_2507, 5e6},
    {"qwen3-coder-480b-a35b", qwen3_coder_480b_a35b, 1e7},
};

/// The published model of that name, or nullptr.
constexpr const published_model* find(text_view name) {
  for (const published_model& model : published)
    if (model.name == name) return &model;
  return nullptr;
}

}  // namespace shardplan::models
#endif  // SHARDPLAN_MODELS_HPP
