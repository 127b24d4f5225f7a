// SPDX-License-Identifier: Apache-2.0
// The baseline: the whole model on whole sequences, one rank, as a textbook has it. It knows no plan and no mesh; what
// the executor computes is compared with this.
//
//     const reference_model<double> model(checkpoint::open("tests/data/tiny"));
//     const auto result = model.forward({.rows = 1, .length = 3, .input_ids = {5, 17, 2}, .labels = {5, 17, 2}});
#ifndef SHARDPLAN_RUNTIME_REFERENCE_REFERENCE_HPP
#define SHARDPLAN_RUNTIME_REFERENCE_REFERENCE_HPP

#include <limits>  // numeric_limits
#include <vector>  // vector

#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/reference/batch.hpp"
#include "runtime/reference/parameter_set.hpp"

namespace shardplan::runtime {

/// Where the tokens of one layer went; to be replayed where rounding could choose differently.
struct layer_choices {
  num layer = 0;
  std::vector<num> experts;     ///< (B, S, k): most probable first; of equals the lower index
  std::vector<double> margins;  ///< (B, S): by how much the last one chosen is more probable than the next
};

template <class T>
struct reference_result {
  num rows = 0, length = 0, vocab = 0;  ///< B, S, V
  std::vector<T> logits;                ///< (B, S, V)
  std::vector<T> token_loss;            ///< (B, S); 0 where there is no label
  /// Sum of token_loss / num_items, and where the configuration has output_router_logits router_aux_loss_coef *
  /// balance_loss. Without any label it is 0, auxiliary loss or not.
  T loss = 0;
  /// The auxiliary loss as it is, its mean over micro-batches; 0 without output_router_logits.
  T balance_loss = 0;
  num num_items = 0;                   ///< the number of labels, or as given
  std::vector<layer_choices> choices;  ///< one for each layer with experts
  /// The smallest margin of all layers and tokens that attention_mask does not hide.
  double smallest_margin = std::numeric_limits<double>::infinity();
};

template <class T>
struct reference_gradients {
  reference_result<T> result;
  reference::parameter_set<T> gradients;  ///< of result.loss; all zero when there is no label
  double norm = 0;                        ///< square root of the sum of squares of all of them
};

/// T is float or double: the type of weights, activations and sums.
template <class T>
class reference_model {
 public:
  /// Reads all weights. Throws input_error when the model makes no sense: key/value heads that do not divide the
  /// heads, an odd head_dim, more experts chosen than there are.
  explicit reference_model(const checkpoint& source);

  /// Weights of the shapes of `config.spec`.
  reference_model(const model_config& config, reference::parameter_set<T> weights);

  /// Throws input_error naming field, index and value of what is wrong with `batch`. Safe to call from several threads.
  reference_result<T> forward(const reference_batch& batch) const;
  /// Gradients by parameter. That of the embedding is zero where `batch` has inputs_embeds, unless it is the head too.
  reference_gradients<T> gradients(const reference_batch& batch) const;

  const model_config& config() const { return config_; }
  const reference::parameter_set<T>& weights() const { return weights_; }
  reference::parameter_set<T>& weights() { return weights_; }

 private:
  model_config config_;
  reference::parameter_set<T> weights_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_REFERENCE_REFERENCE_HPP
