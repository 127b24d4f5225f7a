// SPDX-License-Identifier: Apache-2.0
// One rank's part of a run: read rows, agree with the other ranks about them, cut, execute, collect.
#ifndef SHARDPLAN_RUNTIME_SHARDED_RUN_HPP
#define SHARDPLAN_RUNTIME_SHARDED_RUN_HPP

#include "runtime/sharded/collect.hpp"
#include "runtime/sharded/executor.hpp"

namespace shardplan::runtime {

/// Length of the padded row that all ranks use, once they have agreed that ranks which differ only in pp, cp or tp read
/// the same rows, and that every data shard has rows of one shape. Throws input_error naming two ranks that do not.
template <Communicator C>
num agree_on_rows(const rank_view<C>& view, const batch_rows& rows) {
  const auto peers = view.group(axis::pp | axis::cp | axis::tp);
  const auto world = view.group(axis_set(axis::pp) | axis::dp_replicate | axis::fsdp | axis::cp | axis::tp);
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
  const std::vector<num> shape{rows.rows, rows.length, longest};
  std::vector<num> shapes(static_cast<std::size_t>(3 * world.size()));
  view.comm.all_gather(world, read_only(shape), std::span<num>(shapes));
  for (num i = 0; i < world.size(); ++i) {
    const num* theirs = shapes.data() + 3 * i;
    if (theirs[0] != rows.rows || theirs[1] != rows.length)
      throw input_error(
          fmt::format("ranks {} and {} must read equally many rows of one length, but read {} of {} and {} of {}",
                      view.rank(), world.member(i), rows.rows, rows.length, theirs[0], theirs[1]));
    longest = std::max(longest, theirs[2]);
  }
  return longest;
}

/// Executes the plan with micro-batches of equally many rows. Every rank calls it; the plan must be legal for the model
/// and the rows (shardplan::legal). `choices`, if any, are the same on every rank.
template <class T, Communicator C>
gathered_result<T> run_forward(C& comm, const checkpoint& weights, const plan_spec& plan, num micro_batches,
                               const row_loader& load, const expert_choices* choices = nullptr) {
  const rank_view<C> view{weights.config(), plan, comm};
  if (comm.world_size() != world_size(plan))
    throw plan_error(
        fmt::format("the plan needs {} ranks, but the engine has {}", world_size(plan), comm.world_size()));
  const batch_rows rows = load(comm.rank());
  validate(rows, view.model());
  const num padded = agree_on_rows(view, rows);
  if (micro_batches < 1 || rows.rows % micro_batches != 0)
    throw plan_error(fmt::format("{} rows of a data shard are not {} equal micro-batches", rows.rows, micro_batches));
  const num each = rows.rows / micro_batches;

  const auto execute = [&]<Layout L, class Residual>(L, Residual) {
    std::vector<local_tokens<L, T>> tokens;
    std::vector<std::vector<std::vector<num>>> forced;
    for (num m = 0; m < micro_batches; ++m) {
      tokens.push_back(
          cut_rows<L, T>(select_rows(rows, m * each, each), plan, view.model().hidden_size, padded, view.at(axis::cp)));
      if (choices != nullptr)
        forced.push_back(cut_choices(*choices, tokens.back(), data_index(plan, view.rank()) * rows.rows + m * each,
                                     num_moe_layers(view.model())));
    }
    executor<L, Residual, T, C> run(view, weights);
    return collect(view, run.forward(tokens, forced), rows, micro_batches, padded);
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
