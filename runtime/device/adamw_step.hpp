// SPDX-License-Identifier: Apache-2.0
// The numbers of one step of an optimizer, for every device alike.
#ifndef SHARDPLAN_RUNTIME_DEVICE_ADAMW_STEP_HPP
#define SHARDPLAN_RUNTIME_DEVICE_ADAMW_STEP_HPP

namespace shardplan::runtime {

/// The numbers of one step of AdamW. `correction1` and `correction2` are 1 - beta^steps, of the first and the second
/// moment.
template <class A>
struct adamw_step {
  A learning_rate, beta1, beta2, epsilon, weight_decay, correction1, correction2;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_ADAMW_STEP_HPP
