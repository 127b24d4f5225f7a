// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify/baseline.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/real.hpp"
#include "runtime/reference/training.hpp"

namespace shardplan::runtime {

template <class T>
struct baseline<T>::state {
  reference_model<T> model;
};

template <class T>
baseline<T>::baseline(const checkpoint& weights, bool in_bf16) {
  auto made = std::make_unique<state>(state{reference_model<T>(weights)});
  if (in_bf16)
    made->model.weights().for_each([](const parameter&, std::span<T> values) {
      for (T& x : values) x = static_cast<T>(widen(nearest<bf16>(static_cast<double>(x))));
    });
  state_ = std::move(made);
}
template <class T>
baseline<T>::~baseline() = default;

namespace {

reference_batch as_batch(const batch_rows& rows, std::vector<num> micro_batch_of_row) {
  reference_batch batch;
  batch.rows = rows.rows, batch.length = rows.length;
  batch.input_ids = rows.input_ids;
  batch.inputs_embeds = rows.inputs_embeds;
  batch.labels = rows.labels;
  batch.shift_labels = rows.shift_labels;
  batch.attention_mask = rows.attention_mask;
  batch.position_ids = rows.position_ids;
  batch.micro_batch_of_row = std::move(micro_batch_of_row);
  return batch;
}

template <class T>
std::map<std::string, std::vector<T>> by_name(const reference::parameter_set<T>& set) {
  std::map<std::string, std::vector<T>> out;
  set.for_each([&](const parameter& p, std::span<const T> values) {
    out[std::string(name_of(p).view())].assign(values.begin(), values.end());
  });
  return out;
}

template <class T>
std::map<std::string, std::vector<char>> steady_values(const reference::parameter_set<T>& gradients) {
  std::map<std::string, std::vector<char>> out;
  gradients.for_each([&](const parameter& p, std::span<const T> values) {
    double largest = 0;
    for (T g : values) largest = std::max(largest, std::abs(static_cast<double>(g)));
    std::vector<char>& steady = out[std::string(name_of(p).view())];
    for (T g : values) steady.push_back(std::abs(static_cast<double>(g)) >= steady_share * largest);
  });
  return out;
}

std::vector<layer_routing> routing_of(std::vector<layer_choices>&& choices) {
  std::vector<layer_routing> out;
  for (layer_choices& layer : choices) out.push_back({std::move(layer.experts), std::move(layer.margins)});
  return out;
}

template <class T>
void set_outputs(baseline_result<T>& out, reference_result<T>&& from) {
  out.rows = from.rows, out.length = from.length, out.vocab = from.vocab;
  out.logits = std::move(from.logits);
  out.token_loss = std::move(from.token_loss);
  out.loss = static_cast<double>(from.loss);
  out.balance_loss = static_cast<double>(from.balance_loss);
  out.num_items = from.num_items;
  out.routing = routing_of(std::move(from.choices));
}

}  // namespace

template <class T>
baseline_result<T> baseline<T>::compute(const batch_rows& rows, std::vector<num> micro_batch_of_row,
                                        const baseline_options& options) const {
  const reference_batch batch = as_batch(rows, std::move(micro_batch_of_row));
  baseline_result<T> out;
  out.has_balance_loss = state_->model.config().output_router_logits;
  const auto set_gradients = [&](reference_gradients<T>&& first) {
    if (options.gradients) out.gradients = by_name(first.gradients);
    out.gradient_norm = first.norm;
    set_outputs(out, std::move(first.result));
  };
  if (options.steps == 0) {
    if (options.gradients)
      set_gradients(state_->model.gradients(batch));
    else
      set_outputs(out, state_->model.forward(batch));
    if (options.parameters) out.parameters = by_name(state_->model.weights());
    return out;
  }
  const adamw_options& o = options.optimizer;
  reference_training<T> training(state_->model, {o.learning_rate, o.beta1, o.beta2, o.epsilon, o.weight_decay});
  for (num step = 0; step < options.steps; ++step) {
    reference_gradients<T> all = training.step(batch);
    out.step_losses.push_back(static_cast<double>(all.result.loss));
    if (step > 0) {
      out.later_routing.push_back(routing_of(std::move(all.result.choices)));
      continue;
    }
    out.steady = steady_values(all.gradients);
    set_gradients(std::move(all));
  }
  if (options.parameters) out.parameters = by_name(training.model().weights());
  return out;
}

std::vector<num> micro_batches_of_rows(const plan_spec& plan, num rows, num micro_batches) {
  const num of_shard = rows / num_data_shards(plan), of_micro_batch = of_shard / micro_batches;
  std::vector<num> out;
  for (num row = 0; row < rows; ++row) out.push_back(row % of_shard / of_micro_batch);
  return out;
}

template class baseline<float>;
template class baseline<double>;

}  // namespace shardplan::runtime
