// SPDX-License-Identifier: Apache-2.0
// One rank's part of a run: read rows, agree with the other ranks about them, cut, execute, collect.
#ifndef SHARDPLAN_RUNTIME_SHARDED_RUN_HPP
#define SHARDPLAN_RUNTIME_SHARDED_RUN_HPP

#include "runtime/sharded/collect.hpp"
#include "runtime/sharded/executor.hpp"

namespace shardplan::runtime {

/// Steps of an optimizer change parameters by less than the last digit of a type that is narrower than its sums.
template <class T>
inline constexpr bool trains_in = std::is_same_v<T, accumulated<T>>;

/// What the ranks have agreed on before they start.
struct agreed_rows {
  num padded = 0;     ///< length of a padded row
  num num_items = 0;  ///< real targets of the global batch
};

/// Ranks which differ only in pp, cp or tp must read the same rows, and every data shard rows of one shape. Throws
/// input_error naming two ranks that do not.
template <Communicator C, Device D>
agreed_rows agree_on_rows(const rank_view<C, D>& view, const batch_rows& rows) {
  const auto peers = view.group(axis_set(axis::pp) | axis::cp | axis::tp);
  const auto world = whole_world(view);
  view.comm.label(phase::check, parameter::no_layer);
  const std::vector<std::uint64_t> mine{digest(rows)};
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(peers.size()));
  view.comm.all_gather(peers, read_only(mine), std::span<std::uint64_t>(digests));
  for (num i = 0; i < peers.size(); ++i)
    if (digests[static_cast<std::size_t>(i)] != mine[0])
      throw input_error(fmt::format(
          "ranks {} and {} belong to data shard {} and must read the same rows, but their inputs differ: a loader must "
          "give a rank the rows of its data index, whatever its place on pp, cp and tp",
          view.rank(), peers.member(i), data_index(view.plan, view.rank())));

  num longest = 0;
  for (const std::vector<num>& documents : find_documents(rows))
    longest = std::max(longest, padded_length(documents, needed_multiple(view.plan)));
  const std::vector<num> shape{rows.rows, rows.length, longest, count_targets(rows)};
  const num fields = static_cast<num>(shape.size());
  std::vector<num> shapes(static_cast<std::size_t>(fields * world.size()));
  view.comm.all_gather(world, read_only(shape), std::span<num>(shapes));
  agreed_rows agreed;
  for (num i = 0; i < world.size(); ++i) {
    const num* theirs = shapes.data() + fields * i;
    if (theirs[0] != rows.rows || theirs[1] != rows.length)
      throw input_error(
          fmt::format("ranks {} and {} must read equally many rows of one length, but read {} of {} and {} of {}",
                      view.rank(), world.member(i), rows.rows, rows.length, theirs[0], theirs[1]));
    agreed.padded = std::max(agreed.padded, theirs[2]);
    if (group_of(view.plan, view.model(), world.member(i), axis_set(axis::pp) | axis::cp | axis::tp).index == 0)
      agreed.num_items += theirs[3];  // each data shard once
  }
  return agreed;
}

/// Executes the plan: the forward and the loss, and what else the options ask for. Every rank calls it; the plan must
/// be legal for the model and the rows (shardplan::legal), whose micro-batches are equally many rows. `Methods`
/// replaces attention or loss (see planned_methods); `on` is what this rank computes on. Activations and parameters are
/// stored as T; results are of what sums over T are kept in. Steps need a T that is that itself (input_error).
template <class T, class Methods = planned_methods, Communicator C, Device D = cpu_device>
gathered_result<accumulated<T>> run_sharded(C& comm, const checkpoint& weights, const plan_spec& plan,
                                            num micro_batches, const row_loader& load, const run_options& options = {},
                                            const D& on = {}) {
  using A = accumulated<T>;
  const rank_view<C, D> view{weights.config(), plan, comm, on};
  if (!trains_in<T> && (options.steps > 0 || !options.save.empty() || !options.resume.empty()))
    throw input_error("steps of training, and their states, need parameters that are kept as wide as their gradients");
  if (comm.world_size() != world_size(plan))
    throw plan_error(
        fmt::format("the plan needs {} ranks, but the engine has {}", world_size(plan), comm.world_size()));
  const batch_rows rows = load(comm.rank());
  validate(rows, view.model());
  const agreed_rows agreed = agree_on_rows(view, rows);
  if (micro_batches < 1 || rows.rows % micro_batches != 0)
    throw plan_error(fmt::format("{} rows of a data shard are not {} equal micro-batches", rows.rows, micro_batches));
  const num each = rows.rows / micro_batches;

  const auto execute = [&]<Layout L, class Residual>(L, Residual) {
    std::vector<micro_batch<L, T, D>> batch;
    for (num m = 0; m < micro_batches; ++m) {
      const num place = view.at(axis::cp);
      const batch_rows here = select_rows(rows, m * each, each);
      batch.push_back(
          take_tokens<T>(on, cut_rows<L>(here, plan, view.model().hidden_size, agreed.padded, place), place));
    }
    const auto replay = [&](std::size_t step) {
      const bool any = step < options.replay.size() && !options.replay[step].experts.empty();
      const num first_row = data_index(plan, view.rank()) * rows.rows;
      for (num m = 0; m < micro_batches; ++m) {
        micro_batch<L, T, D>& b = batch[static_cast<std::size_t>(m)];
        b.forced.clear();
        if (!any) continue;
        for (std::vector<num>& layer :
             cut_choices(options.replay[step], b.offsets, first_row + m * each, num_moe_layers(view.model())))
          b.forced.push_back(take(on, std::move(layer)));
      }
    };
    executor<L, Residual, T, C, Methods, D> run(view, weights, agreed.num_items);
    gathered_result<A> result;
    result.num_items = agreed.num_items;
    const auto set_losses = [&](const std::vector<local_outputs<L, T, D>>& outputs) {
      const run_losses losses = sum_of_losses(view, outputs);
      result.loss = agreed.num_items > 0 ? losses.token_sum / static_cast<double>(agreed.num_items) : 0;
      if (!view.config.output_router_logits) return;
      result.balance_loss = losses.balance;
      if (agreed.num_items > 0) result.loss += view.config.router_aux_loss_coef * losses.balance;
    };
    adamw<T, D> optimizer(options.optimizer, on);
    if constexpr (trains_in<T>)
      if (!options.resume.empty()) run.resume(options.resume, optimizer);
    for (num step = 0; step < std::max<num>(1, options.steps); ++step) {
      gradient_shards<A, D> gradients;
      replay(static_cast<std::size_t>(step));
      const bool training = options.gradients || options.steps > 0;
      const auto outputs = training ? run.train(batch, gradients) : run.evaluate(batch);
      set_losses(outputs);
      if (step == 0) {  // outputs and gradients are those of the weights as they were read
        collect_tokens(view, outputs, batch, rows, result);
        if (training) result.gradient_norm = gradient_norm<A>(view, gradients);
        if (options.gradients) collect_shards<A>(view, gradients, result.gradients);
      }
      if (options.steps == 0) break;
      result.step_losses.push_back(result.loss);
      if constexpr (trains_in<T>) run.step(optimizer, gradients);
    }
    if (options.steps > 0) result.loss = result.step_losses.front();
    const bool collected = options.steps > 0 || options.parameters;
    if (!collected && options.save.empty()) return result;
    const gradient_shards<T, D> parameters = run.parameter_shards();
    if (collected) collect_shards<T>(view, parameters, result.parameters);
    if constexpr (trains_in<T>)
      if (!options.save.empty()) save_state(view, options.save, parameters, optimizer);
    return result;
  };
  const auto with_layout = [&]<Layout L>(L layout) {
    return plan.sequence_parallel && plan.tp > 1 ? execute(layout, tensor_split<L>{}) : execute(layout, L{});
  };
  switch (plan.layout) {
    case layout_kind::zigzag:
      return with_layout(zigzag{});
    case layout_kind::zigzag_documents:
      return with_layout(zigzag_documents{});
    case layout_kind::full:
    case layout_kind::contiguous:
      break;
  }
  return with_layout(contiguous{});
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_RUN_HPP
