// SPDX-License-Identifier: Apache-2.0
// The CPU as a device: its memory is the host's, and its operations are the functions of this folder.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CPU_DEVICE_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CPU_DEVICE_HPP

#include <utility>  // forward, move

#include "runtime/device/attention.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/gemm.hpp"
#include "runtime/device/loops.hpp"
#include "runtime/device/ops.hpp"
#include "runtime/device/pairs.hpp"

namespace shardplan::runtime {

/// See Device. Nothing is copied that is on the host already.
struct cpu_device {
  /// Vector code reads real numbers alone.
  template <class V>
  using buffer = std::conditional_t<std::is_floating_point_v<V>, runtime::buffer<V>, std::vector<V>>;
  using places = std::vector<token_places>;
  using pairs = pairs_by_expert;

  template <class T>
  struct online_attention : runtime::online_attention<T> {
    online_attention(cpu_device, std::span<const T> queries, const cpu_device::places& at, num heads, num head_dim,
                     num window)
        : runtime::online_attention<T>(queries, at, heads, head_dim, window) {}
  };
  template <class T>
  struct attention_gradient : runtime::attention_gradient<T> {
    attention_gradient(cpu_device, std::span<const T> queries, std::span<const T> out, std::span<const T> dout,
                       std::span<const T> log_sum, const cpu_device::places& at, num heads, num head_dim, num window)
        : runtime::attention_gradient<T>(queries, out, dout, log_sum, at, heads, head_dim, window) {}
    runtime::buffer<T> finish() { return std::move(this->dqueries()); }
  };
};

// ---- memory

template <class V>
cpu_device::buffer<V> allocate(cpu_device, std::size_t size) {
  return cpu_device::buffer<V>(size);
}
template <class V>
cpu_device::buffer<V> filled(cpu_device, std::size_t size, std::type_identity_t<V> value) {
  return cpu_device::buffer<V>(size, value);
}
template <class V>
cpu_device::buffer<V> copied(cpu_device, std::span<const V> values) {
  return {values.begin(), values.end()};
}
template <class V>
void copy_values(cpu_device, std::span<const V> from, std::span<V> to) {
  std::copy(from.begin(), from.end(), to.begin());
}
template <class V>
cpu_device::buffer<V> upload(cpu_device, std::span<const V> host) {
  return {host.begin(), host.end()};
}
template <class V, class Allocator>
std::vector<V, Allocator> take(cpu_device, std::vector<V, Allocator>&& host) {
  return std::move(host);
}
template <class V>
std::span<const V> lend(cpu_device, std::span<const V> host) {
  return host;
}
template <class V, class Allocator>
const std::vector<V, Allocator>& to_host(cpu_device, const std::vector<V, Allocator>& values) {
  return values;
}
template <class V, class F>
void through_engine(cpu_device, std::span<V> host, F&& f) {
  f(host);
}
inline cpu_device::places upload_places(cpu_device, std::vector<token_places> places) { return places; }

// ---- operations

template <class T>
void gemm_nn(cpu_device, read_view<T> a, read_view<T> b, matrix_view<T> c, std::type_identity_t<T> alpha = 1,
             std::type_identity_t<T> beta = 0) {
  gemm_nn<T>(a, b, c, alpha, beta);
}
template <class T>
void gemm_nt(cpu_device, read_view<T> a, read_view<T> b, matrix_view<T> c, std::type_identity_t<T> alpha = 1,
             std::type_identity_t<T> beta = 0) {
  gemm_nt<T>(a, b, c, alpha, beta);
}
template <class T>
void gemm_tn(cpu_device, read_view<T> a, read_view<T> b, matrix_view<T> c, std::type_identity_t<T> alpha = 1,
             std::type_identity_t<T> beta = 0) {
  gemm_tn<T>(a, b, c, alpha, beta);
}
template <class T, class C = T>
void gemm_group(cpu_device, flips f, std::type_identity_t<std::span<const product_of_group<T, C>>> products,
                std::type_identity_t<C> alpha = 1, std::type_identity_t<C> beta = 0) {
  gemm_group<T>(f, products, alpha, beta);
}

template <class T>
void rms_norm(cpu_device, std::span<const T> x, std::span<const T> weight, double eps, std::span<T> out) {
  rms_norm<T>(x, weight, eps, out);
}
template <class T>
void rms_norm_backward(cpu_device, std::span<const T> x, std::span<const T> weight, double eps, std::span<const T> dy,
                       std::span<T> dx, std::span<T> dweight) {
  rms_norm_backward<T>(x, weight, eps, dy, dx, dweight);
}
template <class T>
void add(cpu_device, std::span<T> x, std::span<const T> y) {
  add<T>(x, y);
}
template <class T>
void add_bias(cpu_device, std::span<T> x, std::span<const T> bias) {
  add_bias<T>(x, bias);
}
template <class T>
void add_bias_backward(cpu_device, std::span<const T> dy, std::span<T> dbias) {
  add_bias_backward<T>(dy, dbias);
}
template <class T>
void rotary_table(cpu_device, std::span<const double> inverse, double scale, std::span<const num> positions,
                  std::span<T> table) {
  rotary_table<T>(inverse, scale, positions, table);
}
template <class T>
void rotate(cpu_device, std::span<T> x, std::span<const T> table, num head_dim) {
  rotate<T>(x, table, head_dim);
}
template <class T>
void rotate_backward(cpu_device, std::span<T> dx, std::span<const T> table, num head_dim) {
  rotate_backward<T>(dx, table, head_dim);
}
template <class T>
void swiglu(cpu_device, std::span<const T> gate_up, num width, std::span<T> out) {
  swiglu<T>(gate_up, width, out);
}
template <class T>
void swiglu(cpu_device, std::span<const T> gate, std::span<const T> up, std::span<T> out) {
  swiglu<T>(gate, up, out);
}
template <class T>
void swiglu_backward(cpu_device, std::span<T> gate_up, num width, std::span<const T> dy) {
  swiglu_backward<T>(gate_up, width, dy);
}
template <class T>
void swiglu_backward(cpu_device, std::span<T> gate, std::span<T> up, std::span<const T> dy) {
  swiglu_backward<T>(gate, up, dy);
}

template <class T>
void look_up(cpu_device, std::span<const T> table, std::span<const num> ids, num first, num width, std::span<T> out) {
  look_up<T>(table, ids, first, width, out);
}
template <class T>
void look_up_backward(cpu_device, std::span<const T> dx, std::span<const num> ids, num first, num width,
                      std::span<T> dtable) {
  look_up_backward<T>(dx, ids, first, width, dtable);
}
template <class T>
void row_max(cpu_device, std::span<const T> logits, std::span<T> largest) {
  row_max<T>(logits, largest);
}
template <class T>
void row_exp_sum(cpu_device, std::span<const T> logits, std::span<const T> largest, std::span<T> sums) {
  row_exp_sum<T>(logits, largest, sums);
}
template <class T>
void pick_targets(cpu_device, std::span<const T> logits, std::span<const num> targets, num first, std::span<T> picked) {
  pick_targets<T>(logits, targets, first, picked);
}
template <class T>
void losses_of_tokens(cpu_device, std::span<T> sums, std::span<const T> largest, std::span<const T> picked,
                      std::span<const num> targets, std::span<T> losses) {
  losses_of_tokens<T>(sums, largest, picked, targets, losses);
}
template <class T>
void cross_entropy_backward(cpu_device, std::span<T> logits, std::span<const num> targets, num first,
                            std::span<const T> log_sum, std::type_identity_t<T> scale) {
  cross_entropy_backward<T>(logits, targets, first, log_sum, scale);
}

template <class T>
void choose_experts(cpu_device, std::span<T> scores, num num_experts, num per_token, bool normalize,
                    std::span<num> experts, std::span<T> weights) {
  choose_experts<T>(scores, num_experts, per_token, normalize, experts, weights);
}
template <class T>
void choose_experts_backward(cpu_device, std::span<T> probabilities, num num_experts, num per_token, bool normalize,
                             std::span<const num> experts, std::span<const T> weights, std::span<const T> dweights) {
  choose_experts_backward<T>(probabilities, num_experts, per_token, normalize, experts, weights, dweights);
}
inline void leave_out_padding(cpu_device, std::span<num> experts, std::span<const char> real, num per_token) {
  leave_out_padding(experts, real, per_token);
}
template <class T>
void add_balance(cpu_device, std::span<const num> experts, std::span<const T> probabilities,
                 std::span<const char> counted, num per_token, std::span<T> statistics) {
  add_balance<T>(experts, probabilities, counted, per_token, statistics);
}
template <class T>
void add_balance_gradient(cpu_device, std::span<T> dscores, std::span<const T> probabilities,
                          std::span<const T> statistics, std::span<const char> counted, std::type_identity_t<T> scale) {
  add_balance_gradient<T>(dscores, probabilities, statistics, counted, scale);
}
inline pairs_by_expert sort_pairs(cpu_device, std::span<const num> experts, num first, num count) {
  return {experts, first, count};
}
template <class T>
buffer<T> rows_of_pairs(cpu_device, std::span<const T> x, const pairs_by_expert& pairs, num per_token, num H) {
  return rows_of_pairs<T>(x, pairs, per_token, H);
}
template <class T>
buffer<T> combine_pairs(cpu_device, std::span<const T> rows, const pairs_by_expert& pairs, std::span<const T> weights,
                        num per_token, num H) {
  return combine_pairs<T>(rows, pairs, weights, per_token, H);
}
template <class T>
buffer<T> combine_pairs_backward(cpu_device, std::span<const T> dy, std::span<const T> rows,
                                 const pairs_by_expert& pairs, std::span<const T> weights, num per_token, num H,
                                 buffer<T>& dweights) {
  return combine_pairs_backward<T>(dy, rows, pairs, weights, per_token, H, dweights);
}
template <class T>
void add_rows_of_pairs(cpu_device, std::span<T> x, std::span<const T> rows, const pairs_by_expert& pairs, num per_token,
                       num H) {
  add_rows_of_pairs<T>(x, rows, pairs, per_token, H);
}
template <class T>
void sort_blocks(cpu_device, std::span<const T> from, std::span<const row_block> blocks, num width, std::span<T> to) {
  sort_blocks<T>(from, blocks, width, to);
}
template <class T>
void unsort_blocks(cpu_device, std::span<const T> from, std::span<const row_block> blocks, num width, std::span<T> to) {
  unsort_blocks<T>(from, blocks, width, to);
}
template <class T>
void pack_heads(cpu_device, std::span<const T> x, num heads, num head_dim, num ranks, std::span<T> out) {
  pack_heads<T>(x, heads, head_dim, ranks, out);
}
template <class T>
void sum_heads(cpu_device, std::span<const T> in, num heads, num head_dim, num ranks, std::span<T> out) {
  sum_heads<T>(in, heads, head_dim, ranks, out);
}
template <class T>
void adamw_update(cpu_device, const adamw_step<T>& by, std::span<const T> gradient, std::span<T> values,
                  std::span<T> first, std::span<T> second) {
  adamw_update<T>(by, gradient, values, first, second);
}
template <class T>
double add_up(cpu_device, std::span<const T> values, double sum) {
  for (T x : values) sum += static_cast<double>(x);
  return sum;
}
template <class T>
double add_up_squares(cpu_device, std::span<const T> values, double sum) {
  for (T x : values) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_CPU_DEVICE_HPP
