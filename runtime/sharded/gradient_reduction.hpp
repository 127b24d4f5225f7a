// SPDX-License-Identifier: Apache-2.0
// From the gradients one rank has seen to the shards it keeps, by the plan's reduction of each parameter.
#ifndef SHARDPLAN_RUNTIME_SHARDED_GRADIENT_REDUCTION_HPP
#define SHARDPLAN_RUNTIME_SHARDED_GRADIENT_REDUCTION_HPP

#include <shardplan/reduction.hpp>

#include "runtime/sharded/gradient_store.hpp"

namespace shardplan::runtime {

/// Reduced gradients: of each parameter the elements that owned(..., state_kind::optimizer, rank) names, row-major.
template <class T, class D = cpu_device>
using gradient_shards = std::map<parameter_key, buffer_on<D, T>>;

template <class T, Communicator C, Device D>
class gradient_reducer {
 public:
  gradient_reducer(const rank_view<C, D>& view, gradient_shards<T, D>& shards) : view_(view), shards_(shards) {}

  /// Reduces over tp and shards, of the parameters of one stage, what `sums` holds, and takes it from there. Ranks that
  /// saw nothing of a parameter take part with zeros.
  void reduce(gradient_store<T, D>& sums, num stage) {
    for_each_parameter(view_.model(), [&](const parameter& p) {
      if (!stage_holds(view_.model(), view_.plan, stage, p)) return;
      const region part = part_in_use(view_.model(), view_.plan, p, view_.rank());
      const std::span<T> sum = sums(p.layer, p.kind, static_cast<std::size_t>(part.size()));
      const gradient_reduction how = reduction_of(view_.model(), view_.plan, p);
      view_.comm.label(phase::gradients, p.layer);
      if (!how.tensor.empty()) view_.comm.all_reduce(view_.group(how.tensor), sum, reduce_op::sum);
      const auto group = view_.group(how.shard);
      const std::vector<num> counts = shard_sizes(part, group.size());
      auto mine = allocate<T>(view_.on, static_cast<std::size_t>(counts[static_cast<std::size_t>(group.index())]));
      view_.comm.reduce_scatter(group, std::span<const T>(sum), std::span<T>(mine), std::span<const num>(counts));
      buffer_on<D, T>& kept = shards_[{p.layer, p.kind}];
      if (kept.size() == 0)
        kept = std::move(mine);
      else
        add<T>(view_.on, kept, mine);
      sums.sums().erase({p.layer, p.kind});
    });
  }

  /// The sums over whole copies, once a step: replicas, and the two ends of a tied embedding.
  void finish() {
    for_each_parameter(view_.model(), [&](const parameter& p) {
      if (!rank_holds(view_.model(), view_.plan, view_.rank(), p)) return;
      const std::span<T> kept = shards_[{p.layer, p.kind}];
      view_.comm.label(phase::gradients, p.layer);
      view_.comm.all_reduce(view_.group(axis::dp_replicate), kept, reduce_op::sum);
      if (reduction_of(view_.model(), view_.plan, p).both_ends)
        view_.comm.all_reduce(view_.comm.group(both_ends_group(view_.plan, view_.rank()), axis::pp), kept,
                              reduce_op::sum);
    });
  }

 private:
  rank_view<C, D> view_;
  gradient_shards<T, D>& shards_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_GRADIENT_REDUCTION_HPP
