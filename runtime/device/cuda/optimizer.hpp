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
  adamw_step<A> by;
  const A* gradient;
  A *values, *first, *second;
  SHARDPLAN_HOST_DEVICE void operator()(num i) const {
    const A g = gradient[i], m = first[i] + (g - first[i]) * (1 - by.beta1);
    const A v = second[i] * by.beta2 + g * g * (1 - by.beta2);
    first[i] = m, second[i] = v;
    values[i] = values[i] * (1 - by.learning_rate * by.weight_decay) -
                by.learning_rate / by.correction1 * m / (std::sqrt(v) / std::sqrt(by.correction2) + by.epsilon);
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
