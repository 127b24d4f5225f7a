// SPDX-License-Identifier: Apache-2.0
// The parameters of a model: Hugging Face runtime names, shapes, class. Experts of a layer are two tensors, all
// gates and ups fused and all downs, as current releases of the model code hold them.
#ifndef SHARDPLAN_PARAMETERS_HPP
#define SHARDPLAN_PARAMETERS_HPP

#include <shardplan/model.hpp>
#include <shardplan/region.hpp>

namespace shardplan {

/// What a parameter is; layers hold those from input_layernorm to mlp_down.
enum class parameter_kind : unsigned char {
  embed_tokens,              ///< [vocab, hidden]
  input_layernorm,           ///< [hidden]
  q_proj,                    ///< [heads * head_dim, hidden]
  k_proj,                    ///< [kv_heads * head_dim, hidden]
  v_proj,                    ///< [kv_heads * head_dim, hidden]
  o_proj,                    ///< [hidden, heads * head_dim]
  q_bias,                    ///< [heads * head_dim]
  k_bias,                    ///< [kv_heads * head_dim]
  v_bias,                    ///< [kv_heads * head_dim]
  o_bias,                    ///< [hidden]
  q_norm,                    ///< [head_dim]
  k_norm,                    ///< [head_dim]
  post_attention_layernorm,  ///< [hidden]
  router,                    ///< [experts, hidden]
  experts_gate_up,           ///< [experts, 2 * moe_intermediate, hidden], gate rows first
  experts_down,              ///< [experts, hidden, moe_intermediate]
  mlp_gate,                  ///< [intermediate, hidden]
  mlp_up,                    ///< [intermediate, hidden]
  mlp_down,                  ///< [hidden, intermediate]
  final_norm,                ///< [hidden]
  lm_head,                   ///< [vocab, hidden]; none when tied
};
inline constexpr std::size_t num_parameter_kinds = 21;

/// Parameters of one class are reduced over the same axes.
enum class parameter_class : unsigned char { dense, norm, head_norm, router, expert, embedding, head };

/// Name of the tensor, without the prefix of its layer.
constexpr text_view name_of(parameter_kind k) {
  constexpr text_view names[num_parameter_kinds] = {
      "model.embed_tokens.weight",
      "input_layernorm.weight",
      "self_attn.q_proj.weight",
      "self_attn.k_proj.weight",
      "self_attn.v_proj.weight",
      "self_attn.o_proj.weight",
      "self_attn.q_proj.bias",
      "self_attn.k_proj.bias",
      "self_attn.v_proj.bias",
      "self_attn.o_proj.bias",
      "self_attn.q_norm.weight",
      "self_attn.k_norm.weight",
      "post_attention_layernorm.weight",
      "mlp.gate.weight",
      "mlp.experts.gate_up_proj",
      "mlp.experts.down_proj",
      "mlp.gate_proj.weight",
      "mlp.up_proj.weight",
      "mlp.down_proj.weight",
      "model.norm.weight",
      "lm_head.weight",
  };
  return names[static_cast<std::size_t>(k)];
}

constexpr parameter_class class_of(parameter_kind k) {
  switch (k) {
    case parameter_kind::embed_tokens:
      return parameter_class::embedding;
    case parameter_kind::lm_head:
      return parameter_class::head;
    case parameter_kind::router:
      return parameter_class::router;
    case parameter_kind::experts_gate_up:
    case parameter_kind::experts_down:
      return parameter_class::expert;
    case parameter_kind::q_norm:
    case parameter_kind::k_norm:
      return parameter_class::head_norm;
    case parameter_kind::input_layernorm:
    case parameter_kind::post_attention_layernorm:
    case parameter_kind::final_norm:
      return parameter_class::norm;
    default:
      return parameter_class::dense;
  }
}

/// Of keys or values: cut by key/value heads, which ranks may hold copies of.
constexpr bool is_key_value(parameter_kind k) {
  return k == parameter_kind::k_proj || k == parameter_kind::v_proj || k == parameter_kind::k_bias ||
         k == parameter_kind::v_bias;
}

struct parameter {
  static constexpr num no_layer = -1;
  parameter_kind kind{};
  num layer = no_layer;
  fixed_vector<num, 3> shape{};

  constexpr num size() const {
    num n = 1;
    for (num extent : shape) n *= extent;
    return n;
  }
  constexpr region whole() const {
    region all;
    for (num extent : shape) all.dims.push_back({0, extent});
    return all;
  }
  friend constexpr bool operator==(const parameter&, const parameter&) = default;
};

/// The full name, for example `model.layers.3.self_attn.q_proj.weight`.
constexpr fixed_text<96> name_of(const parameter& p) {
  fixed_text<96> text;
  if (p.layer != parameter::no_layer) text.add("model.layers.").add(p.layer).add(".");
  return text.add(name_of(p.kind));
}

/// The weight of the head: its own, or the embedding it is tied to.
constexpr parameter_kind head_weight(const model_spec& m) {
  return m.tie_word_embeddings ? parameter_kind::embed_tokens : parameter_kind::lm_head;
}

/// Shape of a parameter of that kind, whether or not the model has one.
constexpr parameter make_parameter(const model_spec& m, parameter_kind kind, num layer = parameter::no_layer) {
  parameter p{kind, layer, {}};
  const auto shape = [&](auto... extents) { (p.shape.push_back(extents), ...); };
  const num q = m.num_attention_heads * m.head_dim, kv = m.num_key_value_heads * m.head_dim;
  switch (kind) {
    case parameter_kind::embed_tokens:
    case parameter_kind::lm_head:
      shape(m.vocab_size, m.hidden_size);
      break;
    case parameter_kind::input_layernorm:
    case parameter_kind::post_attention_layernorm:
    case parameter_kind::final_norm:
    case parameter_kind::o_bias:
      shape(m.hidden_size);
      break;
    case parameter_kind::q_proj:
      shape(q, m.hidden_size);
      break;
    case parameter_kind::k_proj:
    case parameter_kind::v_proj:
      shape(kv, m.hidden_size);
      break;
    case parameter_kind::o_proj:
      shape(m.hidden_size, q);
      break;
    case parameter_kind::q_bias:
      shape(q);
      break;
    case parameter_kind::k_bias:
    case parameter_kind::v_bias:
      shape(kv);
      break;
    case parameter_kind::q_norm:
    case parameter_kind::k_norm:
      shape(m.head_dim);
      break;
    case parameter_kind::router:
      shape(m.num_experts, m.hidden_size);
      break;
    case parameter_kind::experts_gate_up:
      shape(m.num_experts, 2 * m.moe_intermediate_size, m.hidden_size);
      break;
    case parameter_kind::experts_down:
      shape(m.num_experts, m.hidden_size, m.moe_intermediate_size);
      break;
    case parameter_kind::mlp_gate:
    case parameter_kind::mlp_up:
      shape(m.intermediate_size, m.hidden_size);
      break;
    case parameter_kind::mlp_down:
      shape(m.hidden_size, m.intermediate_size);
      break;
  }
  return p;
}

/// Calls `f(parameter)` for each parameter of one layer, in the order in which the layer uses them.
template <class F>
constexpr void for_each_layer_parameter(const model_spec& m, num layer, F&& f) {
  for (int k = static_cast<int>(parameter_kind::input_layernorm); k <= static_cast<int>(parameter_kind::mlp_down);
       ++k) {
    const auto kind = static_cast<parameter_kind>(k);
    const bool bias = kind >= parameter_kind::q_bias && kind <= parameter_kind::o_bias;
    const bool moe = kind >= parameter_kind::router && kind <= parameter_kind::experts_down;
    const bool dense = kind >= parameter_kind::mlp_gate;
    const bool head_norm = kind == parameter_kind::q_norm || kind == parameter_kind::k_norm;
    if (bias && !m.attention_bias) continue;
    if (head_norm && !m.head_norm) continue;
    if (moe && !is_moe_layer(m, layer)) continue;
    if (dense && is_moe_layer(m, layer)) continue;
    f(make_parameter(m, kind, layer));
  }
}

/// Calls `f(parameter)` for each parameter of the model, in the order in which a forward uses them.
template <class F>
constexpr void for_each_parameter(const model_spec& m, F&& f) {
  f(make_parameter(m, parameter_kind::embed_tokens));
  for (num layer = 0; layer < m.num_hidden_layers; ++layer) for_each_layer_parameter(m, layer, f);
  f(make_parameter(m, parameter_kind::final_norm));
  if (!m.tie_word_embeddings) f(make_parameter(m, parameter_kind::lm_head));
}

constexpr num num_parameters(const model_spec& m) {
  num n = 0;
  for_each_parameter(m, [&](const parameter& p) { n += p.size(); });
  return n;
}

}  // namespace shardplan
#endif  // SHARDPLAN_PARAMETERS_HPP
