// SPDX-License-Identifier: Apache-2.0
// Attention across context-parallel ranks. Every method is one sentence of the plan: U neighbours trade tokens for
// heads (all-to-all), then R ranks see each other's keys and values, by passing them round or by gathering them.
// The backward runs the same way home: traded heads are traded back, and the gradients of keys and values travel with
// them or are scattered.
// Letters: n = s * rows tokens of this rank, H and K its query and key/value heads (of this tp rank), D head_dim.
#ifndef SHARDPLAN_RUNTIME_SHARDED_ATTENTION_HPP
#define SHARDPLAN_RUNTIME_SHARDED_ATTENTION_HPP

#include <algorithm>
#include <shardplan/run_shape.hpp>
#include <span>
#include <vector>

#include "runtime/device/attention.hpp"
#include "runtime/sharded/rank_view.hpp"

namespace shardplan::runtime {

/// Tokens for heads: x (n, heads, D) of this rank becomes (U * n, heads / U, D), the tokens of all U ranks one after
/// another.
template <class T, Communicator C, class Group>
buffer<T> trade_tokens_for_heads(C& comm, const Group& group, std::span<const T> x, num heads, num head_dim) {
  const num ranks = group.size(), n = static_cast<num>(x.size()) / (heads * head_dim);
  const num share = num_traded_heads(heads, ranks);
  buffer<T> out(static_cast<std::size_t>(ranks * n * share * head_dim)), in(out.size());
  auto to = out.begin();
  for (num u = 0; u < ranks; ++u)
    for (num i = 0; i < n; ++i)
      to = std::copy_n(x.begin() + (i * heads + first_traded_head(heads, ranks, u)) * head_dim, share * head_dim, to);
  const std::vector<num> counts(static_cast<std::size_t>(ranks), n * share * head_dim);
  const std::span<const num> each(counts);
  comm.all_to_all(group, read_only(out), each, std::span<T>(in), each);
  return in;
}

/// Heads for tokens: from (U * n, heads / U, D) back to (n, heads, D). A head that went to several ranks is summed:
/// that is a gradient, which each of them owes a part of.
template <class T, Communicator C, class Group>
buffer<T> trade_heads_for_tokens(C& comm, const Group& group, std::span<const T> x, num heads, num head_dim) {
  const num ranks = group.size(), share = num_traded_heads(heads, ranks);
  const num n = static_cast<num>(x.size()) / (ranks * share * head_dim);
  buffer<T> in(x.size()), out(static_cast<std::size_t>(n * heads * head_dim), T{0});
  const std::vector<num> counts(static_cast<std::size_t>(ranks), n * share * head_dim);
  const std::span<const num> each(counts);
  comm.all_to_all(group, x, each, std::span<T>(in), each);
  const T* from = in.data();
  for (num u = 0; u < ranks; ++u)
    for (num i = 0; i < n; ++i) {
      T* to = out.data() + (i * heads + first_traded_head(heads, ranks, u)) * head_dim;
      for (num j = 0; j < share * head_dim; ++j) to[j] += *from++;
    }
  return out;
}

/// Where the tokens of some context-parallel ranks stand when held one rank after another.
inline std::vector<token_places> join(std::span<const std::vector<token_places>> places, num first, num last) {
  std::vector<token_places> all(places[0].size());
  for (num r = first; r < last; ++r)
    for (std::size_t row = 0; row < all.size(); ++row) {
      const token_places& p = places[static_cast<std::size_t>(r)][row];
      all[row].offset.insert(all[row].offset.end(), p.offset.begin(), p.offset.end());
      all[row].document.insert(all[row].document.end(), p.document.begin(), p.document.end());
      all[row].key.insert(all[row].key.end(), p.key.begin(), p.key.end());
    }
  return all;
}

/// What the attention of one layer is asked: q (n, H, D), k and v (n, K, D), rotated.
template <class T>
struct attention_inputs {
  buffer<T> q, k, v;
};

/// The plan's own methods. Another method is another class with these two members. `places` of every context-parallel
/// rank's tokens say who may attend to whom; `window` how far back (0: any distance).
template <class T>
class planned_attention {
 public:
  /// Result (n, H, D).
  template <Communicator C>
  buffer<T> forward(const rank_view<C>& view, attention_inputs<T> x, std::span<const std::vector<token_places>> places,
                    num window) {
    q_size_ = x.q.size(), k_size_ = x.k.size();
    const groups<C> g(view, q_size_, k_size_, places);
    held_ = std::move(x);
    if (g.n == 0) return {};  // every rank holds equally many tokens: none has any
    if (g.U > 1) {
      held_.q = trade_tokens_for_heads<T>(view.comm, g.ulysses, held_.q, g.heads, g.D);
      held_.k = trade_tokens_for_heads<T>(view.comm, g.ulysses, held_.k, g.kv_heads, g.D);
      held_.v = trade_tokens_for_heads<T>(view.comm, g.ulysses, held_.v, g.kv_heads, g.D);
    }
    const std::vector<token_places> mine = g.places_of(g.ring.index());
    online_attention<T> attention(held_.q, mine, g.my_heads, g.D, window);
    if (view.plan.method == cp_method::all_gather) {
      const buffer<T> k = gathered(view.comm, g.ring, held_.k), v = gathered(view.comm, g.ring, held_.v);
      attention.attend(k, v, join(places, 0, view.plan.cp), g.my_kv_heads);
    } else {
      buffer<T> k = held_.k, v = held_.v;
      for (num hop = 0; hop < g.R; ++hop) {
        attention.attend(k, v, g.places_of(g.from(hop)), g.my_kv_heads);
        if (hop + 1 < g.R) pass_on(view.comm, g.ring, k, v);  // R - 1 hops: no block comes home
      }
    }
    out_.resize(held_.q.size());
    log_sum_.resize(held_.q.size() / static_cast<std::size_t>(g.D));
    attention.finish(out_, log_sum_);
    return g.U > 1 ? trade_heads_for_tokens<T>(view.comm, g.ulysses, out_, g.heads, g.D) : out_;
  }

  /// From the gradient of the result (n, H, D) to those of the inputs.
  template <Communicator C>
  attention_inputs<T> backward(const rank_view<C>& view, buffer<T> dout,
                               std::span<const std::vector<token_places>> places, num window) {
    const groups<C> g(view, q_size_, k_size_, places);
    if (g.n == 0) return {};
    if (g.U > 1) dout = trade_tokens_for_heads<T>(view.comm, g.ulysses, dout, g.heads, g.D);
    const std::vector<token_places> mine = g.places_of(g.ring.index());
    attention_gradient<T> gradient(held_.q, out_, dout, log_sum_, mine, g.my_heads, g.D, window);
    buffer<T> dk(held_.k.size(), T{0}), dv(held_.v.size(), T{0});
    if (view.plan.method == cp_method::all_gather) {
      const buffer<T> k = gathered(view.comm, g.ring, held_.k), v = gathered(view.comm, g.ring, held_.v);
      buffer<T> all_dk(k.size(), T{0}), all_dv(v.size(), T{0});
      gradient.attend(k, v, join(places, 0, view.plan.cp), g.my_kv_heads, all_dk, all_dv);
      view.comm.reduce_scatter(g.ring, read_only(all_dk), std::span<T>(dk));
      view.comm.reduce_scatter(g.ring, read_only(all_dv), std::span<T>(dv));
    } else {
      buffer<T> k = held_.k, v = held_.v;
      for (num hop = 0; hop < g.R; ++hop) {
        gradient.attend(k, v, g.places_of(g.from(hop)), g.my_kv_heads, dk, dv);
        if (hop + 1 < g.R) pass_on(view.comm, g.ring, k, v);
        if (g.R > 1) pass_on(view.comm, g.ring, dk, dv);  // R hops: gradients come home
      }
    }
    attention_inputs<T> d{std::move(gradient.dqueries()), std::move(dk), std::move(dv)};
    if (g.U > 1) {
      d.q = trade_heads_for_tokens<T>(view.comm, g.ulysses, d.q, g.heads, g.D);
      d.k = trade_heads_for_tokens<T>(view.comm, g.ulysses, d.k, g.kv_heads, g.D);
      d.v = trade_heads_for_tokens<T>(view.comm, g.ulysses, d.v, g.kv_heads, g.D);
    }
    return d;
  }

 private:
  template <Communicator C>
  struct groups {
    typename C::group_type ulysses, ring;
    std::span<const std::vector<token_places>> places;
    num U, R, D, n, heads, kv_heads, my_heads, my_kv_heads;

    groups(const rank_view<C>& view, std::size_t q_size, std::size_t k_size,
           std::span<const std::vector<token_places>> p)
        : ulysses(view.group(axis::cp_ulysses)),
          ring(view.group(axis::cp_ring)),
          places(p),
          U(ulysses.size()),
          R(ring.size()),
          D(view.model().head_dim),
          n(static_cast<num>(p[0][0].offset.size() * p[0].size())),
          heads(n == 0 ? 0 : static_cast<num>(q_size) / (n * D)),
          kv_heads(n == 0 ? 0 : static_cast<num>(k_size) / (n * D)),
          my_heads(num_traded_heads(heads, U)),
          my_kv_heads(num_traded_heads(kv_heads, U)) {}
    /// Ring member r's tokens are those of the U neighbours at r: Ulysses is the faster axis.
    std::vector<token_places> places_of(num r) const { return join(places, r * U, (r + 1) * U); }
    /// Whose keys are here after so many hops.
    num from(num hop) const { return (ring.index() - hop + R) % R; }
  };

  template <Communicator C, class Group>
  static buffer<T> gathered(C& comm, const Group& group, const buffer<T>& mine) {
    buffer<T> all(mine.size() * static_cast<std::size_t>(group.size()));
    comm.all_gather(group, read_only(mine), std::span<T>(all));
    return all;
  }

  /// Gives a and b to the next of the ring and takes those of the one before.
  template <Communicator C, class Group>
  static void pass_on(C& comm, const Group& ring, buffer<T>& a, buffer<T>& b) {
    const num R = ring.size(), next = (ring.index() + 1) % R, previous = (ring.index() - 1 + R) % R;
    comm.send(ring, read_only(a), next);
    comm.send(ring, read_only(b), next);
    comm.receive(ring, std::span<T>(a), previous);
    comm.receive(ring, std::span<T>(b), previous);
  }

  std::size_t q_size_ = 0, k_size_ = 0;  // of the inputs, before any trade
  attention_inputs<T> held_;             // as this rank attends: after trading tokens for heads
  buffer<T> out_, log_sum_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_ATTENTION_HPP
