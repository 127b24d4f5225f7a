// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference/training.hpp"

#include <cmath>    // pow, sqrt
#include <utility>  // move

namespace shardplan::runtime {

template <class T>
void reference::adamw(const reference_adamw& options, num step, std::span<const T> gradient, std::span<T> weights,
                      std::span<T> first_moment, std::span<T> second_moment) {
  // Both moments start at zero; dividing by these undoes what that leaves in them.
  const double correction1 = 1 - std::pow(options.beta1, double(step));
  const double correction2 = 1 - std::pow(options.beta2, double(step));
  const T keep = T(1 - options.learning_rate * options.weight_decay),
          step_size = T(options.learning_rate / correction1);
  const T root2 = T(std::sqrt(correction2)), epsilon = T(options.epsilon);
  const T share1 = T(1 - options.beta1), beta2 = T(options.beta2), share2 = T(1 - options.beta2);

  for (std::size_t i = 0; i < weights.size(); ++i) {
    const T g = gradient[i];
    weights[i] *= keep;
    first_moment[i] += share1 * (g - first_moment[i]);
    second_moment[i] = beta2 * second_moment[i] + share2 * g * g;
    weights[i] -= step_size * (first_moment[i] / (std::sqrt(second_moment[i]) / root2 + epsilon));
  }
}

template <class T>
reference_training<T>::reference_training(reference_model<T> model, const reference_adamw& options)
    : model_(std::move(model)),
      options_(options),
      first_moments_(model_.config().spec),
      second_moments_(model_.config().spec) {}

template <class T>
reference_gradients<T> reference_training<T>::step(const reference_batch& batch) {
  reference_gradients<T> all = model_.gradients(batch);
  ++num_steps_;
  model_.weights().for_each([&](const parameter& p, std::span<T> weights) {
    reference::adamw<T>(options_, num_steps_, all.gradients.at(p.kind, p.layer).all(), weights,
                        first_moments_.at(p.kind, p.layer).all(), second_moments_.at(p.kind, p.layer).all());
  });
  return all;
}

template void reference::adamw<float>(const reference_adamw&, num, std::span<const float>, std::span<float>,
                                      std::span<float>, std::span<float>);
template void reference::adamw<double>(const reference_adamw&, num, std::span<const double>, std::span<double>,
                                       std::span<double>, std::span<double>);
template class reference_training<float>;
template class reference_training<double>;

}  // namespace shardplan::runtime
