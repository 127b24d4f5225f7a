// SPDX-License-Identifier: Apache-2.0
// What one rank knows while it runs: the model, the plan, its place, its engine, its device. Groups and cuts are asked
// of the plan.
#ifndef SHARDPLAN_RUNTIME_SHARDED_RANK_VIEW_HPP
#define SHARDPLAN_RUNTIME_SHARDED_RANK_VIEW_HPP

#include <shardplan/ownership.hpp>
#include <vector>

#include "runtime/checkpoint/model_config.hpp"
#include "runtime/device/cpu_device.hpp"
#include "runtime/engine/communicator.hpp"
#include "runtime/real.hpp"

namespace shardplan::runtime {

template <Communicator C, Device D = cpu_device>
struct rank_view {
  const model_config& config;
  const plan_spec& plan;
  C& comm;
  D on{};  ///< what it computes on

  const model_spec& model() const { return config.spec; }
  num rank() const { return comm.rank(); }
  /// This rank's group over some axes of one view.
  auto group(axis_set axes) const { return comm.group(group_of(plan, model(), rank(), axes), axes); }
  /// This rank by itself.
  auto alone() const { return comm.group(rank_group{comm.rank(), 0, {}}, axis_set{}); }
  /// This rank's place on an axis of any view.
  num at(axis a) const { return group_of(plan, model(), rank(), a).index; }
};

/// All ranks, in order.
template <Communicator C, Device D>
auto whole_world(const rank_view<C, D>& view) {
  return view.group(world_axes);
}

/// How many values each of `count` ranks has of a part that is sharded over them. Shards cut the outermost dim, so that
/// in memory a part is its shards one after another.
inline std::vector<num> shard_sizes(const region& part, num count) {
  std::vector<num> sizes;
  for (num i = 0; i < count; ++i) sizes.push_back(shard(part, count, i).size());
  return sizes;
}

template <class B>
std::span<const typename B::value_type> read_only(const B& values) {
  return values;
}

/// Values of type V in the memory of a device.
template <class D, class V>
using buffer_on = typename D::template buffer<V>;

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_RANK_VIEW_HPP
