// SPDX-License-Identifier: Apache-2.0
// The parameters a rank keeps, and the parts it computes with. What is sharded is gathered for its use, a layer ahead,
// and freed after it.
#ifndef SHARDPLAN_RUNTIME_SHARDED_PARAMETER_STORE_HPP
#define SHARDPLAN_RUNTIME_SHARDED_PARAMETER_STORE_HPP

#include <initializer_list>
#include <map>
#include <utility>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/sharded/rank_view.hpp"

namespace shardplan::runtime {

/// A part of a parameter in memory: the values, row-major, and how many of each dim.
template <class T>
struct parameter_part {
  std::span<const T> values;   // in the memory of the device
  fixed_vector<num, 3> shape;  // of the part, zero where this rank has none of it
};

/// The parts of one layer's parameters, or of those beside the layers, as long as they are in use. Parts that had to be
/// gathered live here and go with this object.
template <class T, class D = cpu_device>
class parameters_in_use {
 public:
  const parameter_part<T>& operator[](parameter_kind kind) const { return parts_.at(kind); }
  bool has(parameter_kind kind) const { return parts_.count(kind) != 0; }

 private:
  template <class, Communicator, Device>
  friend class parameter_store;
  std::map<parameter_kind, buffer_on<D, T>> gathered_;
  std::map<parameter_kind, parameter_part<T>> parts_;
};

/// Parameters of which some are on their way from other ranks.
template <class T, Communicator C, Device D>
class parameters_to_come {
 public:
  /// Waits for all, once.
  parameters_in_use<T, D> arrive() {
    for (typename C::pending& gathering : under_way_) gathering.finish();
    return std::move(all_);
  }

 private:
  template <class, Communicator, Device>
  friend class parameter_store;
  parameters_in_use<T, D> all_;
  std::vector<typename C::pending> under_way_;  // given up before what they write to goes
};

/// Parts of parameters as a checkpoint has them. It must outlive what is returned.
template <class T, Device D>
auto parts_of(const checkpoint& weights, const D& on) {
  return [&weights, on](const parameter& p, const region& part) {
    buffer<T> values(static_cast<std::size_t>(part.size()));
    weights.read<T>(p, part, values);
    return take(on, std::move(values));
  };
}

/// What this rank keeps of each parameter (shardplan::owned).
template <class T, Communicator C, Device D>
class parameter_store {
 public:
  /// `make(parameter, region)` gives the values of a part, in the memory of the device; nothing else is asked for.
  template <class Make>
  parameter_store(const rank_view<C, D>& view, const Make& make) : view_(view) {
    for_each_parameter(view.model(), [&](const parameter& p) {
      if (!rank_holds(view.model(), view.plan, view.rank(), p)) return;
      const region mine = owned(view.model(), view.plan, p, state_kind::parameter, view.rank());
      kept_.emplace(key{p.layer, p.kind}, make(p, mine));
    });
  }

  /// Begins to gather, where they are sharded, the parameters of `layer` that this rank computes with.
  parameters_to_come<T, C, D> begin_layer(num layer) const {
    parameters_to_come<T, C, D> out;
    for_each_layer_parameter(view_.model(), layer, [&](const parameter& p) { begin(p, out); });
    return out;
  }
  /// Parameters beside the layers.
  parameters_in_use<T, D> beside_layers(std::initializer_list<parameter_kind> kinds) const {
    parameters_to_come<T, C, D> out;
    for (parameter_kind kind : kinds) begin(make_parameter(view_.model(), kind), out);
    return out.arrive();
  }

  /// Calls `f(parameter, values)` with this rank's shard of each parameter it keeps; `f` may change it, if what ranks
  /// keep whole is put together again after (share_shards).
  template <class F>
  void for_each_shard(F&& f) {
    for_each_kept([&](const parameter& p, buffer_on<D, T>& kept) { f(p, shard_within(p, kept)); });
  }
  void share_shards() {
    if (is_sharded(view_.plan.zero, state_kind::parameter)) return;
    for_each_kept([&](const parameter& p, buffer_on<D, T>& kept) {
      const auto group = view_.group(shard_axis(class_of(p.kind)));
      const std::vector<num> counts = shard_sizes(part_of(p), group.size());
      view_.comm.label(phase::parameters, p.layer);
      view_.comm.all_gather(group, std::span<const T>(shard_within(p, kept)), std::span<T>(kept),
                            std::span<const num>(counts));
    });
  }

 private:
  using key = std::pair<num, parameter_kind>;

  region part_of(const parameter& p) const { return part_in_use(view_.model(), view_.plan, p, view_.rank()); }

  template <class F>
  void for_each_kept(F&& f) {
    for_each_parameter(view_.model(), [&](const parameter& p) {
      if (const auto found = kept_.find(key{p.layer, p.kind}); found != kept_.end()) f(p, found->second);
    });
  }
  /// Where this rank's shard lies in what it keeps.
  std::span<T> shard_within(const parameter& p, buffer_on<D, T>& kept) const {
    if (is_sharded(view_.plan.zero, state_kind::parameter)) return kept;
    const auto group = view_.group(shard_axis(class_of(p.kind)));
    const std::vector<num> sizes = shard_sizes(part_of(p), group.size());
    num first = 0;
    for (num i = 0; i < group.index(); ++i) first += sizes[static_cast<std::size_t>(i)];
    return std::span<T>(kept).subspan(static_cast<std::size_t>(first),
                                      static_cast<std::size_t>(sizes[static_cast<std::size_t>(group.index())]));
  }

  void begin(const parameter& p, parameters_to_come<T, C, D>& to_come) const {
    const buffer_on<D, T>& kept = kept_.at(key{p.layer, p.kind});
    const region part = part_of(p);
    std::span<const T> values = kept;
    if (is_sharded(view_.plan.zero, state_kind::parameter)) {
      const auto group = view_.group(shard_axis(class_of(p.kind)));
      if (group.size() > 1) {
        const std::vector<num> counts = shard_sizes(part, group.size());
        buffer_on<D, T>& all = to_come.all_.gathered_[p.kind];
        all = allocate<T>(view_.on, static_cast<std::size_t>(part.size()));
        view_.comm.label(phase::parameters, p.layer);
        to_come.under_way_.push_back(
            view_.comm.begin_all_gather(group, read_only(kept), std::span<T>(all), std::span<const num>(counts)));
        values = read_only(all);
      }
    }
    parameter_part<T>& out = to_come.all_.parts_[p.kind];
    out.values = values;
    for (const dim_part& d : part.dims) out.shape.push_back(d.size());
  }

  rank_view<C, D> view_;
  std::map<key, buffer_on<D, T>> kept_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_PARAMETER_STORE_HPP
