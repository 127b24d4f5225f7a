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
template <class T, class D = cpu_device>
struct moments {
  buffer_on<D, T> first, second;
};

/// AdamW (see adamw_update) on the shards of one rank.
template <class T, class D = cpu_device>
class adamw {
 public:
  explicit adamw(const adamw_options& options, const D& on = {}) : options_(options), on_(on) {}

  /// The number of steps begun; next() begins one.
  num steps() const { return steps_; }
  void next() { ++steps_; }
  void resume(num steps, std::map<parameter_key, moments<T, D>> state) {
    steps_ = steps;
    state_ = std::move(state);
  }
  /// The moments of a shard of `size` values; zeros before the first step.
  moments<T, D>& at(const parameter_key& key, std::size_t size) {
    moments<T, D>& m = state_[key];
    for (buffer_on<D, T>* values : {&m.first, &m.second})
      if (values->size() != size) *values = filled<T>(on_, size, T{0});
    return m;
  }

  void update(const parameter_key& key, std::span<T> values, std::span<const T> gradient) {
    moments<T, D>& m = at(key, values.size());
    adamw_step<T> by{static_cast<T>(options_.learning_rate),
                     static_cast<T>(options_.beta1),
                     static_cast<T>(options_.beta2),
                     static_cast<T>(options_.epsilon),
                     static_cast<T>(options_.weight_decay),
                     1,
                     1};
    by.correction1 -= std::pow(by.beta1, static_cast<T>(steps_));
    by.correction2 -= std::pow(by.beta2, static_cast<T>(steps_));
    adamw_update<T>(on_, by, gradient, values, m.first, m.second);
  }

 private:
  adamw_options options_;
  D on_;
  num steps_ = 0;
  std::map<parameter_key, moments<T, D>> state_;
};

/// The 2-norm of all gradients, each logical element once; the same on every rank.
template <class T, Communicator C, Device D>
double gradient_norm(const rank_view<C, D>& view, const gradient_shards<T, D>& shards) {
  double sum = 0;
  for_each_parameter(view.model(), [&](const parameter& p) {
    const auto mine = shards.find({p.layer, p.kind});
    if (mine == shards.end() || !is_first_copy(view.model(), view.plan, p, view.rank())) return;
    sum = add_up_squares<T>(view.on, mine->second, sum);
  });
  view.comm.label(phase::gradients, parameter::no_layer);
  through_engine(view.on, std::span<double>(&sum, 1),
                 [&](std::span<double> there) { view.comm.all_reduce(whole_world(view), there, reduce_op::sum); });
  return std::sqrt(sum);
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_OPTIMIZER_HPP
