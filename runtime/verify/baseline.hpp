// SPDX-License-Identifier: Apache-2.0
// The baseline's answer to the same rows, in the terms of a comparison.
#ifndef SHARDPLAN_RUNTIME_VERIFY_BASELINE_HPP
#define SHARDPLAN_RUNTIME_VERIFY_BASELINE_HPP

#include <map>
#include <memory>
#include <shardplan/plan.hpp>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/sharded/results.hpp"

namespace shardplan::runtime {

/// What the router of one MoE layer chose.
struct layer_routing {
  std::vector<num> experts;     ///< (rows, length, k)
  std::vector<double> margins;  ///< (rows, length): of the last one chosen over the next
};

inline constexpr double steady_share = 1e-3;

template <class T>
struct baseline_result {
  num rows = 0, length = 0, vocab = 0;
  std::vector<T> logits;      ///< (rows, length, vocab)
  std::vector<T> token_loss;  ///< (rows, length)
  double loss = 0;
  num num_items = 0;
  std::vector<layer_routing> routing{};                     ///< by MoE layer, in the first step
  std::vector<std::vector<layer_routing>> later_routing{};  ///< the same in the second step, the third ...
  bool has_balance_loss = false;                            ///< the configuration asks for it
  double balance_loss = 0;                                  ///< load-balancing loss of the routers
  std::map<std::string, std::vector<T>> gradients{};        ///< by parameter name; when asked for
  double gradient_norm = 0;                                 ///< with gradients
  std::map<std::string, std::vector<T>> parameters{};       ///< after the steps; when asked for
  std::vector<double> step_losses{};                        ///< before each step
  /// By parameter, 1 where its first gradient is at least `steady_share` of the largest of its tensor: AdamW divides
  /// gradients by their size, and so makes whole steps of what is rounding alone in the others. With steps.
  std::map<std::string, std::vector<char>> steady{};
};

/// What to compute beside the forward.
struct baseline_options {
  bool gradients = false, parameters = false;
  num steps = 0;  ///< of AdamW on the same rows; the other results are those of the first
  adamw_options optimizer{};
};

/// The one-rank model with its weights in memory; T is float or double.
template <class T>
class baseline {
 public:
  /// `in_bf16`: of parameters rounded to bf16, as ranks hold them that store them so; what is computed stays in T.
  explicit baseline(const checkpoint& weights, bool in_bf16 = false);
  ~baseline();
  /// `micro_batch_of_row` says which rows are one micro-batch, for the load-balancing loss of the routers, which is a
  /// mean over micro-batches; all are one when it is empty. Throws input_error when the rows do not fit the model.
  baseline_result<T> compute(const batch_rows& rows, std::vector<num> micro_batch_of_row,
                             const baseline_options& options) const;
  /// The forward alone.
  baseline_result<T> forward(const batch_rows& rows, std::vector<num> micro_batch_of_row = {}) const {
    return compute(rows, std::move(micro_batch_of_row), {});
  }

 private:
  struct state;
  std::unique_ptr<const state> state_;
};

/// The micro-batch of every row of the global batch under a plan: each data shard cuts its share of the rows.
std::vector<num> micro_batches_of_rows(const plan_spec& plan, num rows, num micro_batches);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_VERIFY_BASELINE_HPP
