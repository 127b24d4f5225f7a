// SPDX-License-Identifier: Apache-2.0
// config.json, written in the spelling of the published models, which version 4 and version 5 of `transformers` read.
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/atomic_file.hpp"
#include "runtime/checkpoint/model_config.hpp"
#include "runtime/error.hpp"

namespace shardplan::runtime {
namespace {

std::string_view torch_name(tensor_dtype dtype) {
  switch (dtype) {
    case tensor_dtype::f64:
      return "float64";
    case tensor_dtype::f32:
      return "float32";
    case tensor_dtype::f16:
      return "float16";
    case tensor_dtype::bf16:
      return "bfloat16";
    default:
      throw input_error("weights cannot be " + std::string(name_of(dtype)) + ", only F64, F32, F16 or BF16");
  }
}

/// null, or the object of YaRN.
nlohmann::ordered_json rope_scaling(const rope_config& rope) {
  if (rope.type == rope_config::scaling::none) return nullptr;
  nlohmann::ordered_json json = {{"rope_type", "yarn"},
                                 {"factor", rope.factor},
                                 {"original_max_position_embeddings", std::llround(rope.original_max_positions)},
                                 {"beta_fast", rope.beta_fast},
                                 {"beta_slow", rope.beta_slow}};
  if (rope.attention_factor) json["attention_factor"] = *rope.attention_factor;
  if (rope.mscale) json["mscale"] = *rope.mscale;
  if (rope.mscale_all_dim) json["mscale_all_dim"] = *rope.mscale_all_dim;
  if (!rope.truncate) json["truncate"] = false;
  return json;
}

}  // namespace

void write_config(const std::filesystem::path& directory, const model_config& config, tensor_dtype dtype) {
  const model_spec& m = config.spec;
  nlohmann::ordered_json mlp_only_layers = nlohmann::ordered_json::array();
  for (num layer = 0; layer < m.num_hidden_layers; ++layer)
    if (m.mlp_only_layers.has(layer)) mlp_only_layers.push_back(layer);
  nlohmann::ordered_json json = {
      {"architectures", nlohmann::ordered_json::array({"Qwen3MoeForCausalLM"})},
      {"attention_bias", m.attention_bias},
      {"attention_dropout", 0.0},
      {"decoder_sparse_step", m.decoder_sparse_step},
      {"head_dim", m.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", m.hidden_size},
      {"initializer_range", config.initializer_range},
      {"intermediate_size", m.intermediate_size},
      {"max_position_embeddings", m.max_position_embeddings},
      {"max_window_layers", m.num_hidden_layers},
      {"mlp_only_layers", mlp_only_layers},
      {"model_type", "qwen3_moe"},
      {"moe_intermediate_size", m.moe_intermediate_size},
      {"norm_topk_prob", config.norm_topk_prob},
      {"num_attention_heads", m.num_attention_heads},
      {"num_experts", m.num_experts},
      {"num_experts_per_tok", m.num_experts_per_tok},
      {"num_hidden_layers", m.num_hidden_layers},
      {"num_key_value_heads", m.num_key_value_heads},
      {"output_router_logits", config.output_router_logits},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_scaling", rope_scaling(config.rope)},
      {"rope_theta", config.rope.theta},
      {"router_aux_loss_coef", config.router_aux_loss_coef},
      {"sliding_window", nullptr},
      {"tie_word_embeddings", m.tie_word_embeddings},
      {"torch_dtype", torch_name(dtype)},
      {"transformers_version", "4.51.0"},
      {"use_cache", true},
      {"use_sliding_window", m.sliding_window > 0},
      {"vocab_size", m.vocab_size},
  };
  if (m.sliding_window > 0) json["sliding_window"] = m.sliding_window;
  atomic_file file(directory / "config.json");
  file.write(json.dump(2) + "\n");
  file.commit();
}

model_config config_of(const models::published_model& model) {
  model_config config;
  config.spec = model.spec;
  config.norm_topk_prob = true;
  config.rope.theta = model.rope_theta;
  if (model.name == "qwen3-coder-480b-a35b") config.router_aux_loss_coef = 0;
  return config;
}

}  // namespace shardplan::runtime
