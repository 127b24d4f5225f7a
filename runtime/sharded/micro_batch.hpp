// SPDX-License-Identifier: Apache-2.0
// A micro-batch on the device of one rank: what is known before any layer runs is there once, for all layers, passes
// and steps.
#ifndef SHARDPLAN_RUNTIME_SHARDED_MICRO_BATCH_HPP
#define SHARDPLAN_RUNTIME_SHARDED_MICRO_BATCH_HPP

#include "runtime/sharded/experts.hpp"
#include "runtime/sharded/local_tokens.hpp"
#include "runtime/sharded/sequence_places.hpp"

namespace shardplan::runtime {

/// Letters: s tokens of a row on this rank, b rows, n = s * b, k experts per token.
template <Layout L, class T, class D = cpu_device>
struct micro_batch {
  template <class What, class V>
  using there = sequence<What, L, buffer_on<D, V>>;

  std::optional<there<token_ids, num>> ids;    // (s, b), or
  std::optional<there<embeddings, T>> embeds;  // (s, b, H)
  there<targets, num> wanted;                  // (s, b); ignored_target everywhere without labels
  there<positions, num> at;                    // (s, b)
  buffer_on<D, char> real, counted;            // (n), see routed_tokens
  sequence_places<D> places;
  num_sequence<real_offsets, L> offsets;  // (s, b), on the host: results are put there
  std::vector<buffer_on<D, num>> forced;  // per MoE layer the experts (n, k) to choose; none: as routers say

  /// What the experts of a layer are told.
  routed_tokens<D> routed(const model_spec& m, num layer) const {
    if (!is_moe_layer(m, layer)) return {};
    if (forced.empty()) return {read_only(real), read_only(counted), {}};
    num moe_layer = 0;
    for (num before = 0; before < layer; ++before) moe_layer += is_moe_layer(m, before) ? 1 : 0;
    return {read_only(real), read_only(counted), read_only(forced[static_cast<std::size_t>(moe_layer)])};
  }
};

/// Takes to the device what context-parallel rank `r` holds.
template <class T, Layout L, Device D>
micro_batch<L, T, D> take_tokens(const D& on, local_tokens<L>&& tokens, num r) {
  const auto take_there = [&]<class What>(num_sequence<What, L>& from) {
    return sequence<What, L, buffer_on<D, num>>(from, from.width(), take(on, std::move(from.data())));
  };
  std::vector<char> real, counted;
  for (num at : tokens.real.data()) real.push_back(at >= 0);
  const std::vector<token_places>& mine = tokens.places[static_cast<std::size_t>(r)];
  for (std::size_t i = 0; i < real.size(); ++i) counted.push_back(mine[i % mine.size()].key[i / mine.size()]);
  micro_batch<L, T, D> out{{},
                           {},
                           take_there(tokens.wanted),
                           take_there(tokens.at),
                           take(on, std::move(real)),
                           take(on, std::move(counted)),
                           sequence_places<D>(std::move(tokens.places)),
                           std::move(tokens.real),
                           {}};
  if (tokens.ids) out.ids = take_there(*tokens.ids);
  if (tokens.embeds) {
    buffer<T> values;
    for (double x : tokens.embeds->data()) values.push_back(nearest<T>(x));
    out.embeds.emplace(*tokens.embeds, tokens.embeds->width(), take(on, std::move(values)));
  }
  return out;
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_MICRO_BATCH_HPP
