// SPDX-License-Identifier: Apache-2.0
// One layer of the model: x += attention(norm(x)), then x += network(norm(x)).
#ifndef SHARDPLAN_RUNTIME_REFERENCE_LAYER_HPP
#define SHARDPLAN_RUNTIME_REFERENCE_LAYER_HPP

#include "runtime/reference/ops.hpp"
#include "runtime/reference/parameter_set.hpp"

namespace shardplan::runtime::reference {

/// What a layer computes on its way, in this order. Letters as in ops.hpp.
template <class T>
struct layer_activations {
  tensor<T> input;            // (N, H)
  tensor<T> attention_input;  // (N, H): normalised
  tensor<T> q_linear, q;      // (N, Q * D): as projected; normalised and rotated
  tensor<T> k_linear, k;      // (N, K * D)
  tensor<T> v;                // (N, K * D)
  tensor<T> heads;            // (N, Q * D)
  tensor<T> middle;           // (N, H): input + attention
  tensor<T> network_input;    // (N, H): normalised
  routing<T> routes;          // of a layer with experts
  tensor<T> added;            // (N, H): what attention, then the network, adds

  layer_activations() = default;
  layer_activations(const model_spec& m, num num_tokens);
};

/// Computes `output` (N, H) from a.input, and all of `a` on the way.
template <class T>
void forward_layer(const model_config& config, const parameter_set<T>& weights, num layer, const token_info& tokens,
                   const rotary_table<T>& table, layer_activations<T>& a, tensor<T>& output);

/// Turns `d`, the gradient with respect to the output (N, H), into that with respect to the input, and adds to
/// `gradients`. `d_probabilities` (N, E) is what the auxiliary loss gives to a layer with experts.
template <class T>
void backward_layer(const model_config& config, const parameter_set<T>& weights, num layer, const token_info& tokens,
                    const rotary_table<T>& table, const layer_activations<T>& a, const tensor<T>& d_probabilities,
                    tensor<T>& d, parameter_set<T>& gradients);

}  // namespace shardplan::runtime::reference
#endif  // SHARDPLAN_RUNTIME_REFERENCE_LAYER_HPP
