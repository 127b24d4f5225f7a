// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/layer.hpp"

#include <algorithm>   // transform
#include <functional>  // plus
#include <utility>     // move
#include <vector>      // vector

namespace shardplan::runtime::reference {

template <class T>
layer_activations<T>::layer_activations(const model_spec& m, num N)
    : input(N, m.hidden_size),
      attention_input(N, m.hidden_size),
      q_linear(N, m.num_attention_heads * m.head_dim),
      q(N, m.num_attention_heads * m.head_dim),
      k_linear(N, m.num_key_value_heads * m.head_dim),
      k(N, m.num_key_value_heads * m.head_dim),
      v(N, m.num_key_value_heads * m.head_dim),
      heads(N, m.num_attention_heads * m.head_dim),
      middle(N, m.hidden_size),
      network_input(N, m.hidden_size),
      added(N, m.hidden_size) {}

template <class T>
void forward_layer(const model_config& config, const parameter_set<T>& weights, num layer, const token_info& tokens,
                   const rotary_table<T>& table, layer_activations<T>& a, tensor<T>& output) {
  using enum parameter_kind;
  const model_spec& m = config.spec;
  const num D = m.head_dim;
  const double eps = config.rms_norm_eps;
  const auto weight = [&](parameter_kind kind) -> const tensor<T>& { return weights.at(kind, layer); };
  const auto bias = [&](parameter_kind kind) { return m.attention_bias ? &weight(kind) : nullptr; };
  const auto add = [](const tensor<T>& x, const tensor<T>& y, tensor<T>& sum) {
    std::transform(x.all().begin(), x.all().end(), y.all().begin(), sum.all().begin(), std::plus<T>());
  };

  // ---- attention
  rmsnorm(a.input.view(), weight(input_layernorm).all(), eps, a.attention_input.view());
  linear(a.attention_input.view(), weight(q_proj).view(), bias(q_bias), a.q_linear.view());
  linear(a.attention_input.view(), weight(k_proj).view(), bias(k_bias), a.k_linear.view());
  linear(a.attention_input.view(), weight(v_proj).view(), bias(v_bias), a.v.view());
  if (m.head_norm) {
    rmsnorm(a.q_linear.folded(D), weight(q_norm).all(), eps, a.q.folded(D));
    rmsnorm(a.k_linear.folded(D), weight(k_norm).all(), eps, a.k.folded(D));
  } else {
    a.q = a.q_linear, a.k = a.k_linear;
  }
  rotary(table, a.q.view());
  rotary(table, a.k.view());
  attention(tokens, attention_window(m, layer), D, a.q.view(), a.k.view(), a.v.view(), a.heads.view());
  linear(a.heads.view(), weight(o_proj).view(), bias(o_bias), a.added.view());
  add(a.input, a.added, a.middle);

  // ---- network: experts, or dense
  rmsnorm(a.middle.view(), weight(post_attention_layernorm).all(), eps, a.network_input.view());
  if (is_moe_layer(m, layer)) {
    a.routes = route(m.num_experts_per_tok, config.norm_topk_prob, a.network_input, weight(router));
    experts(a.routes, a.network_input, weight(experts_gate_up), weight(experts_down), a.added);
  } else {
    mlp(a.network_input, weight(mlp_gate), weight(mlp_up), weight(mlp_down), a.added);
  }
  add(a.middle, a.added, output);
}

template <class T>
void backward_layer(const model_config& config, const parameter_set<T>& weights, num layer, const token_info& tokens,
                    const rotary_table<T>& table, const layer_activations<T>& a, const tensor<T>& d_probabilities,
                    tensor<T>& d, parameter_set<T>& gradients) {
  using enum parameter_kind;
  const model_spec& m = config.spec;
  const num D = m.head_dim, N = tokens.num_tokens(), H = m.hidden_size;
  const double eps = config.rms_norm_eps;
  const auto weight = [&](parameter_kind kind) -> const tensor<T>& { return weights.at(kind, layer); };
  const auto gradient = [&](parameter_kind kind) -> tensor<T>& { return gradients.at(kind, layer); };
  const auto bias = [&](parameter_kind kind) { return m.attention_bias ? &gradient(kind) : nullptr; };
  // What a half of the layer adds to its input has the same gradient as the sum; so d stands for both, and the norm,
  // the last backward of a half, adds to it what reaches the input through that half.

  // ---- network: experts, or dense
  tensor<T> d_network_input(N, H);
  if (is_moe_layer(m, layer)) {
    std::vector<T> d_routing(a.routes.weights.size());  // (N, k)
    experts_backward<T>(a.routes, a.network_input, weight(experts_gate_up), weight(experts_down), d, d_routing,
                        d_network_input, gradient(experts_gate_up), gradient(experts_down));
    route_backward<T>(config.norm_topk_prob, a.routes, a.network_input, weight(router), d_routing, d_probabilities,
                      d_network_input, gradient(router));
  } else {
    mlp_backward(a.network_input, weight(mlp_gate), weight(mlp_up), weight(mlp_down), d, d_network_input,
                 gradient(mlp_gate), gradient(mlp_up), gradient(mlp_down));
  }
  rmsnorm_backward(a.middle.view(), weight(post_attention_layernorm).all(), eps, d_network_input.view(), d.view(),
                   gradient(post_attention_layernorm).all());

  // ---- attention
  tensor<T> d_heads(N, a.heads.cols()), d_q(N, a.q.cols()), d_k(N, a.k.cols()), d_v(N, a.v.cols());
  linear_backward(a.heads.view(), weight(o_proj).view(), d.view(), d_heads.view(), gradient(o_proj).view(),
                  bias(o_bias));
  attention_backward(tokens, attention_window(m, layer), D, a.q.view(), a.k.view(), a.v.view(), d_heads.view(),
                     d_q.view(), d_k.view(), d_v.view());
  rotary_backward(table, d_q.view());
  rotary_backward(table, d_k.view());
  if (m.head_norm) {
    tensor<T> d_q_linear(N, d_q.cols()), d_k_linear(N, d_k.cols());
    rmsnorm_backward(a.q_linear.folded(D), weight(q_norm).all(), eps, d_q.folded(D), d_q_linear.folded(D),
                     gradient(q_norm).all());
    rmsnorm_backward(a.k_linear.folded(D), weight(k_norm).all(), eps, d_k.folded(D), d_k_linear.folded(D),
                     gradient(k_norm).all());
    d_q = std::move(d_q_linear), d_k = std::move(d_k_linear);
  }
  tensor<T> d_attention_input(N, H);
  const auto through = [&](const tensor<T>& d_y, parameter_kind projection, parameter_kind its_bias) {
    linear_backward(a.attention_input.view(), weight(projection).view(), d_y.view(), d_attention_input.view(),
                    gradient(projection).view(), bias(its_bias));
  };
  through(d_q, q_proj, q_bias);
  through(d_k, k_proj, k_bias);
  through(d_v, v_proj, v_bias);
  rmsnorm_backward(a.input.view(), weight(input_layernorm).all(), eps, d_attention_input.view(), d.view(),
                   gradient(input_layernorm).all());
}

template struct layer_activations<float>;
template struct layer_activations<double>;
template void forward_layer<float>(const model_config&, const parameter_set<float>&, num, const token_info&,
                                   const rotary_table<float>&, layer_activations<float>&, tensor<float>&);
template void forward_layer<double>(const model_config&, const parameter_set<double>&, num, const token_info&,
                                    const rotary_table<double>&, layer_activations<double>&, tensor<double>&);
template void backward_layer<float>(const model_config&, const parameter_set<float>&, num, const token_info&,
                                    const rotary_table<float>&, const layer_activations<float>&, const tensor<float>&,
                                    tensor<float>&, parameter_set<float>&);
template void backward_layer<double>(const model_config&, const parameter_set<double>&, num, const token_info&,
                                     const rotary_table<double>&, const layer_activations<double>&,
                                     const tensor<double>&, tensor<double>&, parameter_set<double>&);

}  // namespace shardplan::runtime::reference
