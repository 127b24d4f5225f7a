// SPDX-License-Identifier: Apache-2.0
// The pieces of the model, one function each, on whole sequences. Everything is computed in T (float or double);
// where the public model code switches to f32 for statistics, T is at least that.
//
//     N tokens (B rows of S)   H hidden size      V vocabulary    E experts, k of them chosen per token
//     Q query heads            K key/value heads  D size of a head
//     I inner size of an expert or of a dense layer
//
// Each piece has its backward beside it. d_x is the gradient of the loss with respect to x, of its shape. A backward
// adds to what it computes, never sets it, so that whatever is used several times gets the sum of its uses: its caller
// makes zeros first. It takes the inputs of the forward, and computes again what lies between them and the output.
#ifndef SHARDPLAN_RUNTIME_REFERENCE_OPS_HPP
#define SHARDPLAN_RUNTIME_REFERENCE_OPS_HPP

#include <span>         // span
#include <type_traits>  // type_identity_t
#include <vector>       // vector

#include "runtime/checkpoint/model_config.hpp"
#include "runtime/reference/batch.hpp"
#include "runtime/reference/tensor.hpp"

namespace shardplan::runtime::reference {

/// y = x / sqrt(mean(x^2) + eps) * weight, row by row. Heads are normalised as rows of D.
template <class T>
void rmsnorm(read_view<T> x,                                   // (rows, size)
             std::span<const std::type_identity_t<T>> weight,  // (size)
             double eps,
             matrix_view<T> y);  // (rows, size)
template <class T>
void rmsnorm_backward(read_view<T> x, std::span<const std::type_identity_t<T>> weight, double eps, read_view<T> d_y,
                      matrix_view<T> d_x, std::span<std::type_identity_t<T>> d_weight);

/// y = x W^T + bias.
template <class T>
void linear(read_view<T> x,         // (N, in)
            read_view<T> weight,    // (out, in)
            const tensor<T>* bias,  // (1, out), or none
            matrix_view<T> y);      // (N, out)
template <class T>
void linear_backward(read_view<T> x, read_view<T> weight, read_view<T> d_y, matrix_view<T> d_x, matrix_view<T> d_weight,
                     std::type_identity_t<tensor<T>*> d_bias = nullptr);

/// Frequencies of the D/2 pairs that a rotation turns, and the factor on cosines and sines.
template <class T>
struct rotary_frequencies {
  std::vector<T> radians_per_position;  // (D/2)
  T scale = 1;
};
template <class T>
rotary_frequencies<T> make_rotary_frequencies(const rope_config& rope, num head_dim);

/// Cosine and sine of every token's angles.
template <class T>
struct rotary_table {
  tensor<T> cosine, sine;  // (N, D/2)
};
template <class T>
rotary_table<T> make_rotary_table(const rotary_frequencies<T>& frequencies, std::span<const num> positions);

/// Turns, in place, the pair (j, j + D/2) of every head by the token's angle j.
template <class T>
void rotary(const rotary_table<T>& table,
            matrix_view<T> x);  // (N, heads * D)
/// Turns d_y into d_x in place: the one backward that does not add.
template <class T>
void rotary_backward(const rotary_table<T>& table, matrix_view<T> d);

/// heads = softmax(q k^T / sqrt(D)) v over the keys that each query sees. Query head h reads key/value head h / (Q/K).
/// A query that sees no key gets zeros. `window` is that of the layer, 0 for none.
template <class T>
void attention(const token_info& tokens, num window, num head_dim,
               read_view<T> q,         // (N, Q * D)
               read_view<T> k,         // (N, K * D)
               read_view<T> v,         // (N, K * D)
               matrix_view<T> heads);  // (N, Q * D)
template <class T>
void attention_backward(const token_info& tokens, num window, num head_dim, read_view<T> q, read_view<T> k,
                        read_view<T> v, read_view<T> d_heads, matrix_view<T> d_q, matrix_view<T> d_k,
                        matrix_view<T> d_v);

/// Which experts a token goes to, and with which weight.
template <class T>
struct routing {
  num top_k = 0;
  std::vector<num> experts;  // (N, k), most probable first; of equals the lower index
  std::vector<T> weights;    // (N, k)
  std::vector<T> margins;    // (N): probability of the last one chosen minus that of the first one not chosen
  tensor<T> probabilities;   // (N, E)
};
/// Softmax over all experts, then the k largest; `normalize` makes their weights add up to 1.
template <class T>
routing<T> route(num top_k, bool normalize,
                 const tensor<T>& x,        // (N, H)
                 const tensor<T>& router);  // (E, H)
/// `d_probabilities` is what already reaches all the probabilities by another way, the auxiliary loss.
template <class T>
void route_backward(bool normalize, const routing<T>& routes, const tensor<T>& x, const tensor<T>& router,
                    std::span<const T> d_weights,  // (N, k)
                    tensor<T> d_probabilities,     // (N, E)
                    tensor<T>& d_x, tensor<T>& d_router);

/// y = sum over the chosen experts of weight * down(silu(gate x) * up x).
template <class T>
void experts(const routing<T>& routes,
             const tensor<T>& x,        // (N, H)
             const tensor<T>& gate_up,  // (E * 2I, H): per expert the rows of gate, then those of up
             const tensor<T>& down,     // (E * H, I)
             tensor<T>& y);             // (N, H)
template <class T>
void experts_backward(const routing<T>& routes, const tensor<T>& x, const tensor<T>& gate_up, const tensor<T>& down,
                      const tensor<T>& d_y,
                      std::span<T> d_weights,  // (N, k)
                      tensor<T>& d_x, tensor<T>& d_gate_up, tensor<T>& d_down);

/// y = down(silu(gate x) * up x), the layer without experts.
template <class T>
void mlp(const tensor<T>& x,     // (N, H)
         const tensor<T>& gate,  // (I, H)
         const tensor<T>& up,    // (I, H)
         const tensor<T>& down,  // (H, I)
         tensor<T>& y);          // (N, H)
template <class T>
void mlp_backward(const tensor<T>& x, const tensor<T>& gate, const tensor<T>& up, const tensor<T>& down,
                  const tensor<T>& d_y, tensor<T>& d_x, tensor<T>& d_gate, tensor<T>& d_up, tensor<T>& d_down);

/// Loss of each token: log(sum(exp(logits))) - logits[target], 0 where there is no target.
template <class T>
void cross_entropy(read_view<T> logits,           // (N, V)
                   std::span<const num> targets,  // (N)
                   std::span<T> token_loss);      // (N)
/// `d_token_loss` is the same for all tokens: one over what their sum is divided by.
template <class T>
void cross_entropy_backward(read_view<T> logits, std::span<const num> targets, std::type_identity_t<T> d_token_loss,
                            matrix_view<T> d_logits);

/// What the auxiliary loss is made of, per micro-batch (G of them): sums over the tokens of all layers with experts.
/// Tokens that attention_mask hides do not count.
struct balance_sums {
  std::vector<num> rows;       // (G): tokens times layers
  tensor<double> chosen;       // (G, E): how often each expert was chosen, whatever the rank
  tensor<double> probability;  // (G, E)

  balance_sums() = default;
  balance_sums(const token_info& tokens, num num_experts);
  /// Adds a layer.
  template <class T>
  void add(const token_info& tokens, const routing<T>& routes);
};
/// Mean over micro-batches of E * sum over experts of mean(chosen) * mean(probability): k when all experts get the
/// same. The means are taken first, over the rows of all layers.
double balance_loss(const balance_sums& sums);
/// Counts do not move with the weights: the gradient flows through the probabilities alone.
template <class T>
void balance_loss_backward(const token_info& tokens, const balance_sums& sums, double d_loss,
                           tensor<T>& d_probabilities);  // (N, E), of one layer

}  // namespace shardplan::runtime::reference
#endif  // SHARDPLAN_RUNTIME_REFERENCE_OPS_HPP
