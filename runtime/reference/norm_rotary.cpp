// SPDX-License-Identifier: Apache-2.0
// The pieces that work on one token at a time: norm, linear layer, rotary embedding.
#include <algorithm>  // clamp, max, min
#include <cmath>      // pow, cos, sin, floor, ceil, log, sqrt
#include <numbers>    // pi

#include "runtime/reference/ops.hpp"
#include "runtime/reference/rows.hpp"

namespace shardplan::runtime::reference {

// ---- norm

template <class T>
void rmsnorm(read_view<T> x, std::span<const std::type_identity_t<T>> weight, double eps, matrix_view<T> y) {
  const auto w = array_of(weight.data(), x.cols);
  for (num i = 0; i < x.rows; ++i) {
    const auto in = array_of(x.data + i * x.stride, x.cols);
    const T mean_square = in.square().sum() / T(x.cols);
    array_of(y.data + i * y.stride, x.cols) = w * (in * (T(1) / std::sqrt(mean_square + T(eps))));
  }
}

template <class T>
void rmsnorm_backward(read_view<T> x, std::span<const std::type_identity_t<T>> weight, double eps, read_view<T> d_y,
                      matrix_view<T> d_x, std::span<std::type_identity_t<T>> d_weight) {
  const auto w = array_of(weight.data(), x.cols);
  auto d_w = array_of(d_weight.data(), x.cols);
  for (num i = 0; i < x.rows; ++i) {
    const auto in = array_of(x.data + i * x.stride, x.cols), d_out = array_of(d_y.data + i * d_y.stride, x.cols);
    const T scale = T(1) / std::sqrt(in.square().sum() / T(x.cols) + T(eps));
    d_w += d_out * (in * scale);
    // Every element moves the scale too: d scale / d x = -x scale^3 / size.
    const T through_scale = (d_out * w * in).sum() * scale * scale * scale / T(x.cols);
    array_of(d_x.data + i * d_x.stride, x.cols) += d_out * w * scale - in * through_scale;
  }
}

// ---- linear layer

template <class T>
void linear(read_view<T> x, read_view<T> weight, const tensor<T>* bias, matrix_view<T> y) {
  gemm_nt(x, weight, y);
  if (bias == nullptr) return;
  for (num i = 0; i < y.rows; ++i) array_of(y.data + i * y.stride, y.cols) += array_of(bias->row(0), y.cols);
}

template <class T>
void linear_backward(read_view<T> x, read_view<T> weight, read_view<T> d_y, matrix_view<T> d_x, matrix_view<T> d_weight,
                     std::type_identity_t<tensor<T>*> d_bias) {
  gemm_nn(d_y, weight, d_x, 1, 1);
  gemm_tn(d_y, x, d_weight, 1, 1);
  if (d_bias == nullptr) return;
  for (num i = 0; i < d_y.rows; ++i)
    array_of(d_bias->row(0), d_y.cols) += array_of(d_y.data + i * d_y.stride, d_y.cols);
}

// ---- rotary embedding

namespace {

/// The pair, as a real number, that turns `rotations` times within `max_positions`.
double pair_of(double rotations, num head_dim, double theta, double max_positions) {
  return double(head_dim) * std::log(max_positions / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

double yarn_scale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

/// YaRN (arXiv 2309.00071): pairs that turn often keep their frequency, pairs that hardly turn are slowed down by
/// `factor`, and a linear ramp blends the two in between.
template <class T>
void apply_yarn(const rope_config& rope, num head_dim, rotary_frequencies<T>& frequencies) {
  double low = pair_of(rope.beta_fast, head_dim, rope.theta, rope.original_max_positions);
  double high = pair_of(rope.beta_slow, head_dim, rope.theta, rope.original_max_positions);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, double(head_dim - 1));
  if (low == high) high += 0.001;  // a step, without dividing by zero

  for (num j = 0; j < head_dim / 2; ++j) {
    T& radians = frequencies.radians_per_position[j];
    const T slowed = std::clamp((T(j) - T(low)) / T(high - low), T(0), T(1));  // share of the slow one
    radians = radians / T(rope.factor) * slowed + radians * (1 - slowed);
  }
  if (rope.attention_factor)
    frequencies.scale = T(*rope.attention_factor);
  else if (rope.mscale.value_or(0) != 0 && rope.mscale_all_dim.value_or(0) != 0)
    frequencies.scale = T(yarn_scale(rope.factor, *rope.mscale) / yarn_scale(rope.factor, *rope.mscale_all_dim));
  else
    frequencies.scale = T(yarn_scale(rope.factor, 1));
}

}  // namespace

template <class T>
rotary_frequencies<T> make_rotary_frequencies(const rope_config& rope, num head_dim) {
  rotary_frequencies<T> frequencies;
  for (num j = 0; j < head_dim / 2; ++j)
    frequencies.radians_per_position.push_back(1 / std::pow(T(rope.theta), T(2 * j) / T(head_dim)));
  if (rope.type == rope_config::scaling::yarn) apply_yarn(rope, head_dim, frequencies);
  return frequencies;
}

template <class T>
rotary_table<T> make_rotary_table(const rotary_frequencies<T>& frequencies, std::span<const num> positions) {
  const num half = static_cast<num>(frequencies.radians_per_position.size());
  const num tokens = static_cast<num>(positions.size());
  rotary_table<T> table{tensor<T>(tokens, half), tensor<T>(tokens, half)};
  for (num i = 0; i < tokens; ++i)
    for (num j = 0; j < half; ++j) {
      const T angle = T(positions[i]) * frequencies.radians_per_position[j];
      table.cosine.row(i)[j] = std::cos(angle) * frequencies.scale;
      table.sine.row(i)[j] = std::sin(angle) * frequencies.scale;
    }
  return table;
}

template <class T>
void rotary(const rotary_table<T>& table, matrix_view<T> x) {
  const num half = table.cosine.cols();
  for (num i = 0; i < x.rows; ++i) {
    const T* cosine = table.cosine.row(i);
    const T* sine = table.sine.row(i);
    for (T* head = x.data + i * x.stride; head != x.data + i * x.stride + x.cols; head += 2 * half)
      for (num j = 0; j < half; ++j) {
        const T first = head[j], second = head[j + half];
        head[j] = first * cosine[j] - second * sine[j];
        head[j + half] = second * cosine[j] + first * sine[j];
      }
  }
}

/// The transposed rotation: the other way round, with the same factor.
template <class T>
void rotary_backward(const rotary_table<T>& table, matrix_view<T> d) {
  const num half = table.cosine.cols();
  for (num i = 0; i < d.rows; ++i) {
    const T* cosine = table.cosine.row(i);
    const T* sine = table.sine.row(i);
    for (T* head = d.data + i * d.stride; head != d.data + i * d.stride + d.cols; head += 2 * half)
      for (num j = 0; j < half; ++j) {
        const T first = head[j], second = head[j + half];
        head[j] = first * cosine[j] + second * sine[j];
        head[j + half] = second * cosine[j] - first * sine[j];
      }
  }
}

template void rmsnorm<float>(read_view<float>, std::span<const float>, double, matrix_view<float>);
template void rmsnorm<double>(read_view<double>, std::span<const double>, double, matrix_view<double>);
template void rmsnorm_backward<float>(read_view<float>, std::span<const float>, double, read_view<float>,
                                      matrix_view<float>, std::span<float>);
template void rmsnorm_backward<double>(read_view<double>, std::span<const double>, double, read_view<double>,
                                       matrix_view<double>, std::span<double>);
template void linear<float>(read_view<float>, read_view<float>, const tensor<float>*, matrix_view<float>);
template void linear<double>(read_view<double>, read_view<double>, const tensor<double>*, matrix_view<double>);
template void linear_backward<float>(read_view<float>, read_view<float>, read_view<float>, matrix_view<float>,
                                     matrix_view<float>, tensor<float>*);
template void linear_backward<double>(read_view<double>, read_view<double>, read_view<double>, matrix_view<double>,
                                      matrix_view<double>, tensor<double>*);
template rotary_frequencies<float> make_rotary_frequencies<float>(const rope_config&, num);
template rotary_frequencies<double> make_rotary_frequencies<double>(const rope_config&, num);
template rotary_table<float> make_rotary_table<float>(const rotary_frequencies<float>&, std::span<const num>);
template rotary_table<double> make_rotary_table<double>(const rotary_frequencies<double>&, std::span<const num>);
template void rotary<float>(const rotary_table<float>&, matrix_view<float>);
template void rotary<double>(const rotary_table<double>&, matrix_view<double>);
template void rotary_backward<float>(const rotary_table<float>&, matrix_view<float>);
template void rotary_backward<double>(const rotary_table<double>&, matrix_view<double>);

}  // namespace shardplan::runtime::reference
