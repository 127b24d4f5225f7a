// SPDX-License-Identifier: Apache-2.0
// Attention across context-parallel ranks. Every method is one sentence of the plan: U neighbours trade tokens for
// heads (all-to-all), then R ranks see each other's keys and values, by passing them round or by gathering them.
// The backward runs the same way home: traded heads are traded back, and the gradients of keys and values travel with
// them or are scattered.
// Letters: n = s * rows tokens of this rank, H and K its query and key/value heads (of this tp rank), D head_dim.
#ifndef SHARDPLAN_RUNTIME_SHARDED_ATTENTION_HPP
#define SHARDPLAN_RUNTIME_SHARDED_ATTENTION_HPP

#include <algorithm>
#include <array>
#include <shardplan/run_shape.hpp>
#include <span>
#include <utility>  // exchange
#include <vector>

#include "runtime/sharded/sequence_places.hpp"

namespace shardplan::runtime {

/// Tokens for heads: x (n, heads, D) of this rank becomes (U * n, heads / U, D), the tokens of all U ranks one after
/// another.
template <class T, Communicator C, Device D, class Group>
buffer_on<D, T> trade_tokens_for_heads(const rank_view<C, D>& view, const Group& group, std::span<const T> x, num heads,
                                       num head_dim) {
  const num ranks = group.size(), n = static_cast<num>(x.size()) / (heads * head_dim);
  const num share = num_traded_heads(heads, ranks);
  auto out = allocate<T>(view.on, static_cast<std::size_t>(ranks * n * share * head_dim)),
       in = allocate<T>(view.on, out.size());
  pack_heads<T>(view.on, x, heads, head_dim, ranks, out);
  const std::vector<num> counts(static_cast<std::size_t>(ranks), n * share * head_dim);
  const std::span<const num> each(counts);
  view.comm.all_to_all(group, read_only(out), each, std::span<T>(in), each);
  return in;
}

/// Heads for tokens: from (U * n, heads / U, D) back to (n, heads, D). A head that went to several ranks is summed:
/// that is a gradient, which each of them owes a part of.
template <class T, Communicator C, Device D, class Group>
buffer_on<D, T> trade_heads_for_tokens(const rank_view<C, D>& view, const Group& group, std::span<const T> x, num heads,
                                       num head_dim) {
  const num ranks = group.size(), share = num_traded_heads(heads, ranks);
  const num n = static_cast<num>(x.size()) / (ranks * share * head_dim);
  auto in = allocate<T>(view.on, x.size()), out = allocate<T>(view.on, static_cast<std::size_t>(n * heads * head_dim));
  const std::vector<num> counts(static_cast<std::size_t>(ranks), n * share * head_dim);
  const std::span<const num> each(counts);
  view.comm.all_to_all(group, x, each, std::span<T>(in), each);
  sum_heads<T>(view.on, in, heads, head_dim, ranks, out);
  return out;
}

/// What the attention of one layer is asked: q (n, H, D), k and v (n, K, D), rotated.
template <class T, class D = cpu_device>
struct attention_inputs {
  buffer_on<D, T> q, k, v;
};

/// The plan's own methods. Another method is another class with these two members. `places` of every context-parallel
/// rank's tokens say who may attend to whom, and convert to the host's vectors by rank and row; `window` how far back
/// (0: any distance).
template <class T, class D = cpu_device>
class planned_attention {
 public:
  /// Result (n, H, D).
  template <Communicator C>
  buffer_on<D, T> forward(const rank_view<C, D>& view, attention_inputs<T, D> x, const sequence_places<D>& places,
                          num window) {
    q_size_ = x.q.size(), k_size_ = x.k.size();
    const groups<C> g(view, q_size_, k_size_, places);
    held_ = std::move(x);
    if (g.n == 0) return {};  // every rank holds equally many tokens: none has any
    if (g.U > 1) {
      held_.q = trade_tokens_for_heads<T>(view, g.ulysses, held_.q, g.heads, g.head_dim);
      held_.k = trade_tokens_for_heads<T>(view, g.ulysses, held_.k, g.kv_heads, g.head_dim);
      held_.v = trade_tokens_for_heads<T>(view, g.ulysses, held_.v, g.kv_heads, g.head_dim);
    }
    const typename D::places& mine = g.places_of(g.ring.index());
    typename D::template online_attention<T> attention(view.on, held_.q, mine, g.my_heads, g.head_dim, window);
    if (view.plan.method == cp_method::all_gather) {
      const auto k = gathered(view, g.ring, held_.k), v = gathered(view, g.ring, held_.v);
      attention.attend(k, v, places.of_ranks(view.on, 0, view.plan.cp), g.my_kv_heads);
    } else {
      travelling_pair<C> keys(view, g.ring, held_.k, held_.v);
      for (num hop = 0; hop < g.R; ++hop) {
        if (hop + 1 < g.R) keys.begin_hop();  // R - 1 hops: no block comes home
        attention.attend(keys.first(), keys.second(), g.places_of(g.from(hop)), g.my_kv_heads);
        keys.finish_hop();
      }
    }
    out_ = allocate<T>(view.on, held_.q.size());
    log_sum_ = allocate<accumulated<T>>(view.on, held_.q.size() / static_cast<std::size_t>(g.head_dim));
    attention.finish(out_, log_sum_);
    return g.U > 1 ? trade_heads_for_tokens<T>(view, g.ulysses, out_, g.heads, g.head_dim) : copied<T>(view.on, out_);
  }

  /// From the gradient of the result (n, H, D) to those of the inputs.
  template <Communicator C>
  attention_inputs<T, D> backward(const rank_view<C, D>& view, buffer_on<D, T> dout, const sequence_places<D>& places,
                                  num window) {
    const groups<C> g(view, q_size_, k_size_, places);
    if (g.n == 0) return {};
    if (g.U > 1) dout = trade_tokens_for_heads<T>(view, g.ulysses, dout, g.heads, g.head_dim);
    const typename D::places& mine = g.places_of(g.ring.index());
    typename D::template attention_gradient<T> gradient(view.on, held_.q, out_, dout, log_sum_, mine, g.my_heads,
                                                        g.head_dim, window);
    auto dk = filled<T>(view.on, held_.k.size(), T{0}), dv = filled<T>(view.on, held_.v.size(), T{0});
    if (view.plan.method == cp_method::all_gather) {
      const auto k = gathered(view, g.ring, held_.k), v = gathered(view, g.ring, held_.v);
      auto all_dk = filled<T>(view.on, k.size(), T{0}), all_dv = filled<T>(view.on, v.size(), T{0});
      gradient.attend(k, v, places.of_ranks(view.on, 0, view.plan.cp), g.my_kv_heads, all_dk, all_dv);
      view.comm.reduce_scatter(g.ring, read_only(all_dk), std::span<T>(dk));
      view.comm.reduce_scatter(g.ring, read_only(all_dv), std::span<T>(dv));
    } else {
      travelling_pair<C> keys(view, g.ring, held_.k, held_.v);
      for (num hop = 0; hop < g.R; ++hop) {
        if (hop + 1 < g.R) keys.begin_hop();
        gradient.attend(keys.first(), keys.second(), g.places_of(g.from(hop)), g.my_kv_heads, dk, dv);
        keys.finish_hop();
        if (g.R == 1) continue;
        travelling_pair<C> gradients(view, g.ring, dk, dv);  // R hops: gradients come home
        gradients.begin_hop();
        gradients.finish_hop();
        gradients.take(dk, dv);
      }
    }
    attention_inputs<T, D> d{gradient.finish(), std::move(dk), std::move(dv)};
    if (g.U > 1) {
      d.q = trade_heads_for_tokens<T>(view, g.ulysses, d.q, g.heads, g.head_dim);
      d.k = trade_heads_for_tokens<T>(view, g.ulysses, d.k, g.kv_heads, g.head_dim);
      d.v = trade_heads_for_tokens<T>(view, g.ulysses, d.v, g.kv_heads, g.head_dim);
    }
    return d;
  }

 private:
  template <Communicator C>
  struct groups {
    typename C::group_type ulysses, ring;
    const sequence_places<D>& places;
    const D& on;
    num U, R, head_dim, n, heads, kv_heads, my_heads, my_kv_heads;

    groups(const rank_view<C, D>& view, std::size_t q_size, std::size_t k_size, const sequence_places<D>& p)
        : ulysses(view.group(axis::cp_ulysses)),
          ring(view.group(axis::cp_ring)),
          places(p),
          on(view.on),
          U(ulysses.size()),
          R(ring.size()),
          head_dim(view.model().head_dim),
          n(p.tokens_of_rank()),
          heads(n == 0 ? 0 : static_cast<num>(q_size) / (n * head_dim)),
          kv_heads(n == 0 ? 0 : static_cast<num>(k_size) / (n * head_dim)),
          my_heads(num_traded_heads(heads, U)),
          my_kv_heads(num_traded_heads(kv_heads, U)) {}
    /// Ring member r's tokens are those of the U neighbours at r: Ulysses is the faster axis.
    const typename D::places& places_of(num r) const { return places.of_ranks(on, r * U, (r + 1) * U); }
    /// Whose keys are here after so many hops.
    num from(num hop) const { return (ring.index() - hop + R) % R; }
  };

  template <Communicator C, class Group>
  static buffer_on<D, T> gathered(const rank_view<C, D>& view, const Group& group, const buffer_on<D, T>& mine) {
    auto all = allocate<T>(view.on, mine.size() * static_cast<std::size_t>(group.size()));
    view.comm.all_gather(group, read_only(mine), std::span<T>(all));
    return all;
  }

  /// Two tensors that go round the ring: on a hop each rank gives what it has to the next, and takes what the one
  /// before had. Between begin_hop() and finish_hop() it can still be read, while both are on their way.
  template <Communicator C>
  class travelling_pair {
   public:
    /// What the rank has at first must outlive the first hop.
    travelling_pair(const rank_view<C, D>& view, const typename C::group_type& ring, std::span<const T> first,
                    std::span<const T> second)
        : view_(view), ring_(ring), here_{first, second} {}
    std::span<const T> first() const { return here_[0]; }
    std::span<const T> second() const { return here_[1]; }

    void begin_hop() {
      hopping_ = true;
      const num R = ring_.size(), next = (ring_.index() + 1) % R, previous = (ring_.index() - 1 + R) % R;
      for (std::span<const T> x : here_) view_.comm.send(ring_, x, next);
      for (std::size_t i = 0; i < 2; ++i) {
        next_[i] = allocate<T>(view_.on, here_[i].size());
        under_way_[i] = view_.comm.begin_receive(ring_, std::span<T>(next_[i]), previous);
      }
      view_.comm.flush(ring_);
    }
    /// Nothing where no hop was begun.
    void finish_hop() {
      if (!std::exchange(hopping_, false)) return;
      for (std::size_t i = 0; i < 2; ++i) {
        under_way_[i].finish();
        mine_[i] = std::move(next_[i]);
        here_[i] = mine_[i];
      }
    }
    /// What came with the last hop.
    void take(buffer_on<D, T>& first, buffer_on<D, T>& second) {
      first = std::move(mine_[0]), second = std::move(mine_[1]);
    }

   private:
    const rank_view<C, D>& view_;
    const typename C::group_type& ring_;
    bool hopping_ = false;
    std::array<std::span<const T>, 2> here_;
    std::array<buffer_on<D, T>, 2> mine_, next_;    // what came, and what comes
    std::array<typename C::pending, 2> under_way_;  // given up before their buffers go
  };

  std::size_t q_size_ = 0, k_size_ = 0;  // of the inputs, before any trade
  attention_inputs<T, D> held_;          // as this rank attends: after trading tokens for heads
  buffer_on<D, T> out_;
  buffer_on<D, accumulated<T>> log_sum_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_ATTENTION_HPP
