// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/reference.hpp"

#include <algorithm>   // copy_n, min, transform
#include <cmath>       // sqrt
#include <functional>  // plus
#include <numeric>     // accumulate
#include <string>      // to_string
#include <utility>     // move, swap

#include "runtime/error.hpp"
#include "runtime/reference/layer.hpp"

namespace shardplan::runtime {
namespace {

using namespace reference;

/// `config`, once it makes sense.
const model_config& checked(const model_config& config) {
  const model_spec& m = config.spec;
  const auto refuse = [](const char* field, num value, std::string_view must) {
    throw input_error(std::string(field) + " = " + std::to_string(value) + ": must " + std::string(must));
  };
  if (m.num_attention_heads % m.num_key_value_heads != 0)
    refuse("num_key_value_heads", m.num_key_value_heads,
           "divide num_attention_heads " + std::to_string(m.num_attention_heads));
  if (m.head_dim % 2 != 0) refuse("head_dim", m.head_dim, "be even: rotary embedding turns pairs");
  if (num_moe_layers(m) > 0 && (m.num_experts_per_tok < 1 || m.num_experts_per_tok > m.num_experts))
    refuse("num_experts_per_tok", m.num_experts_per_tok, "be from 1 to num_experts " + std::to_string(m.num_experts));
  return config;
}

/// One row of the embedding per token, or what was given instead.
template <class T>
void embed(const reference_batch& batch, const tensor<T>& table, tensor<T>& x) {  // table (V, H), x (N, H)
  if (batch.input_ids.empty()) {
    std::transform(batch.inputs_embeds.begin(), batch.inputs_embeds.end(), x.all().begin(),
                   [](double value) { return static_cast<T>(value); });
    return;
  }
  for (num i = 0; i < x.rows(); ++i) std::copy_n(table.row(batch.input_ids[i]), x.cols(), x.row(i));
}

template <class T>
void embed_backward(const reference_batch& batch, const tensor<T>& d_x, tensor<T>& d_table) {
  for (std::size_t i = 0; i < batch.input_ids.size(); ++i)
    std::transform(d_x.row(i), d_x.row(i) + d_x.cols(), d_table.row(batch.input_ids[i]),
                   d_table.row(batch.input_ids[i]), std::plus<T>());
}

template <class T>
void note_choices(const token_info& tokens, num layer, const routing<T>& routes, reference_result<T>& result) {
  result.choices.push_back({layer, routes.experts, {routes.margins.begin(), routes.margins.end()}});
  for (num i = 0; i < tokens.num_tokens(); ++i)
    if (!tokens.hidden(i)) result.smallest_margin = std::min(result.smallest_margin, double(routes.margins[i]));
}

parameter_kind head_of(const model_spec& m) {
  return m.tie_word_embeddings ? parameter_kind::embed_tokens : parameter_kind::lm_head;
}

/// A forward, with what its backward needs.
template <class T>
struct forward_pass {
  token_info tokens;
  rotary_table<T> table;
  std::vector<layer_activations<T>> layers;
  tensor<T> output, normed;  // (N, H): of the last layer; after the last norm
  balance_sums balance;
  reference_result<T> result;
};

/// Runs `batch`; unless `keep`, one set of activations serves all layers.
template <class T>
forward_pass<T> run_forward(const model_config& config, const parameter_set<T>& weights, const reference_batch& batch,
                            bool keep) {
  const model_spec& m = config.spec;
  forward_pass<T> pass;
  const token_info& tokens = pass.tokens = token_info_of(m, batch);
  const num N = tokens.num_tokens(), H = m.hidden_size, V = m.vocab_size;
  reference_result<T>& result = pass.result;
  result.rows = batch.rows, result.length = batch.length, result.vocab = V;
  result.num_items = tokens.divisor;
  result.logits.resize(N * V);
  result.token_loss.resize(N);

  pass.table =
      make_rotary_table(make_rotary_frequencies<T>(config.rope, m.head_dim), std::span<const num>(tokens.positions));
  pass.balance = balance_sums(tokens, m.num_experts);
  pass.layers.assign(keep ? m.num_hidden_layers : 1, layer_activations<T>(m, N));
  tensor<T>& x = pass.output = tensor<T>(N, H);
  embed(batch, weights.at(parameter_kind::embed_tokens), x);
  for (num layer = 0; layer < m.num_hidden_layers; ++layer) {
    layer_activations<T>& a = pass.layers[keep ? layer : 0];
    std::swap(a.input, x);
    forward_layer(config, weights, layer, tokens, pass.table, a, x);
    if (!is_moe_layer(m, layer)) continue;
    note_choices(tokens, layer, a.routes, result);
    pass.balance.add(tokens, a.routes);
  }

  pass.normed = tensor<T>(N, H);
  rmsnorm(x.view(), weights.at(parameter_kind::final_norm).all(), config.rms_norm_eps, pass.normed.view());
  const matrix_view<T> logits{result.logits.data(), N, V};
  gemm_nt(pass.normed.view(), weights.at(head_of(m)).view(), logits);
  cross_entropy<T>(logits, tokens.targets, result.token_loss);

  double loss = 0;
  if (tokens.divisor > 0)
    loss = std::accumulate(result.token_loss.begin(), result.token_loss.end(), 0.0) / double(tokens.divisor);
  if (config.output_router_logits) {
    const double balance = balance_loss(pass.balance);
    result.balance_loss = static_cast<T>(balance);
    if (tokens.num_targets > 0) loss += config.router_aux_loss_coef * balance;
  }
  result.loss = static_cast<T>(loss);
  return pass;
}

/// Adds the gradients of the loss of `pass` to `gradients`.
template <class T>
void run_backward(const model_config& config, const parameter_set<T>& weights, const reference_batch& batch,
                  const forward_pass<T>& pass, parameter_set<T>& gradients) {
  const model_spec& m = config.spec;
  const token_info& tokens = pass.tokens;
  const num N = tokens.num_tokens(), H = m.hidden_size, V = m.vocab_size;
  if (tokens.num_targets == 0) return;

  tensor<T> d_logits(N, V), d_normed(N, H), d(N, H);
  const matrix_view<const T> logits{pass.result.logits.data(), N, V};
  cross_entropy_backward(logits, tokens.targets, T(1) / T(tokens.divisor), d_logits.view());
  linear_backward(pass.normed.view(), weights.at(head_of(m)).view(), d_logits.view(), d_normed.view(),
                  gradients.at(head_of(m)).view());
  rmsnorm_backward(pass.output.view(), weights.at(parameter_kind::final_norm).all(), config.rms_norm_eps,
                   d_normed.view(), d.view(), gradients.at(parameter_kind::final_norm).all());

  // The auxiliary loss gives the same to every layer: it does not tell them apart.
  tensor<T> d_probabilities(N, m.num_experts);
  if (config.output_router_logits)
    balance_loss_backward(tokens, pass.balance, config.router_aux_loss_coef, d_probabilities);
  for (num layer = m.num_hidden_layers - 1; layer >= 0; --layer)
    backward_layer(config, weights, layer, tokens, pass.table, pass.layers[layer], d_probabilities, d, gradients);
  embed_backward(batch, d, gradients.at(parameter_kind::embed_tokens));
}

}  // namespace

template <class T>
reference_model<T>::reference_model(const checkpoint& source)
    : config_(checked(source.config())), weights_(config_.spec) {
  weights_.for_each([&](const parameter& p, std::span<T> values) { source.read<T>(p, p.whole(), values); });
}

template <class T>
reference_model<T>::reference_model(const model_config& config, parameter_set<T> weights)
    : config_(checked(config)), weights_(std::move(weights)) {}

template <class T>
reference_result<T> reference_model<T>::forward(const reference_batch& batch) const {
  return run_forward(config_, weights_, batch, false).result;
}

template <class T>
reference_gradients<T> reference_model<T>::gradients(const reference_batch& batch) const {
  forward_pass<T> pass = run_forward(config_, weights_, batch, true);
  reference_gradients<T> all{{}, parameter_set<T>(config_.spec), 0};
  run_backward(config_, weights_, batch, pass, all.gradients);
  all.result = std::move(pass.result);
  all.gradients.for_each([&](const parameter&, std::span<T> values) {
    for (T x : values) all.norm += double(x) * double(x);
  });
  all.norm = std::sqrt(all.norm);
  return all;
}

template class reference_model<float>;
template class reference_model<double>;

}  // namespace shardplan::runtime
