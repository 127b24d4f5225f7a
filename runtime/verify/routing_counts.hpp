// SPDX-License-Identifier: Apache-2.0
// From the experts that a baseline chose for every token to how many pairs each rank of a plan sends where: what the
// predicted ledger needs to be exact for expert dispatch.
#ifndef SHARDPLAN_RUNTIME_VERIFY_ROUTING_COUNTS_HPP
#define SHARDPLAN_RUNTIME_VERIFY_ROUTING_COUNTS_HPP

#include <numeric>
#include <shardplan/collectives.hpp>
#include <span>
#include <vector>

#include "runtime/sharded/batch_rows.hpp"

namespace shardplan::runtime {

/// Counts of (token, choice) pairs by MoE layer, micro-batch, rank and expert; a shardplan::Routing.
class routing_counts {
 public:
  /// `choices[MoE layer]` (rows, length, k) of all rows of the global batch, first data shard first.
  routing_counts(const model_spec& model, const plan_spec& plan, const batch_rows& rows, num micro_batches,
                 std::span<const std::span<const num>> choices);

  num operator()(num moe_layer, num micro_batch, num rank, dim_range experts) const {
    const auto first = counts_.begin() + static_cast<num>(index(moe_layer, micro_batch, rank, 0));
    return std::accumulate(first + experts.begin, first + experts.end, num{0});
  }
  /// The shape of the run that was counted: with it, for_each_collective is exact.
  const run_shape& shape() const { return shape_; }

 private:
  std::size_t index(num moe_layer, num micro_batch, num rank, num expert) const {
    return static_cast<std::size_t>(((moe_layer * shape_.micro_batches + micro_batch) * world_ + rank) * experts_ +
                                    expert);
  }
  run_shape shape_;
  num world_, experts_;
  std::vector<num> counts_;
};

/// Length of a padded row that holds every row of the batch.
num padded_row(const plan_spec& plan, const batch_rows& rows);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_VERIFY_ROUTING_COUNTS_HPP
