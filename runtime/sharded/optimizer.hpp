// SPDX-License-Identifier: Apache-2.0
// AdamW on what a rank keeps: each rank updates its shard of every parameter with its shard of the gradient, and ranks
// that keep parameters whole exchange the shards.
#ifndef SHARDPLAN_RUNTIME_SHARDED_OPTIMIZER_HPP
#define SHARDPLAN_RUNTIME_SHARDED_OPTIMIZER_HPP

#include <cmath>

#include "runtime/sharded/gradient_reduction.hpp"
#include "runtime/sharded/results.hpp"

namespace shardplan::runtime {

/// What an optimizer remembers of one parameter's shard; shaped as the shard.
template <class T>
struct moments {
  buffer<T> first, second;
};

/// AdamW as Loshchilov and Hutter have it (arXiv 1711.05101), in the order of operations of torch.optim.AdamW.
template <class T>
class adamw {
 public:
  explicit adamw(const adamw_options& options) : options_(options) {}

  /// The number of steps begun; next() begins one.
  num steps() const { return steps_; }
  void next() { ++steps_; }
  void resume(num steps, std::map<typename gradient_store<T>::key, moments<T>> state) {
    steps_ = steps;
    state_ = std::move(state);
  }
  /// The moments of a shard of `size` values; zeros before the first step.
  moments<T>& at(const typename gradient_store<T>::key& key, std::size_t size) {
    moments<T>& m = state_[key];
    m.first.resize(size, T{0});
    m.second.resize(size, T{0});
    return m;
  }

  void update(const typename gradient_store<T>::key& key, std::span<T> values, std::span<const T> gradient) {
    moments<T>& m = at(key, values.size());
    const auto lr = static_cast<T>(options_.learning_rate), b1 = static_cast<T>(options_.beta1),
               b2 = static_cast<T>(options_.beta2), eps = static_cast<T>(options_.epsilon);
    const T decay = 1 - lr * static_cast<T>(options_.weight_decay);
    const T correction1 = 1 - std::pow(b1, static_cast<T>(steps_)),
            correction2 = 1 - std::pow(b2, static_cast<T>(steps_));
    for (std::size_t i = 0; i < values.size(); ++i) {
      m.first[i] += (gradient[i] - m.first[i]) * (1 - b1);
      m.second[i] = m.second[i] * b2 + gradient[i] * gradient[i] * (1 - b2);
      values[i] *= decay;
      values[i] -= lr / correction1 * m.first[i] / (std::sqrt(m.second[i]) / std::sqrt(correction2) + eps);
    }
  }

 private:
  adamw_options options_;
  num steps_ = 0;
  std::map<typename gradient_store<T>::key, moments<T>> state_;
};

/// The 2-norm of all gradients, each logical element once; the same on every rank.
template <class T, Communicator C>
double gradient_norm(const rank_view<C>& view, const gradient_shards<T>& shards) {
  double sum = 0;
  for_each_parameter(view.model(), [&](const parameter& p) {
    const auto mine = shards.find({p.layer, p.kind});
    if (mine == shards.end() || !is_first_copy(view.model(), view.plan, p, view.rank())) return;
    for (T g : mine->second) sum += static_cast<double>(g) * static_cast<double>(g);
  });
  view.comm.label(phase::gradients, parameter::no_layer);
  view.comm.all_reduce(whole_world(view), std::span<double>(&sum, 1), reduce_op::sum);
  return std::sqrt(sum);
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_OPTIMIZER_HPP
