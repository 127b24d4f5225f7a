// SPDX-License-Identifier: Apache-2.0
// The update of an optimizer, on shards of parameters, gradients and moments of one shape.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_OPTIMIZER_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_OPTIMIZER_HPP

#include "runtime/device/adamw_step.hpp"
#include "runtime/device/cuda/loops.hpp"

namespace shardplan::runtime::cuda {

using runtime::adamw_step;

template <class A>
struct adamw_body {
  static constexpr int at_once = in_16_bytes<A>;
  adamw_step<A> by;
  const A* gradient;
  A *values, *first, *second;
  bool is_aligned() const { return are_aligned<at_once>(gradient, values, first, second); }
  template <class N>
  SHARDPLAN_HOST_DEVICE void operator()(num i, N n) const {
    const auto g = load(gradient + i, n), x = load(values + i, n);
    auto m = load(first + i, n), v = load(second + i, n);
    for_each_of(n, [&](int k) {
      m[k] = std::fma(g[k] - m[k], 1 - by.beta1, m[k]);
      v[k] = std::fma(v[k], by.beta2, g[k] * g[k] * (1 - by.beta2));
    });
    store(first + i, n, [&](int k) { return m[k]; });
    store(second + i, n, [&](int k) { return v[k]; });
    store(values + i, n, [&](int k) {
      const A step =
          by.learning_rate / by.correction1 * m[k] / (std::sqrt(v[k]) / std::sqrt(by.correction2) + by.epsilon);
      return std::fma(x[k], std::fma(-by.learning_rate, by.weight_decay, A{1}), -step);
    });
  }
};

/// AdamW as Loshchilov and Hutter have it (arXiv 1711.05101), in the order of operations of torch.optim.AdamW.
template <class A, Launcher L>
void adamw_update(L& on, const adamw_step<A>& by, std::span<const A> gradient, std::span<A> values, std::span<A> first,
                  std::span<A> second) {
  for_each_element(on, static_cast<num>(values.size()),
                   adamw_body<A>{by, gradient.data(), values.data(), first.data(), second.data()});
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_OPTIMIZER_HPP
