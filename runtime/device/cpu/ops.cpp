// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/ops.hpp"

#include <malloc.h>

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace shardplan::runtime {
namespace {

template <class T>
using rows_of = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using rows_to = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using line_of = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;
template <class T>
using line_to = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;

// Activations are allocated and freed layer by layer, megabytes each. Left alone, glibc would return each to the system
// and fault the pages of the next one in again, which took a third of a forward's time. Only the main arena keeps what
// large blocks leave, so that all threads use it.
[[maybe_unused]] const bool freed_memory_is_kept = [] {
  constexpr int limit = 1 << 30;  // bytes
  return mallopt(M_ARENA_MAX, 1) != 0 && mallopt(M_MMAP_THRESHOLD, limit) != 0 && mallopt(M_TRIM_THRESHOLD, limit) != 0;
}();

template <class T>
rows_of<T> rows(std::span<const T> x, num width) {
  return {x.data(), width == 0 ? 0 : static_cast<num>(x.size()) / width, width};
}

}  // namespace

template <class T>
void rms_norm(std::span<const T> x, std::span<const T> weight, double eps, std::span<T> out) {
  const num width = static_cast<num>(weight.size()), n = static_cast<num>(x.size()) / width;
  const line_of<T> w(weight.data(), width);
  for (num i = 0; i < n; ++i) {
    const line_of<T> row(x.data() + i * width, width);
    const T scale = 1 / std::sqrt(row.square().mean() + static_cast<T>(eps));
    line_to<T>(out.data() + i * width, width) = row * scale * w;
  }
}

template <class T>
void rms_norm_backward(std::span<const T> x, std::span<const std::type_identity_t<T>> weight, double eps,
                       std::span<const std::type_identity_t<T>> dy, std::span<T> dx,
                       std::span<std::type_identity_t<T>> dweight) {
  const num width = static_cast<num>(weight.size()), n = static_cast<num>(x.size()) / width;
  const line_of<T> w(weight.data(), width);
  line_to<T> dw(dweight.data(), width);
  Eigen::Array<T, 1, Eigen::Dynamic> g(width);
  for (num i = 0; i < n; ++i) {
    const line_of<T> row(x.data() + i * width, width), dy_row(dy.data() + i * width, width);
    const T scale = 1 / std::sqrt(row.square().mean() + static_cast<T>(eps));
    dw += dy_row * row * scale;
    g = dy_row * w;
    const T along = (g * row).mean() * scale * scale * scale;  // what the mean of squares passes on
    line_to<T>(dx.data() + i * width, width) = g * scale - row * along;
  }
}

template <class T>
void add(std::span<T> x, std::span<const std::type_identity_t<T>> y) {
  line_to<T>(x.data(), static_cast<num>(x.size())) += line_of<T>(y.data(), static_cast<num>(y.size()));
}

template <class T>
void add_bias(std::span<T> x, std::span<const std::type_identity_t<T>> bias) {
  const num width = static_cast<num>(bias.size());
  if (width == 0) return;
  rows_to<T>(x.data(), static_cast<num>(x.size()) / width, width).rowwise() += line_of<T>(bias.data(), width);
}

template <class T>
void add_bias_backward(std::span<const T> dy, std::span<std::type_identity_t<T>> dbias) {
  const num width = static_cast<num>(dbias.size());
  if (width == 0) return;
  line_to<T>(dbias.data(), width) += rows(dy, width).colwise().sum();
}

rotary_frequencies make_rotary_frequencies(const rope_config& rope, num head_dim, num max_positions) {
  rotary_frequencies f;
  const num half = head_dim / 2;
  const double d = static_cast<double>(head_dim);
  for (num j = 0; j < half; ++j) f.inverse.push_back(std::pow(rope.theta, -2.0 * static_cast<double>(j) / d));
  if (rope.type == rope_config::scaling::none) return f;

  // YaRN (arXiv 2309.00071): fast dims keep their frequency, slow ones are stretched by the factor, a linear ramp
  // between.
  const auto mscale = [&](double by) { return rope.factor <= 1 ? 1.0 : 0.1 * by * std::log(rope.factor) + 1.0; };
  if (rope.attention_factor)
    f.scale = *rope.attention_factor;
  else if (rope.mscale && rope.mscale_all_dim && *rope.mscale != 0 && *rope.mscale_all_dim != 0)
    f.scale = mscale(*rope.mscale) / mscale(*rope.mscale_all_dim);
  else
    f.scale = mscale(1);

  const double positions =
      rope.original_max_positions > 0 ? rope.original_max_positions : static_cast<double>(max_positions);
  const auto dim_of = [&](double rotations) {
    return d * std::log(positions / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  double low = dim_of(rope.beta_fast), high = dim_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, d - 1);
  if (low == high) high += 0.001;  // the ramp must have a width
  for (num j = 0; j < half; ++j) {
    const double stretched = std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    double& inverse = f.inverse[static_cast<std::size_t>(j)];
    inverse = inverse / rope.factor * stretched + inverse * (1 - stretched);
  }
  return f;
}

template <class T>
void rotary_table(std::span<const double> inverse, double scale, std::span<const num> positions, std::span<T> table) {
  const std::size_t half = inverse.size();
  for (std::size_t i = 0; i < positions.size(); ++i)
    for (std::size_t j = 0; j < half; ++j) {
      // The angle is formed in T: the model's own arithmetic, whose rounding grows with the position.
      const T angle = static_cast<T>(positions[i]) * static_cast<T>(inverse[j]);
      table[i * 2 * half + j] = std::cos(angle) * static_cast<T>(scale);
      table[i * 2 * half + half + j] = std::sin(angle) * static_cast<T>(scale);
    }
}

namespace {

/// `direction` 1 rotates by the table's angles, -1 back.
template <class T>
void rotate_by(std::span<T> x, std::span<const T> table, num head_dim, T direction) {
  const num half = head_dim / 2, n = static_cast<num>(table.size()) / head_dim;
  if (n == 0) return;
  const num heads = static_cast<num>(x.size()) / (n * head_dim);
  Eigen::Array<T, 1, Eigen::Dynamic> first(half), s(half);
  for (num i = 0; i < n; ++i) {
    const line_of<T> c(table.data() + i * head_dim, half);
    s = line_of<T>(table.data() + i * head_dim + half, half) * direction;
    for (num h = 0; h < heads; ++h) {
      T* at = x.data() + (i * heads + h) * head_dim;
      line_to<T> a(at, half), b(at + half, half);
      first = a * c - b * s;
      b = b * c + a * s;
      a = first;
    }
  }
}

}  // namespace

template <class T>
void rotate(std::span<T> x, std::span<const std::type_identity_t<T>> table, num head_dim) {
  rotate_by<T>(x, table, head_dim, 1);
}
template <class T>
void rotate_backward(std::span<T> dx, std::span<const std::type_identity_t<T>> table, num head_dim) {
  rotate_by<T>(dx, table, head_dim, -1);
}

template <class T>
void swiglu(std::span<const T> gate_up, num width, std::span<T> out) {
  if (width == 0) return;
  const num n = static_cast<num>(out.size()) / width;
  for (num i = 0; i < n; ++i) {
    const line_of<T> gate(gate_up.data() + i * 2 * width, width), up(gate_up.data() + (i * 2 + 1) * width, width);
    line_to<T>(out.data() + i * width, width) = gate / (1 + (-gate).exp()) * up;
  }
}

template <class T>
void swiglu(std::span<const T> gate, std::span<const T> up, std::span<T> out) {
  const num n = static_cast<num>(out.size());
  const line_of<T> g(gate.data(), n), u(up.data(), n);
  line_to<T>(out.data(), n) = g / (1 + (-g).exp()) * u;
}

namespace {

/// For y = silu(g) u: g becomes dL/dg and u dL/du.
template <class T>
void swiglu_row_backward(line_to<T> gate, line_to<T> up, line_of<T> dy) {
  const Eigen::Array<T, 1, Eigen::Dynamic> sigmoid = 1 / (1 + (-gate).exp());
  const Eigen::Array<T, 1, Eigen::Dynamic> dup = dy * gate * sigmoid;
  gate = dy * up * sigmoid * (1 + gate * (1 - sigmoid));
  up = dup;
}

}  // namespace

template <class T>
void swiglu_backward(std::span<T> gate_up, num width, std::span<const T> dy) {
  if (width == 0) return;
  const num n = static_cast<num>(dy.size()) / width;
  for (num i = 0; i < n; ++i)
    swiglu_row_backward<T>({gate_up.data() + i * 2 * width, width}, {gate_up.data() + (i * 2 + 1) * width, width},
                           {dy.data() + i * width, width});
}

template <class T>
void swiglu_backward(std::span<T> gate, std::span<T> up, std::span<const T> dy) {
  const num n = static_cast<num>(dy.size());
  swiglu_row_backward<T>({gate.data(), n}, {up.data(), n}, {dy.data(), n});
}

template <class T>
void choose_experts(std::span<T> scores, num num_experts, num per_token, bool normalize, std::span<num> experts,
                    std::span<T> weights) {
  const num n = static_cast<num>(scores.size()) / num_experts;
  for (num i = 0; i < n; ++i) {
    line_to<T> row(scores.data() + i * num_experts, num_experts);
    row = (row - row.maxCoeff()).exp();
    row /= row.sum();
    num* chosen = experts.data() + i * per_token;
    T* weight = weights.data() + i * per_token;
    T sum = 0;
    const bool replayed = per_token > 0 && chosen[0] >= 0;
    for (num k = 0; k < per_token; ++k) {
      if (!replayed) {
        num best = -1;
        for (num e = 0; e < num_experts; ++e)
          if (std::find(chosen, chosen + k, e) == chosen + k && (best < 0 || row[e] > row[best])) best = e;
        chosen[k] = best;
      }
      weight[k] = row[chosen[k]];
      sum += weight[k];
    }
    if (normalize)
      for (num k = 0; k < per_token; ++k) weight[k] /= sum;
  }
}

template <class T>
void choose_experts_backward(std::span<T> probabilities, num num_experts, num per_token, bool normalize,
                             std::span<const num> experts, std::span<const T> weights, std::span<const T> dweights) {
  const num n = static_cast<num>(probabilities.size()) / num_experts;
  Eigen::Array<T, 1, Eigen::Dynamic> dp(num_experts);
  for (num i = 0; i < n; ++i) {
    line_to<T> p(probabilities.data() + i * num_experts, num_experts);
    const num* chosen = experts.data() + i * per_token;
    const line_of<T> w(weights.data() + i * per_token, per_token), dw(dweights.data() + i * per_token, per_token);
    dp.setZero();
    if (per_token > 0 && chosen[0] >= 0) {
      // w = p / sum of the chosen p, or p: then dL/dp = (dw - sum of w dw) / sum, or dw.
      T sum = 1, along = 0;
      if (normalize) {
        sum = 0, along = (w * dw).sum();
        for (num k = 0; k < per_token; ++k) sum += p[chosen[k]];
      }
      for (num k = 0; k < per_token; ++k) dp[chosen[k]] = (dw[k] - along) / sum;
    }
    p = p * (dp - (p * dp).sum());  // through the softmax
  }
}

template <class T>
void row_max(std::span<const T> logits, std::span<T> largest) {
  const num n = static_cast<num>(largest.size()), width = n == 0 ? 0 : static_cast<num>(logits.size()) / n;
  if (width == 0)
    std::fill(largest.begin(), largest.end(), -std::numeric_limits<T>::infinity());
  else
    Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(largest.data(), n) = rows(logits, width).rowwise().maxCoeff();
}

template <class T>
void row_exp_sum(std::span<const T> logits, std::span<const T> largest, std::span<T> sums) {
  const num n = static_cast<num>(sums.size()), width = n == 0 ? 0 : static_cast<num>(logits.size()) / n;
  for (num i = 0; i < n; ++i)
    sums[static_cast<std::size_t>(i)] =
        (line_of<T>(logits.data() + i * width, width) - largest[static_cast<std::size_t>(i)]).exp().sum();
}

template <class T>
void pick_targets(std::span<const T> logits, std::span<const num> targets, num first, std::span<T> picked) {
  const num n = static_cast<num>(picked.size()), width = n == 0 ? 0 : static_cast<num>(logits.size()) / n;
  for (num i = 0; i < n; ++i) {
    const num column = targets[static_cast<std::size_t>(i)] - first;
    picked[static_cast<std::size_t>(i)] =
        column >= 0 && column < width ? logits[static_cast<std::size_t>(i * width + column)] : T{0};
  }
}

template <class T>
void cross_entropy_backward(std::span<T> logits, std::span<const num> targets, num first, std::span<const T> log_sum,
                            std::type_identity_t<T> scale) {
  const num n = static_cast<num>(targets.size()), width = n == 0 ? 0 : static_cast<num>(logits.size()) / n;
  for (num i = 0; i < n; ++i) {
    line_to<T> row(logits.data() + i * width, width);
    const num target = targets[static_cast<std::size_t>(i)], column = target - first;
    if (target < 0) {
      row.setZero();
      continue;
    }
    row = (row - log_sum[static_cast<std::size_t>(i)]).exp() * scale;
    if (column >= 0 && column < width) row[column] -= scale;
  }
}

#define SHARDPLAN_INSTANTIATE(T)                                                                                       \
  template void rms_norm<T>(std::span<const T>, std::span<const T>, double, std::span<T>);                             \
  template void rms_norm_backward<T>(std::span<const T>, std::span<const T>, double, std::span<const T>, std::span<T>, \
                                     std::span<T>);                                                                    \
  template void add_bias_backward<T>(std::span<const T>, std::span<T>);                                                \
  template void rotate_backward<T>(std::span<T>, std::span<const T>, num);                                             \
  template void swiglu_backward<T>(std::span<T>, num, std::span<const T>);                                             \
  template void swiglu_backward<T>(std::span<T>, std::span<T>, std::span<const T>);                                    \
  template void choose_experts_backward<T>(std::span<T>, num, num, bool, std::span<const num>, std::span<const T>,     \
                                           std::span<const T>);                                                        \
  template void cross_entropy_backward<T>(std::span<T>, std::span<const num>, num, std::span<const T>, T);             \
  template void add<T>(std::span<T>, std::span<const T>);                                                              \
  template void add_bias<T>(std::span<T>, std::span<const T>);                                                         \
  template void rotary_table<T>(std::span<const double>, double, std::span<const num>, std::span<T>);                  \
  template void rotate<T>(std::span<T>, std::span<const T>, num);                                                      \
  template void swiglu<T>(std::span<const T>, num, std::span<T>);                                                      \
  template void swiglu<T>(std::span<const T>, std::span<const T>, std::span<T>);                                       \
  template void choose_experts<T>(std::span<T>, num, num, bool, std::span<num>, std::span<T>);                         \
  template void row_max<T>(std::span<const T>, std::span<T>);                                                          \
  template void row_exp_sum<T>(std::span<const T>, std::span<const T>, std::span<T>);                                  \
  template void pick_targets<T>(std::span<const T>, std::span<const num>, num, std::span<T>);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(double)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan::runtime
