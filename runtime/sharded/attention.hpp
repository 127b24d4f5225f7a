// SPDX-License-Identifier: Apache-2.0
// Attention across context-parallel ranks. Every method is one sentence of the plan: U neighbours trade tokens for
// heads (all-to-all), then R ranks see each other's keys and values, by passing them round or by gathering them.
// Letters: n = s * rows tokens of this rank, H and K its query and key/value heads (of this tp rank), D head_dim.
#ifndef SHARDPLAN_RUNTIME_SHARDED_ATTENTION_HPP
#define SHARDPLAN_RUNTIME_SHARDED_ATTENTION_HPP

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "runtime/device/attention.hpp"
#include "runtime/sharded/rank_view.hpp"

namespace shardplan::runtime {

/// Tokens for heads: x (n, heads, D) of this rank becomes (U * n, heads / U, D), the tokens of all U ranks one after
/// another. With fewer heads than ranks each rank gets the one head that its queries read.
template <class T, Communicator C, class Group>
std::vector<T> trade_tokens_for_heads(C& comm, const Group& group, std::span<const T> x, num heads, num head_dim) {
  const num ranks = group.size(), n = static_cast<num>(x.size()) / (heads * head_dim);
  const num share = std::max<num>(1, heads / ranks);
  std::vector<T> out(static_cast<std::size_t>(ranks * n * share * head_dim)), in(out.size());
  auto to = out.begin();
  for (num u = 0; u < ranks; ++u)
    for (num i = 0; i < n; ++i)
      to = std::copy_n(x.begin() + (i * heads + u * heads / ranks) * head_dim, share * head_dim, to);
  const std::vector<num> counts(static_cast<std::size_t>(ranks), n * share * head_dim);
  const std::span<const num> each(counts);
  comm.all_to_all(group, read_only(out), each, std::span<T>(in), each);
  return in;
}

/// Heads for tokens: the inverse, for x (U * n, heads / U, D).
template <class T, Communicator C, class Group>
std::vector<T> trade_heads_for_tokens(C& comm, const Group& group, std::span<const T> x, num heads, num head_dim) {
  const num ranks = group.size(), share = heads / ranks, n = static_cast<num>(x.size()) / (heads * head_dim);
  std::vector<T> in(x.size()), out(x.size());
  const std::vector<num> counts(static_cast<std::size_t>(ranks), n * share * head_dim);
  const std::span<const num> each(counts);
  comm.all_to_all(group, x, each, std::span<T>(in), each);
  auto from = in.begin();
  for (num u = 0; u < ranks; ++u)
    for (num i = 0; i < n; ++i, from += share * head_dim)
      std::copy_n(from, share * head_dim, out.begin() + (i * heads + u * share) * head_dim);
  return out;
}

/// Where the tokens of some context-parallel ranks stand when held one rank after another.
inline std::vector<token_places> join(std::span<const std::vector<token_places>> places, std::span<const num> ranks) {
  std::vector<token_places> all(places[0].size());
  for (num r : ranks)
    for (std::size_t row = 0; row < all.size(); ++row) {
      const token_places& p = places[static_cast<std::size_t>(r)][row];
      all[row].offset.insert(all[row].offset.end(), p.offset.begin(), p.offset.end());
      all[row].document.insert(all[row].document.end(), p.document.begin(), p.document.end());
      all[row].key.insert(all[row].key.end(), p.key.begin(), p.key.end());
    }
  return all;
}

/// q (n, H, D), k and v (n, K, D), rotated; `places` of every context-parallel rank's tokens. Result (n, H, D).
template <class T, Communicator C>
std::vector<T> attend(const rank_view<C>& view, std::vector<T> q, std::vector<T> k, std::vector<T> v,
                      std::span<const std::vector<token_places>> places) {
  const num D = view.model().head_dim, rows = static_cast<num>(places[0].size());
  const num n = static_cast<num>(places[0].empty() ? 0 : places[0][0].offset.size()) * rows;
  if (n == 0) return q;  // every rank holds equally many tokens: none has any
  const num heads = static_cast<num>(q.size()) / (n * D), kv_heads = static_cast<num>(k.size()) / (n * D);

  const auto ulysses = view.group(axis::cp_ulysses), ring = view.group(axis::cp_ring);
  const num U = ulysses.size(), R = ring.size();
  if (U > 1) {
    q = trade_tokens_for_heads<T>(view.comm, ulysses, q, heads, D);
    k = trade_tokens_for_heads<T>(view.comm, ulysses, k, kv_heads, D);
    v = trade_tokens_for_heads<T>(view.comm, ulysses, v, kv_heads, D);
  }
  const num my_heads = heads / U, my_kv_heads = std::max<num>(1, kv_heads / U);

  // Ring member r's tokens are those of the U neighbours at r: Ulysses is the faster axis.
  const auto places_of = [&](num first_ring, num last_ring) {
    std::vector<num> ranks;
    for (num r = first_ring * U; r < last_ring * U; ++r) ranks.push_back(r);
    return join(places, ranks);
  };
  const std::vector<token_places> mine = places_of(ring.index(), ring.index() + 1);
  online_attention<T> attention(q, mine, my_heads, D, view.model().sliding_window);
  if (view.plan.method == cp_method::all_gather) {
    std::vector<T> all_k(k.size() * static_cast<std::size_t>(R)), all_v(all_k.size());
    view.comm.all_gather(ring, read_only(k), std::span<T>(all_k));
    view.comm.all_gather(ring, read_only(v), std::span<T>(all_v));
    attention.attend(all_k, all_v, places_of(0, R), my_kv_heads);
  } else {
    std::vector<T> next_k(k.size()), next_v(v.size());
    for (num hop = 0; hop < R; ++hop) {
      const num from = (ring.index() - hop + R) % R;  // whose keys are here now
      attention.attend(k, v, places_of(from, from + 1), my_kv_heads);
      if (hop + 1 == R) break;  // R - 1 hops, and no block comes home
      const num next = (ring.index() + 1) % R, previous = (ring.index() - 1 + R) % R;
      view.comm.send(ring, read_only(k), next);
      view.comm.send(ring, read_only(v), next);
      view.comm.receive(ring, std::span<T>(next_k), previous);
      view.comm.receive(ring, std::span<T>(next_v), previous);
      k.swap(next_k);
      v.swap(next_v);
    }
  }
  std::vector<T> out(q.size());
  attention.finish(out);
  return U > 1 ? trade_heads_for_tokens<T>(view.comm, ulysses, out, heads, D) : out;
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_ATTENTION_HPP
