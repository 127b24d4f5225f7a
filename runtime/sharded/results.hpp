// SPDX-License-Identifier: Apache-2.0
// What a run takes beside model and plan, and what it gives back.
#ifndef SHARDPLAN_RUNTIME_SHARDED_RESULTS_HPP
#define SHARDPLAN_RUNTIME_SHARDED_RESULTS_HPP

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/sharded/batch_rows.hpp"

namespace shardplan::runtime {

/// The rows that a rank reads: those of its data shard (shardplan::data_index), the same for all ranks that differ only
/// in pp, cp or tp. Called once on every rank.
using row_loader = std::function<batch_rows(num rank)>;

/// Experts to choose instead of what the router says: (MoE layers, global rows, length, k), -1 where the router
/// decides. Top-k is discontinuous, so in low precision a comparison replays the baseline's choices where its margin is
/// small.
struct expert_choices {
  num rows = 0, length = 0, per_token = 0;
  std::vector<num> experts;
};

/// Results in the caller's order, padding cut off. Filled on rank 0 alone, but for loss and num_items.
template <class T>
struct gathered_result {
  num rows = 0, length = 0, vocab = 0;
  std::vector<T> logits;                            ///< (rows, length, vocab)
  std::vector<T> token_loss;                        ///< (rows, length); 0 where nothing was to be predicted
  double loss = 0;                                  ///< sum of token losses / num_items; 0 when there is none
  num num_items = 0;                                ///< real targets of the global batch
  std::map<std::string, std::vector<T>> gradients;  ///< of the loss, by parameter name, whole; when asked for
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_RESULTS_HPP
