// SPDX-License-Identifier: Apache-2.0
// The few operations of the model on one rank's tensors, beside matrix products and attention.
// Letters: n tokens (of all rows), W width, D head_dim, E experts, k experts per token, I width of an expert.
#ifndef SHARDPLAN_RUNTIME_DEVICE_OPS_HPP
#define SHARDPLAN_RUNTIME_DEVICE_OPS_HPP

#include <span>
#include <vector>

#include "runtime/device/gemm.hpp"
#include "runtime/device/rope.hpp"

namespace shardplan::runtime {

/// out(i) = x(i) * rsqrt(mean(x(i)^2) + eps) * weight, for each of n rows of `weight.size()` values.
/// `out` may be `x`.
template <class T>
void rms_norm(std::span<const T> x, std::span<const T> weight, double eps, std::span<T> out);

/// Given dy, the gradient of out: dx (n, W) is that of x, and `dweight` (W) grows by that of weight.
template <class T>
void rms_norm_backward(std::span<const T> x, std::span<const std::type_identity_t<T>> weight, double eps,
                       std::span<const std::type_identity_t<T>> dy, std::span<T> dx,
                       std::span<std::type_identity_t<T>> dweight);

/// x += y
template <class T>
void add(std::span<T> x, std::span<const std::type_identity_t<T>> y);

/// Adds `bias` (W) to each row of x (n, W).
template <class T>
void add_bias(std::span<T> x, std::span<const std::type_identity_t<T>> bias);

/// `dbias` (W) grows by the sum of the rows of dy (n, W).
template <class T>
void add_bias_backward(std::span<const T> dy, std::span<std::type_identity_t<T>> dbias);

/// The angles' frequencies of a rotary embedding, and the factor of its cosines and sines.
struct rotary_frequencies {
  std::vector<double> inverse;  // (D/2)
  double scale = 1;
};
rotary_frequencies make_rotary_frequencies(const rope_config& rope, num head_dim, num max_positions);

/// Cosines and sines of `positions` (n): table (n, D), the D/2 cosines first, of frequencies `inverse` (D/2) and their
/// scale.
template <class T>
void rotary_table(std::span<const double> inverse, double scale, std::span<const num> positions, std::span<T> table);

/// Rotates the two halves of each head of x (n, heads, D) by the table (n, D).
template <class T>
void rotate(std::span<T> x, std::span<const std::type_identity_t<T>> table, num head_dim);
/// The gradient of a rotation is rotated back.
template <class T>
void rotate_backward(std::span<T> dx, std::span<const std::type_identity_t<T>> table, num head_dim);

/// out (n, I) = silu(gate) * up, with gate_up (n, 2I) holding gates first.
template <class T>
void swiglu(std::span<const T> gate_up, num width, std::span<T> out);

/// out (n, I) = silu(gate (n, I)) * up (n, I); `out` may be `gate`.
template <class T>
void swiglu(std::span<const T> gate, std::span<const T> up, std::span<T> out);

/// The gradients of gate and up, from dy (n, I), in place of their values: of gate_up (n, 2I), or of gate and up (n,
/// I).
template <class T>
void swiglu_backward(std::span<T> gate_up, num width, std::span<const T> dy);
template <class T>
void swiglu_backward(std::span<T> gate, std::span<T> up, std::span<const T> dy);

/// Softmax of each row of `scores` (n, E) over all experts, in place; then the k largest, largest first, a tie going to
/// the lower index: `experts` (n, k) and their `weights` (n, k), which sum to 1 iff `normalize`. Rows whose first entry
/// of `experts` is not negative on entry keep the experts they come with (a replayed choice).
template <class T>
void choose_experts(std::span<T> scores, num num_experts, num per_token, bool normalize, std::span<num> experts,
                    std::span<T> weights);

/// The gradient of the scores (n, E), from the probabilities that choose_experts left in their place, the experts
/// chosen and `dweights` (n, k), in place of the probabilities. Only weights are differentiable: the choice is not.
/// Rows that chose expert -1 get none. Linear in `dweights`, so that partial sums of them give partial sums here.
template <class T>
void choose_experts_backward(std::span<T> probabilities, num num_experts, num per_token, bool normalize,
                             std::span<const num> experts, std::span<const T> weights, std::span<const T> dweights);

// ---- cross-entropy over a vocabulary that is cut: logits (n, W) hold columns [first, first + W) of it

/// largest (n): of each row, -infinity where W is 0
template <class T>
void row_max(std::span<const T> logits, std::span<T> largest);
/// sums (n): of exp(logit - largest)
template <class T>
void row_exp_sum(std::span<const T> logits, std::span<const T> largest, std::span<T> sums);
/// picked (n): the logit of each row's target where this part holds it, else 0
template <class T>
void pick_targets(std::span<const T> logits, std::span<const num> targets, num first, std::span<T> picked);

/// The gradient of each logit, in its place: (exp(logit - log_sum) - [is the target]) * scale, and 0 in rows whose
/// target is negative. log_sum (n): log of the sum of exp over the whole vocabulary.
template <class T>
void cross_entropy_backward(std::span<T> logits, std::span<const num> targets, num first, std::span<const T> log_sum,
                            std::type_identity_t<T> scale);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_OPS_HPP
