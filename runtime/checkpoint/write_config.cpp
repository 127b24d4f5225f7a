// SPDX-License-Identifier: Apache-2.0
// config.json, written in the spelling of the published models, which version 4 and version 5 of `transformers` read.
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/atomic_file.hpp"
#include "runtime/checkpoint/model_config.hpp"
#include "runtime/error.hpp"

namespace shardplan::runtime {
namespace {

/// null, or the object of YaRN.
nlohmann::json rope_scaling(const rope_config& rope) {
  if (rope.type == rope_config::scaling::none) return nullptr;
  nlohmann::json json = {{"rope_type", "yarn"},
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

struct family_names {
  const char *model_type, *architecture;
};

family_names names_of(model_family family) {
  switch (family) {
    case model_family::qwen3:
      return {"qwen3", "Qwen3ForCausalLM"};
    case model_family::mistral:
      return {"mistral", "MistralForCausalLM"};
    case model_family::qwen3_moe:
      break;
  }
  return {"qwen3_moe", "Qwen3MoeForCausalLM"};
}

/// What the family's configuration cannot say would be lost silently.
void refuse_if_unspeakable(const model_config& config) {
  const model_spec& m = config.spec;
  const auto refuse = [&](bool lost, const char* what) {
    if (lost) throw input_error(std::string(names_of(config.family).model_type) + " models have no " + what);
  };
  const bool mistral = config.family == model_family::mistral;
  refuse(config.family != model_family::qwen3_moe && m.num_experts > 0, "experts");
  refuse(config.family != model_family::qwen3 && m.full_attention_layers != layer_set{}, "layers of several windows");
  refuse(mistral && m.head_norm, "norms of queries and keys");
  refuse(!mistral && !m.head_norm, "attention without norms of queries and keys");
  refuse(mistral && m.attention_bias, "biases");
}

void add_experts(const model_config& config, nlohmann::json& json) {
  const model_spec& m = config.spec;
  nlohmann::json mlp_only_layers = nlohmann::json::array();
  for (num layer = 0; layer < m.num_hidden_layers; ++layer)
    if (m.mlp_only_layers.has(layer)) mlp_only_layers.push_back(layer);
  json["decoder_sparse_step"] = m.decoder_sparse_step;
  json["mlp_only_layers"] = mlp_only_layers;
  json["moe_intermediate_size"] = m.moe_intermediate_size;
  json["norm_topk_prob"] = config.norm_topk_prob;
  json["num_experts"] = m.num_experts;
  json["num_experts_per_tok"] = m.num_experts_per_tok;
  json["output_router_logits"] = config.output_router_logits;
  json["router_aux_loss_coef"] = config.router_aux_loss_coef;
}

/// Version 5 reads the list; version 4 knows the index of the first layer with a window.
void add_layer_types(const model_spec& m, nlohmann::json& json) {
  nlohmann::json types = nlohmann::json::array();
  num first = m.num_hidden_layers;
  for (num layer = m.num_hidden_layers - 1; layer >= 0; --layer)
    if (attention_window(m, layer) > 0) first = layer;
  for (num layer = 0; layer < m.num_hidden_layers; ++layer)
    types.push_back(attention_window(m, layer) > 0 ? "sliding_attention" : "full_attention");
  json["layer_types"] = types;
  json["max_window_layers"] = first;
}

}  // namespace

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

void write_config(const std::filesystem::path& directory, const model_config& config, tensor_dtype dtype) {
  refuse_if_unspeakable(config);
  const model_spec& m = config.spec;
  const family_names names = names_of(config.family);
  nlohmann::json json = {
      {"architectures", nlohmann::json::array({names.architecture})},
      {"attention_dropout", 0.0},
      {"head_dim", m.head_dim},
      {"hidden_act", "silu"},
      {"hidden_size", m.hidden_size},
      {"initializer_range", config.initializer_range},
      {"intermediate_size", m.intermediate_size},
      {"max_position_embeddings", m.max_position_embeddings},
      {"model_type", names.model_type},
      {"num_attention_heads", m.num_attention_heads},
      {"num_hidden_layers", m.num_hidden_layers},
      {"num_key_value_heads", m.num_key_value_heads},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_scaling", rope_scaling(config.rope)},
      {"rope_theta", config.rope.theta},
      {"sliding_window", nullptr},
      {"tie_word_embeddings", m.tie_word_embeddings},
      {"torch_dtype", torch_name(dtype)},
      {"transformers_version", "4.51.0"},
      {"use_cache", true},
      {"vocab_size", m.vocab_size},
  };
  if (m.sliding_window > 0) json["sliding_window"] = m.sliding_window;
  if (config.family != model_family::mistral) {
    json["attention_bias"] = m.attention_bias;
    json["max_window_layers"] = m.num_hidden_layers;
    json["use_sliding_window"] = m.sliding_window > 0;
  }
  if (config.family == model_family::qwen3) add_layer_types(m, json);
  if (config.family == model_family::qwen3_moe) add_experts(config, json);
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
