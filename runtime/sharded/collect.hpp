// SPDX-License-Identifier: Apache-2.0
// From the parts of all ranks to results in the caller's order, on rank 0.
#ifndef SHARDPLAN_RUNTIME_SHARDED_COLLECT_HPP
#define SHARDPLAN_RUNTIME_SHARDED_COLLECT_HPP

#include <algorithm>
#include <string>

#include "runtime/sharded/executor.hpp"

namespace shardplan::runtime {

/// The replayed choices of the tokens one rank holds, as `offsets` says: (MoE layer, n, k). `first_row`: global number
/// of its first row.
template <Layout L>
std::vector<std::vector<num>> cut_choices(const expert_choices& all, const num_sequence<real_offsets, L>& offsets,
                                          num first_row, num moe_layers) {
  const num k = all.per_token;
  std::vector<std::vector<num>> out;
  for (num layer = 0; layer < moe_layers; ++layer) {
    std::vector<num> here(static_cast<std::size_t>(offsets.tokens() * k), -1);
    for (num i = 0; i < offsets.length(); ++i)
      for (num row = 0; row < offsets.rows(); ++row)
        if (const num at = offsets.at(i, row); at >= 0)
          std::copy_n(all.experts.begin() + ((layer * all.rows + first_row + row) * all.length + at) * k, k,
                      here.begin() + (i * offsets.rows() + row) * k);
    out.push_back(std::move(here));
  }
  return out;
}

/// On rank 0 the parts of all ranks, of `counts` values, one after another; nothing elsewhere. On the host.
template <class V, Communicator C, Device D>
std::vector<V> gather_to_first(const rank_view<C, D>& view, const std::vector<V>& mine,
                               const std::vector<num>& counts) {
  num all = 0;
  if (view.rank() == 0)
    for (num c : counts) all += c;
  std::vector<V> whole(static_cast<std::size_t>(all));
  const auto gather = [&](std::span<const V> from, std::span<V> to) {
    view.comm.gather(whole_world(view), from, to, std::span<const num>(counts), 0);
  };
  if constexpr (is_real<V>) {  // through the memory that engines take them from
    const auto there = lend<V>(view.on, read_only(mine));
    through_engine(view.on, std::span<V>(whole), [&](std::span<V> to) { gather(there, to); });
  } else {
    gather(mine, whole);
  }
  return whole;
}

struct run_losses {
  double token_sum = 0;  ///< over all tokens of the global batch
  double balance = 0;    ///< mean over micro-batches of the load-balancing loss
};

/// Sums the loss over everyone who holds different tokens; every rank gets it.
template <Layout L, class T, Communicator C, Device D>
run_losses sum_of_losses(const rank_view<C, D>& view, const std::vector<local_outputs<L, T, D>>& outputs) {
  double sums[2] = {0, 0};
  for (const local_outputs<L, T, D>& o : outputs) {
    sums[0] = add_up<accumulated<T>>(view.on, o.token_loss.data(), sums[0]);
    sums[1] += static_cast<double>(o.balance_loss) / static_cast<double>(outputs.size());
  }
  const num last = stage_owner(view.plan, num_stages(view.plan) - 1);
  const auto pp = view.group(axis::pp);
  view.comm.label(phase::loss, parameter::no_layer);
  // Each token's loss is on every tp rank of the last stage, so the sum is over who differs in tokens. Load-balancing
  // losses are of the whole micro-batch already.
  through_engine(view.on, std::span<double>(sums), [&](std::span<double> there) {
    if (pp.index() == last)
      view.comm.all_reduce(view.group(axis_set(axis::dp_replicate) | axis::fsdp | axis::cp), there.first(1),
                           reduce_op::sum);
    view.comm.broadcast(pp, there, last);
  });
  return {sums[0], sums[1]};
}

/// Puts logits and token losses of all ranks where they belong, on rank 0. `rows` are this rank's; every data shard has
/// as many, in `batch.size()` micro-batches.
template <Layout L, class T, Communicator C, Device D>
void collect_tokens(const rank_view<C, D>& view, const std::vector<local_outputs<L, T, D>>& outputs,
                    const std::vector<micro_batch<L, T, D>>& batch, const batch_rows& rows,
                    gathered_result<accumulated<T>>& result) {
  using A = accumulated<T>;
  // Who holds what follows from the plan: the last stage holds tokens, tp ranks their part of the vocabulary.
  view.comm.label(phase::collect, parameter::no_layer);
  const auto place = [&](num rank, axis a) { return group_of(view.plan, view.model(), rank, a).index; };
  const num last = stage_owner(view.plan, num_stages(view.plan) - 1);
  const num length = batch[0].offsets.length(), micro_rows = batch[0].offsets.rows();
  const num n = static_cast<num>(batch.size()) * length * micro_rows;
  const parameter head = make_parameter(view.model(), head_weight(view.model()));
  const auto vocabulary = [&](num rank) { return part_in_use(view.model(), view.plan, head, rank).dims[0].ranges[0]; };
  std::vector<num> token_counts, logit_counts;
  for (num rank = 0; rank < view.comm.world_size(); ++rank) {
    const bool holds = place(rank, axis::pp) == last;
    token_counts.push_back(holds && place(rank, axis::tp) == 0 ? n : 0);
    // A head that is whole on every tp rank is one head: the first sends for all.
    const bool sends = holds && (is_cut(view.plan, head.kind) || place(rank, axis::tp) == 0);
    logit_counts.push_back(sends ? n * vocabulary(rank).size() : 0);
  }
  std::vector<num> my_real;
  std::vector<A> my_losses;
  std::vector<T> my_scores;
  const auto append = [&](auto& to, const auto& values) {
    const auto& host = to_host(view.on, values);
    to.insert(to.end(), host.begin(), host.end());
  };
  for (const local_outputs<L, T, D>& o : outputs) {
    const std::vector<num>& real = batch[static_cast<std::size_t>(o.number)].offsets.data();
    if (logit_counts[static_cast<std::size_t>(view.rank())] > 0) append(my_scores, o.scores.data());
    if (view.at(axis::tp) != 0) continue;  // its tp peers hold the same tokens: one of them sends these
    my_real.insert(my_real.end(), real.begin(), real.end());
    append(my_losses, o.token_loss.data());
  }
  const std::vector<num> real = gather_to_first(view, my_real, token_counts);
  const std::vector<A> losses = gather_to_first(view, my_losses, token_counts);
  const std::vector<T> scores = gather_to_first(view, my_scores, logit_counts);
  if (view.rank() != 0) return;

  result.rows = rows.rows * num_data_shards(view.plan);
  result.length = rows.length;
  result.vocab = view.model().vocab_size;
  const auto tokens = static_cast<std::size_t>(result.rows * result.length);
  result.token_loss.assign(tokens, A{0});
  result.logits.assign(tokens * static_cast<std::size_t>(result.vocab), A{0});
  num next_token = 0, next_score = 0, first_token = 0;
  for (num rank = 0; rank < view.comm.world_size(); ++rank) {
    if (place(rank, axis::pp) != last) continue;
    if (place(rank, axis::tp) == 0) first_token = next_token, next_token += n;  // its tp peers follow
    if (logit_counts[static_cast<std::size_t>(rank)] == 0) continue;
    const num first_row = data_index(view.plan, rank) * rows.rows;
    const dim_range columns = vocabulary(rank);
    for (num t = 0; t < n; ++t) {
      const num at = real[static_cast<std::size_t>(first_token + t)];
      if (at < 0) continue;  // padding ends here
      const num row = first_row + t / (length * micro_rows) * micro_rows + t % micro_rows;
      const auto to = static_cast<std::size_t>(row * result.length + at);
      result.token_loss[to] = losses[static_cast<std::size_t>(first_token + t)];
      const auto from = scores.begin() + next_score + t * columns.size();
      std::transform(from, from + columns.size(),
                     result.logits.begin() + static_cast<num>(to) * result.vocab + columns.begin,
                     [](T x) { return widen(x); });
    }
    next_score += n * columns.size();
  }
}

/// Puts the shards of all ranks where they belong in whole tensors (gradients, or parameters), on rank 0. One of each
/// set of equal copies is sent.
template <class T, Communicator C, Device D>
void collect_shards(const rank_view<C, D>& view, const gradient_shards<T, D>& shards,
                    std::map<std::string, std::vector<accumulated<T>>>& tensors) {
  view.comm.label(phase::collect, parameter::no_layer);
  const auto for_each_shard = [&](num rank, auto&& f) {
    for_each_parameter(view.model(), [&](const parameter& p) {
      if (!is_first_copy(view.model(), view.plan, p, rank)) return;
      if (const region r = owned(view.model(), view.plan, p, state_kind::optimizer, rank); r.size() > 0) f(p, r);
    });
  };
  std::vector<num> counts;
  for (num rank = 0; rank < view.comm.world_size(); ++rank) {
    counts.push_back(0);
    for_each_shard(rank, [&](const parameter&, const region& r) { counts.back() += r.size(); });
  }
  std::vector<T> mine;
  for_each_shard(view.rank(), [&](const parameter& p, const region&) {
    const auto& values = to_host(view.on, shards.at({p.layer, p.kind}));
    mine.insert(mine.end(), values.begin(), values.end());
  });
  const std::vector<T> all = gather_to_first(view, mine, counts);
  if (view.rank() != 0) return;

  auto from = all.begin();
  for (num rank = 0; rank < view.comm.world_size(); ++rank)
    for_each_shard(rank, [&](const parameter& p, const region& r) {
      auto& whole = tensors[std::string(name_of(p).view())];
      whole.resize(static_cast<std::size_t>(p.size()));
      const auto extent = [&](std::size_t d) { return d < p.shape.size() ? p.shape[d] : 1; };
      const auto part = [&](std::size_t d) { return d < r.dims.size() ? r.dims[d] : dim_part{0, 1}; };
      for (num i = 0; i < part(0).size(); ++i)
        for (num j = 0; j < part(1).size(); ++j)
          for (num k = 0; k < part(2).size(); ++k)
            whole[static_cast<std::size_t>((part(0).at(i) * extent(1) + part(1).at(j)) * extent(2) + part(2).at(k))] =
                widen(*from++);
    });
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_COLLECT_HPP
