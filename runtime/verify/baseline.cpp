// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify/baseline.hpp"

#include "runtime/reference/reference.hpp"

namespace shardplan::runtime {

template <class T>
struct baseline<T>::state {
  reference_model<T> model;
};

template <class T>
baseline<T>::baseline(const checkpoint& weights) : state_(new state{reference_model<T>(weights)}) {}
template <class T>
baseline<T>::~baseline() = default;

template <class T>
baseline_result<T> baseline<T>::forward(const batch_rows& rows, std::vector<num> micro_batch_of_row) const {
  reference_batch batch;
  batch.rows = rows.rows, batch.length = rows.length;
  batch.input_ids = rows.input_ids;
  batch.inputs_embeds = rows.inputs_embeds;
  batch.labels = rows.labels;
  batch.shift_labels = rows.shift_labels;
  batch.attention_mask = rows.attention_mask;
  batch.position_ids = rows.position_ids;
  batch.micro_batch_of_row = std::move(micro_batch_of_row);
  auto result = state_->model.forward(batch);

  baseline_result<T> out;
  out.rows = result.rows, out.length = result.length, out.vocab = result.vocab;
  out.logits = std::move(result.logits);
  out.token_loss = std::move(result.token_loss);
  out.loss = static_cast<double>(result.loss);
  out.num_items = result.num_items;
  for (auto& layer : result.choices) out.routing.push_back({std::move(layer.experts), std::move(layer.margins)});
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
