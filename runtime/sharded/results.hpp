// SPDX-License-Identifier: Apache-2.0
// What a run takes beside model and plan, and what it gives back.
#ifndef SHARDPLAN_RUNTIME_SHARDED_RESULTS_HPP
#define SHARDPLAN_RUNTIME_SHARDED_RESULTS_HPP

#include <filesystem>
#include <functional>
#include <map>
#include <span>
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

struct adamw_options {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
};

/// What to do beside the forward and the loss.
struct run_options {
  bool gradients = false;  ///< also the gradient of every parameter
  num steps = 0;           ///< optimizer steps on the same rows, after which parameters are collected
  adamw_options optimizer{};
  std::filesystem::path resume{};  ///< continue from the newest state below this directory; empty: from the checkpoint
  std::filesystem::path save{};    ///< write the state, after the steps, below this directory; empty: do not
  bool parameters = false;         ///< collect parameters without steps too, as they were read
  /// Choices to make in each step, the forward being the first; the same on every rank. Routers make those of steps
  /// that are not there or empty.
  std::span<const expert_choices> replay{};
};

/// Results in the caller's order, padding cut off. Tensors are filled on rank 0 alone, numbers everywhere.
template <class T>
struct gathered_result {
  num rows = 0, length = 0, vocab = 0;
  std::vector<T> logits;      ///< (rows, length, vocab)
  std::vector<T> token_loss;  ///< (rows, length); 0 where nothing was to be predicted
  double loss = 0;            ///< sum of token losses / num_items, 0 when there is none; plus the routers' share
  double balance_loss = 0;    ///< load-balancing loss of the routers, part of `loss` where the configuration asks
  num num_items = 0;          ///< real targets of the global batch
  std::map<std::string, std::vector<T>> gradients;   ///< of the loss, by parameter name, whole; when asked for
  double gradient_norm = 0;                          ///< 2-norm of all gradients; with gradients or steps
  std::map<std::string, std::vector<T>> parameters;  ///< after the steps, by name, whole; with steps, or when asked for
  std::vector<double> step_losses;                   ///< before each step
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_RESULTS_HPP
