// SPDX-License-Identifier: Apache-2.0
// config.json, read. Where the public implementation has a default for a real number or a switch, it is the same here.
#include <fmt/format.h>

#include "runtime/checkpoint/json_file.hpp"
#include "runtime/checkpoint/model_config.hpp"

namespace shardplan::runtime {
namespace {

model_family read_family(const json_object& json) {
  const std::string type = json.text("model_type");
  if (type == "qwen3_moe") return model_family::qwen3_moe;
  if (type == "qwen3") return model_family::qwen3;
  if (type == "mistral") return model_family::mistral;
  json.refuse("model_type", "\"qwen3_moe\", \"qwen3\" or \"mistral\"");
}

void refuse_other_models(const json_object& json, model_family family) {
  if (json.text_or("hidden_act", "silu") != "silu") json.refuse("hidden_act", "\"silu\"");
  if (json.has("quantization_config"))
    json.refuse("quantization_config", "absent: quantized weights are not supported");
  if (family != model_family::qwen3_moe) {
    if (json.boolean_or("mlp_bias", false)) json.refuse("mlp_bias", "false: biases of the MLP are not supported");
    return;
  }
  // Fields of some releases that name variants of the architecture; the releases switch them off.
  if (json.boolean_or("qkv_bias", false)) json.refuse("qkv_bias", "false (attention_bias has biases of q, k, v and o)");
  if (!json.boolean_or("use_qk_norm", true)) json.refuse("use_qk_norm", "true");
  if (json.has("shared_expert_intermediate_size") && json.integer("shared_expert_intermediate_size", 0) != 0)
    json.refuse("shared_expert_intermediate_size", "0: shared experts are not supported");
}

/// `num_experts` is the older name of `num_local_experts`, which goes before it.
num read_num_experts(const json_object& json) {
  if (json.has("num_local_experts")) return json.integer("num_local_experts", 0);
  if (!json.has("num_experts")) json.refuse("num_experts", "an integer >= 0 (or called num_local_experts)");
  return json.integer("num_experts", 0);
}

/// Indices beyond the last layer name no layer: they have no effect, as in the public implementation.
layer_set read_mlp_only_layers(const json_object& json, num num_layers) {
  layer_set layers;
  if (!json.has("mlp_only_layers")) return layers;
  const nlohmann::json& list = json.get("mlp_only_layers");
  const std::string_view requirement = "a list of layer indices >= 0 or null";
  if (!list.is_array()) json.refuse("mlp_only_layers", requirement);
  for (const nlohmann::json& index : list) {
    if (!index.is_number_integer() || (!index.is_number_unsigned() && index.get<num>() < 0))
      json.refuse("mlp_only_layers", requirement);
    if (index.get<std::uint64_t>() < static_cast<std::uint64_t>(num_layers)) layers.insert(index.get<num>());
  }
  return layers;
}

void read_heads(const json_object& json, model_family family, model_spec& m) {
  m.num_attention_heads = json.integer("num_attention_heads", 1);
  switch (family) {
    case model_family::qwen3_moe:
      m.num_key_value_heads = json.integer("num_key_value_heads", 1);
      break;
    case model_family::mistral:
      m.num_key_value_heads = json.integer_or("num_key_value_heads", 8, 1);
      break;
    case model_family::qwen3:
      m.num_key_value_heads = m.num_attention_heads;  // when null
      if (json.has("num_key_value_heads") || !json.value().contains("num_key_value_heads"))
        m.num_key_value_heads = json.integer_or("num_key_value_heads", 32, 1);
      m.head_dim = json.integer_or("head_dim", 128, 1);
      return;
  }
  if (json.has("head_dim")) {
    m.head_dim = json.integer("head_dim", 1);
    return;
  }
  m.head_dim = m.hidden_size / m.num_attention_heads;
  if (m.head_dim < 1)
    json.refuse("head_dim", fmt::format("given where hidden_size {} is below num_attention_heads {}", m.hidden_size,
                                        m.num_attention_heads));
}

/// The layers of `layer_types` that have a window; where it is not given, those from `max_window_layers` on.
layer_set read_sliding_layers(const json_object& json, num num_layers, num window) {
  layer_set sliding;
  const num first = json.integer_or("max_window_layers", 28, 0);
  if (!json.has("layer_types")) {
    for (num layer = first; layer < num_layers && window > 0; ++layer) sliding.insert(layer);
    return sliding;
  }
  const nlohmann::json& list = json.get("layer_types");
  const std::string requirement =
      fmt::format("a list of \"full_attention\" or \"sliding_attention\" for each of {} layers, or null", num_layers);
  if (!list.is_array() || static_cast<num>(list.size()) != num_layers) json.refuse("layer_types", requirement);
  for (num layer = 0; layer < num_layers; ++layer) {
    const nlohmann::json& type = list[static_cast<std::size_t>(layer)];
    if (type == "sliding_attention")
      sliding.insert(layer);
    else if (type != "full_attention" && type != "attention")  // the older name
      json.refuse("layer_types", requirement);
  }
  if (window == 0 && sliding != layer_set{})
    json.refuse("layer_types", "\"full_attention\" for every layer where there is no sliding_window in use");
  return sliding;
}

void read_windows(const json_object& json, model_family family, model_spec& m) {
  const std::string_view field = "sliding_window";
  const bool given = json.value().contains(field);
  if (family == model_family::mistral) {
    if (json.value().contains("layer_types")) json.refuse("layer_types", "absent: all layers have one window");
    if (json.has(field) || !given) m.sliding_window = json.integer_or(field, 4096, 1);
    return;
  }
  // Without the switch the size means nothing; with it, null means full attention.
  num window = 0;
  if (json.boolean_or("use_sliding_window", false)) {
    if (!given && family == model_family::qwen3_moe) json.refuse(field, "given with use_sliding_window");
    if (json.has(field) || !given) window = json.integer_or(field, 4096, 1);
  }
  m.sliding_window = window;
  if (family == model_family::qwen3_moe) return;
  const layer_set sliding = read_sliding_layers(json, m.num_hidden_layers, window);
  if (sliding == layer_set{}) m.sliding_window = 0;
  for (num layer = 0; layer < m.num_hidden_layers && m.sliding_window > 0; ++layer)
    if (!sliding.has(layer)) m.full_attention_layers.insert(layer);
}

void read_experts(const json_object& json, model_spec& m) {
  m.num_experts = read_num_experts(json);
  if (m.num_experts > 0) {
    m.moe_intermediate_size = json.integer("moe_intermediate_size", 1);
    m.num_experts_per_tok = json.integer("num_experts_per_tok", 1);
  } else {
    m.moe_intermediate_size = json.integer_or("moe_intermediate_size", m.moe_intermediate_size, 0);
    m.num_experts_per_tok = json.integer_or("num_experts_per_tok", m.num_experts_per_tok, 0);
  }
  m.decoder_sparse_step = json.integer_or("decoder_sparse_step", 1, 1);
  m.mlp_only_layers = read_mlp_only_layers(json, m.num_hidden_layers);
}

model_spec read_spec(const json_object& json, model_family family) {
  model_spec m;
  // One more layer than a layer_set can hold would be lost silently.
  m.num_hidden_layers = json.integer("num_hidden_layers", 1, layer_set::capacity);
  m.hidden_size = json.integer("hidden_size", 1);
  read_heads(json, family, m);
  m.intermediate_size = json.integer("intermediate_size", 1);
  m.vocab_size = json.integer("vocab_size", 1);
  m.max_position_embeddings = json.integer("max_position_embeddings", 1);
  if (family == model_family::qwen3_moe) read_experts(json, m);
  read_windows(json, family, m);
  m.head_norm = family != model_family::mistral;
  m.attention_bias = family != model_family::mistral && json.boolean_or("attention_bias", false);
  m.tie_word_embeddings = json.boolean_or("tie_word_embeddings", false);
  return m;
}

/// A number, or none when absent, null or 0: the public implementation takes 0 for "not given" here.
std::optional<double> optional_number(const json_object& json, std::string_view field) {
  const double number = json.has(field) ? json.number_or(field, 0, 0) : 0;
  return number != 0 ? std::optional(number) : std::nullopt;
}

void read_yarn(const json_object& json, const json_object& yarn, num max_positions, rope_config& rope) {
  rope.type = rope_config::scaling::yarn;
  // A field of the whole configuration goes before that of the rotary parameters.
  const std::string_view original = "original_max_position_embeddings";
  const json_object& holder = json.has(original) ? json : yarn;
  rope.original_max_positions = static_cast<double>(holder.has(original) ? holder.integer(original, 1) : max_positions);
  if (!yarn.value().contains("factor")) yarn.refuse("factor", "a number > 0");
  rope.factor = yarn.has("factor") ? yarn.number_or("factor", 1, 0, true)
                                   : static_cast<double>(max_positions) / rope.original_max_positions;
  rope.beta_fast = optional_number(yarn, "beta_fast").value_or(rope.beta_fast);
  rope.beta_slow = optional_number(yarn, "beta_slow").value_or(rope.beta_slow);
  if (yarn.has("attention_factor")) rope.attention_factor = yarn.number_or("attention_factor", 1, 0, true);
  rope.mscale = optional_number(yarn, "mscale");
  rope.mscale_all_dim = optional_number(yarn, "mscale_all_dim");
  rope.truncate = yarn.boolean_or("truncate", true);
}

/// Rotary numbers are in `rope_parameters` (version 5), or in `rope_scaling` with `rope_theta` beside it (before).
rope_config read_rope(const json_object& json, num max_positions) {
  rope_config rope;
  const auto full_rotary = [](const json_object& fields) {
    if (fields.number_or("partial_rotary_factor", 1, 0) != 1)
      fields.refuse("partial_rotary_factor", "1: rotating a part of a head is not supported");
  };
  full_rotary(json);
  rope.theta = json.number_or("rope_theta", rope.theta, 1, true);
  std::optional<json_object> scaling = json.object("rope_scaling");
  if (!scaling || scaling->value().empty()) scaling = json.object("rope_parameters");
  if (!scaling) return rope;
  full_rotary(*scaling);
  for (const auto& [name, value] : scaling->value().items())
    if (value.is_object()) scaling->refuse(name, "a plain value: all layers have one kind of rotary embedding");
  rope.theta = scaling->number_or("rope_theta", rope.theta, 1, true);
  const std::string_view field = scaling->value().contains("rope_type") ? "rope_type" : "type";
  const std::string type = scaling->text_or(field, "default");
  if (type == "yarn") read_yarn(json, *scaling, max_positions, rope);
  if (type != "yarn" && type != "default") scaling->refuse(field, "\"default\" or \"yarn\"");
  return rope;
}

}  // namespace

model_config read_config(const std::filesystem::path& directory) {
  const json_object json = json_object::read(directory / "config.json");
  model_config config;
  config.family = read_family(json);
  refuse_other_models(json, config.family);
  config.spec = read_spec(json, config.family);
  config.rope = read_rope(json, config.spec.max_position_embeddings);
  config.spec.scaled_rotary = config.rope.type == rope_config::scaling::yarn;
  config.rms_norm_eps = json.number_or("rms_norm_eps", config.rms_norm_eps, 0);
  config.initializer_range = json.number_or("initializer_range", config.initializer_range, 0);
  if (config.family != model_family::qwen3_moe) return config;
  config.norm_topk_prob = json.boolean_or("norm_topk_prob", config.norm_topk_prob);
  config.router_aux_loss_coef = json.number_or("router_aux_loss_coef", config.router_aux_loss_coef, 0);
  config.output_router_logits = json.boolean_or("output_router_logits", config.output_router_logits);
  return config;
}

}  // namespace shardplan::runtime
