// SPDX-License-Identifier: Apache-2.0
// Training of the baseline: AdamW on whole parameters, one rank.
//
//     reference_training<double> training(reference_model<double>(checkpoint::open("tests/data/tiny")),
//                                         {.learning_rate = 1e-3});
//     for (const reference_batch& batch : batches) report(training.step(batch).result.loss);
#ifndef SHARDPLAN_RUNTIME_REFERENCE_TRAINING_HPP
#define SHARDPLAN_RUNTIME_REFERENCE_TRAINING_HPP

#include "runtime/reference/reference.hpp"

namespace shardplan::runtime {

/// Defaults are those of torch.optim.AdamW.
struct reference_adamw {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;  ///< decay of the moments
  double epsilon = 1e-8;
  double weight_decay = 0.01;  ///< of every parameter, norms and biases too
};

namespace reference {

/// Step `step`, counted from 1, on `weights`, with the running means of the gradient and of its square. The order of
/// operations is that of torch.optim.AdamW: first the weights decay, and epsilon is added once the square root of the
/// second moment has been corrected.
template <class T>
void adamw(const reference_adamw& options, num step, std::span<const T> gradient, std::span<T> weights,
           std::span<T> first_moment, std::span<T> second_moment);

}  // namespace reference

template <class T>
class reference_training {
 public:
  explicit reference_training(reference_model<T> model, const reference_adamw& options = {});

  /// One forward and backward, of which the result is returned, and one update of all weights with its gradients.
  reference_gradients<T> step(const reference_batch& batch);

  num num_steps() const { return num_steps_; }
  /// As the last step left it; model().weights().at("model.norm.weight") is one of its parameters.
  const reference_model<T>& model() const { return model_; }
  const reference::parameter_set<T>& first_moments() const { return first_moments_; }
  const reference::parameter_set<T>& second_moments() const { return second_moments_; }

 private:
  reference_model<T> model_;
  reference_adamw options_;
  reference::parameter_set<T> first_moments_, second_moments_;
  num num_steps_ = 0;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_REFERENCE_TRAINING_HPP
