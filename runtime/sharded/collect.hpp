// SPDX-License-Identifier: Apache-2.0
// From the parts of all ranks to results in the caller's order, on rank 0.
#ifndef SHARDPLAN_RUNTIME_SHARDED_COLLECT_HPP
#define SHARDPLAN_RUNTIME_SHARDED_COLLECT_HPP

#include "runtime/sharded/executor.hpp"

namespace shardplan::runtime {

/// The replayed choices of the tokens one rank holds: (MoE layer, n, k). `first_row`: global number of its first row.
template <Layout L, class T>
std::vector<std::vector<num>> cut_choices(const expert_choices& all, const local_tokens<L, T>& tokens, num first_row,
                                          num moe_layers) {
  const num k = all.per_token;
  std::vector<std::vector<num>> out;
  for (num layer = 0; layer < moe_layers; ++layer) {
    std::vector<num> here(static_cast<std::size_t>(tokens.real.tokens() * k), -1);
    for (num i = 0; i < tokens.real.length(); ++i)
      for (num row = 0; row < tokens.real.rows(); ++row)
        if (const num at = tokens.real.at(i, row); at >= 0)
          std::copy_n(all.experts.begin() + ((layer * all.rows + first_row + row) * all.length + at) * k, k,
                      here.begin() + (i * tokens.real.rows() + row) * k);
    out.push_back(std::move(here));
  }
  return out;
}

/// Sums the loss over everyone who holds different tokens, and gathers logits and token losses to rank 0. `rows` are
/// this rank's; every data shard has as many.
template <Layout L, class T, Communicator C>
gathered_result<T> collect(const rank_view<C>& view, const std::vector<local_outputs<L, T>>& outputs,
                           const batch_rows& rows, num micro_batches, num padded) {
  gathered_result<T> result;
  const num last_owner = stage_owner(view.plan, num_stages(view.plan) - 1);
  const auto pp = view.group(axis::pp);

  // Each token's loss is on every tp rank of the last stage, so the sum is over who differs in tokens.
  double sums[2] = {0, 0};  // of losses, of real targets
  for (const local_outputs<L, T>& o : outputs)
    for (std::size_t i = 0; i < o.wanted.data().size(); ++i)
      if (o.wanted.data()[i] != ignored_target) sums[0] += static_cast<double>(o.token_loss.data()[i]), sums[1] += 1;
  view.comm.label(phase::loss, parameter::no_layer);
  if (pp.index() == last_owner)
    view.comm.all_reduce(view.group(axis_set(axis::dp_replicate) | axis::fsdp | axis::cp), std::span<double>(sums),
                         reduce_op::sum);
  view.comm.broadcast(pp, std::span<double>(sums), last_owner);
  result.num_items = static_cast<num>(sums[1]);
  result.loss = sums[1] > 0 ? sums[0] / sums[1] : 0;

  // Who holds what follows from the plan: the last stage holds tokens, tp ranks their part of the vocabulary.
  view.comm.label(phase::collect, parameter::no_layer);
  const auto world = view.group(axis_set(axis::pp) | axis::dp_replicate | axis::fsdp | axis::cp | axis::tp);
  const num micro_rows = rows.rows / micro_batches, length = local_length(L::kind, padded, view.plan.cp);
  const num n = micro_batches * length * micro_rows;
  const parameter head = make_parameter(view.model(), parameter_kind::embed_tokens);
  const auto vocabulary = [&](num rank) { return part_in_use(view.model(), view.plan, head, rank).dims[0].ranges[0]; };
  const auto place = [&](num rank, axis a) { return group_of(view.plan, view.model(), rank, a).index; };
  std::vector<num> token_counts, logit_counts;
  for (num rank = 0; rank < world.size(); ++rank) {
    const bool last = place(rank, axis::pp) == last_owner;
    token_counts.push_back(last && place(rank, axis::tp) == 0 ? n : 0);
    logit_counts.push_back(last ? n * vocabulary(rank).size() : 0);
  }
  const auto gathered = [&]<class V>(std::vector<V> mine, const std::vector<num>& counts) {
    mine.resize(static_cast<std::size_t>(
        counts[static_cast<std::size_t>(view.rank())]));  // none where another tp rank sends it
    num all = 0;
    if (view.rank() == 0)
      for (num c : counts) all += c;
    std::vector<V> whole(static_cast<std::size_t>(all));
    view.comm.gather(world, read_only(mine), std::span<V>(whole), std::span<const num>(counts), 0);
    return whole;
  };
  const auto joined = [&]<class V>(V, auto part) {
    std::vector<V> all;
    for (const local_outputs<L, T>& o : outputs) all.insert(all.end(), part(o).begin(), part(o).end());
    return all;
  };
  const std::vector<num> real = gathered(joined(
                                             num{}, [](const auto& o) -> auto& { return o.real.data(); }),
                                         token_counts);
  const std::vector<T> loss = gathered(joined(
                                           T{}, [](const auto& o) -> auto& { return o.token_loss.data(); }),
                                       token_counts);
  const std::vector<T> scores = gathered(joined(
                                             T{}, [](const auto& o) -> auto& { return o.scores.data(); }),
                                         logit_counts);
  if (view.rank() != 0) return result;

  result.rows = rows.rows * num_data_shards(view.plan);
  result.length = rows.length;
  result.vocab = view.model().vocab_size;
  const auto tokens = static_cast<std::size_t>(result.rows * result.length);
  result.token_loss.assign(tokens, T{0});
  result.logits.assign(tokens * static_cast<std::size_t>(result.vocab), T{0});
  num tokens_at = 0, scores_at = 0, real_at = 0;
  for (num rank = 0; rank < world.size(); ++rank) {
    if (place(rank, axis::pp) != last_owner) continue;
    const num first_row = data_index(view.plan, rank) * rows.rows;
    const dim_range columns = vocabulary(rank);
    if (place(rank, axis::tp) == 0) real_at = tokens_at;  // its tp peers, which follow, hold the same tokens
    for (num t = 0; t < n; ++t) {
      const num micro = t / (length * micro_rows), row = first_row + micro * micro_rows + t % micro_rows;
      const num at = real[static_cast<std::size_t>(real_at + t)];
      if (at < 0) continue;  // padding ends here
      if (place(rank, axis::tp) == 0)
        result.token_loss[static_cast<std::size_t>(row * result.length + at)] =
            loss[static_cast<std::size_t>(tokens_at + t)];
      std::copy_n(scores.begin() + scores_at + t * columns.size(), columns.size(),
                  result.logits.begin() + (row * result.length + at) * result.vocab + columns.begin);
    }
    if (place(rank, axis::tp) == 0) tokens_at += n;
    scores_at += n * columns.size();
  }
  return result;
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_COLLECT_HPP
