// SPDX-License-Identifier: Apache-2.0
// Saving and resuming a training run: each rank writes and reads its shards, under whatever plan.
#ifndef SHARDPLAN_RUNTIME_SHARDED_TRAINING_STATE_HPP
#define SHARDPLAN_RUNTIME_SHARDED_TRAINING_STATE_HPP

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/checkpoint/safetensors_writer.hpp"
#include "runtime/checkpoint/sharded_state.hpp"
#include "runtime/error.hpp"
#include "runtime/sharded/optimizer.hpp"

namespace shardplan::runtime {

inline constexpr std::string_view first_moment = "first_moment.", second_moment = "second_moment.";

/// Throws plan_error, on every rank, naming the first parameter of which any rank has a value that is not finite, in
/// its shard or its moments: a state that no training can go on from must not become the newest.
template <class T, Communicator C, Device D>
void require_finite(const rank_view<C, D>& view, const gradient_shards<T, D>& parameters, adamw<T, D>& optimizer) {
  const auto finite = [&](const buffer_on<D, T>& values) {
    const auto& host = to_host(view.on, values);
    return std::all_of(host.begin(), host.end(), [](T v) { return std::isfinite(v); });
  };
  num index = 0;
  std::vector<num> good;
  for_each_parameter(view.model(), [&](const parameter& p) {
    good.push_back(1);
    const auto mine = parameters.find({p.layer, p.kind});
    if (mine == parameters.end()) return;
    const moments<T, D>& m = optimizer.at(mine->first, mine->second.size());
    good.back() = finite(mine->second) && finite(m.first) && finite(m.second) ? 1 : 0;
  });
  view.comm.label(phase::collect, parameter::no_layer);
  view.comm.all_reduce(whole_world(view), std::span<num>(good), reduce_op::min);
  for_each_parameter(view.model(), [&](const parameter& p) {
    if (good[static_cast<std::size_t>(index++)] == 0)
      throw plan_error(fmt::format("the state is not saved: {} or its moments are not finite", name_of(p).view()));
  });
}

/// Writes this rank's shards of parameters and moments below `root`; when all ranks have, the state becomes the newest.
/// Every rank calls it. Throws input_error when a file cannot be written, and plan_error when a value is not
/// finite; the old state then stays the newest.
template <class T, Communicator C, Device D>
void save_state(const rank_view<C, D>& view, const std::filesystem::path& root, const gradient_shards<T, D>& parameters,
                adamw<T, D>& optimizer) {
  require_finite(view, parameters, optimizer);
  const auto world = whole_world(view);
  view.comm.label(phase::collect, parameter::no_layer);
  num attempt = view.rank() == 0 ? make_state_directory(root, optimizer.steps()) : 0;
  view.comm.broadcast(world, std::span<num>(&attempt, 1), 0);
  const std::filesystem::path directory = state_directory(root, optimizer.steps(), attempt);

  const auto dtype = std::is_same_v<T, double> ? tensor_dtype::f64 : tensor_dtype::f32;
  const auto region_of = [&](const parameter& p, num rank) {
    return is_first_copy(view.model(), view.plan, p, rank)
               ? owned(view.model(), view.plan, p, state_kind::optimizer, rank)
               : region{};
  };
  safetensors_writer file;  // views the host's values: of a device's those it is handed
  std::vector<buffer<T>> handed;
  const auto on_host = [&](const buffer_on<D, T>& values) -> std::span<const T> {
    if constexpr (std::is_lvalue_reference_v<decltype(to_host(view.on, values))>)
      return to_host(view.on, values);
    else
      return handed.emplace_back(to_host(view.on, values));
  };
  for_each_parameter(view.model(), [&](const parameter& p) {
    const region r = region_of(p, view.rank());
    if (r.size() == 0) return;
    std::vector<num> shape;
    for (const dim_part& d : r.dims) shape.push_back(d.size());
    const std::string name(name_of(p).view());
    const buffer_on<D, T>& values = parameters.at({p.layer, p.kind});
    const moments<T, D>& m = optimizer.at({p.layer, p.kind}, values.size());
    file.add_view<T>(name, dtype, shape, on_host(values));
    file.add_view<T>(std::string(first_moment) + name, dtype, shape, on_host(m.first));
    file.add_view<T>(std::string(second_moment) + name, dtype, shape, on_host(m.second));
  });
  file.write(state_file(directory, view.rank()));
  view.comm.barrier(world);  // the index must not speak of files that are not there
  if (view.rank() == 0) {
    state_index index;
    index.step = optimizer.steps();
    for_each_parameter(view.model(), [&](const parameter& p) {
      state_index::tensor tensor{{p.shape.begin(), p.shape.end()}, {}};
      for (num rank = 0; rank < world.size(); ++rank)
        if (const region r = region_of(p, rank); r.size() > 0) tensor.pieces.push_back({rank, r});
      for (std::string_view prefix : {std::string_view(), first_moment, second_moment})
        index.tensors.emplace(std::string(prefix).append(name_of(p).view()), tensor);
    });
    publish_state(root, attempt, index);
  }
  view.comm.barrier(world);
}

/// Reads this rank's shards of the newest state below `root`: parameters through `set(parameter, values)`, moments and
/// steps into `optimizer`. Throws input_error.
template <class T, Communicator C, Device D, class Set>
void load_state(const rank_view<C, D>& view, const std::filesystem::path& root, adamw<T, D>& optimizer, Set&& set) {
  const sharded_state state = sharded_state::open(root);
  std::map<parameter_key, moments<T, D>> all;
  for_each_parameter(view.model(), [&](const parameter& p) {
    const region r = owned(view.model(), view.plan, p, state_kind::optimizer, view.rank());
    if (!rank_holds(view.model(), view.plan, view.rank(), p)) return;
    const std::string name(name_of(p).view());
    const std::vector<num> shape(p.shape.begin(), p.shape.end());
    const auto read = [&](std::string_view prefix) {
      buffer<T> values(static_cast<std::size_t>(r.size()), T{0});
      state.read<T>(std::string(prefix) + name, shape, r, values);
      return take(view.on, std::move(values));
    };
    set(p, read(""));
    all[{p.layer, p.kind}] = {read(first_moment), read(second_moment)};
  });
  optimizer.resume(state.step(), std::move(all));
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_TRAINING_STATE_HPP
