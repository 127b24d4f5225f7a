// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify/routing_counts.hpp"

#include <algorithm>

namespace shardplan::runtime {

num padded_row(const plan_spec& plan, const batch_rows& rows) {
  num longest = 0;
  for (const std::vector<num>& documents : find_documents(rows))
    longest = std::max(longest, padded_length(documents, needed_multiple(plan)));
  return longest;
}

routing_counts::routing_counts(const model_spec& model, const plan_spec& plan, const batch_rows& rows,
                               num micro_batches, std::span<const std::span<const num>> choices)
    : world_(world_size(plan)), experts_(model.num_experts) {
  const num shard_rows = rows.rows / num_data_shards(plan), k = model.num_experts_per_tok;
  shape_.padded_length = padded_row(plan, rows);
  shape_.micro_batches = micro_batches;
  shape_.micro_rows = shard_rows / micro_batches;
  shape_.embeds = rows.input_ids.empty();
  if (choices.empty()) return;  // no layer routes, and the plan need not be able to: experts are not cut
  counts_.assign(choices.size() * static_cast<std::size_t>(micro_batches * world_ * experts_), 0);

  // Where each token of the caller's rows stands once padded, per row: -1 is padding.
  const std::vector<std::vector<num>> documents = find_documents(rows);
  std::vector<std::vector<num>> real(documents.size());
  for (std::size_t row = 0; row < documents.size(); ++row) {
    real[row].assign(static_cast<std::size_t>(shape_.padded_length), -1);
    for (num i = 0; i < rows.length; ++i)
      real[row][static_cast<std::size_t>(to_padded(real_offset(i), documents[row], needed_multiple(plan)).value)] = i;
  }

  const mesh dense = dense_mesh(plan);
  const num length = local_length(plan.layout, shape_.padded_length, plan.cp);
  for (num rank = 0; rank < world_; ++rank) {
    const dim_range mine = routed_rows(plan, length * shape_.micro_rows, coordinate(dense, rank, axis::tp));
    for (num m = 0; m < micro_batches; ++m)
      for (num r = 0; r < shape_.micro_rows; ++r) {
        const auto row = static_cast<std::size_t>(data_index(plan, rank) * shard_rows + m * shape_.micro_rows + r);
        num local = 0;
        for_each_range(
            plan.layout, documents[row], shape_.padded_length, plan.cp, coordinate(dense, rank, axis::cp),
            [&](token_range range) {
              for (num at = range.begin; at < range.end; ++at, ++local) {
                const num place = local * shape_.micro_rows + r, token = real[row][static_cast<std::size_t>(at)];
                if (token < 0 || place < mine.begin || place >= mine.end) continue;
                for (std::size_t layer = 0; layer < choices.size(); ++layer)
                  for (num j = 0; j < k; ++j)
                    ++counts_[index(
                        static_cast<num>(layer), m, rank,
                        choices[layer][(row * static_cast<std::size_t>(rows.length) + static_cast<std::size_t>(token)) *
                                           static_cast<std::size_t>(k) +
                                       static_cast<std::size_t>(j)])];
              }
            });
      }
  }
}

}  // namespace shardplan::runtime
