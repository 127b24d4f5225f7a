// SPDX-License-Identifier: Apache-2.0
// What one rank communicates inside a layer: attention across context-parallel ranks, experts across ranks, and the
// sums and gathers of tensor parallelism. collectives.hpp makes the whole program of it.
#ifndef SHARDPLAN_LAYER_COLLECTIVES_HPP
#define SHARDPLAN_LAYER_COLLECTIVES_HPP

#include <initializer_list>  // initializer_list
#include <shardplan/ledger.hpp>
#include <shardplan/run_shape.hpp>

namespace shardplan::detail {

/// Reports the collectives of a layer to a sink, labelled as the executor labels them.
template <Routing R, class Sink>
class layer_communication {
 public:
  constexpr layer_communication(const model_spec& m, const plan_spec& p, const run_shape& shape, num rank,
                                const R& routing, Sink& sink)
      : m_(m), p_(p), shape_(shape), rank_(rank), routing_(routing), sink_(sink) {
    n_ = local_length(p.layout, shape.padded_length, p.cp) * shape.micro_rows;
    split_ = p.sequence_parallel && p.tp > 1;
    stream_ = (split_ ? n_ / p.tp : n_) * m.hidden_size;
    whole_ = n_ * m.hidden_size;
  }
  layer_communication(const layer_communication&) = delete;  // it may point into itself

 protected:
  constexpr rank_group group(axis_set axes) const { return group_of(*in_, m_, rank_, axes); }
  constexpr void label(phase why, num layer) { why_ = why, layer_ = layer; }

  constexpr void bytes(operation what, axis_set axes, num handed, num kept = 0, bool root = false) {
    bytes_in(what, axes, group(axes).size(), handed, kept, root);
  }
  constexpr void bytes_in(operation what, axis_set axes, num size, num handed, num kept, bool root) {
    if (size < 2) return;
    const ledger_entry e{what, axes, size, handed, kept, root, why_, layer_};
    if constexpr (counts_repeats)
      sink_(e, times_);
    else
      sink_(e);
  }
  constexpr void values(operation what, axis_set axes, num handed, num kept = 0) {
    bytes(what, axes, handed * shape_.element_bytes, kept * shape_.element_bytes);
  }
  /// Values that are kept wide.
  constexpr void sums(operation what, axis_set axes, num handed, num kept = 0) {
    bytes(what, axes, handed * shape_.wide_bytes(), kept * shape_.wide_bytes());
  }
  /// An all_to_all of equal parts.
  constexpr void trade(axis_set axes, num part) {
    values(operation::all_to_all, axes, part * group(axes).size(), part);
  }

  constexpr void gather_tokens() {
    if (split_) values(operation::all_gather, axis::tp, stream_);
  }
  /// What follows, until leave(), is of that layer.
  constexpr void enter(num layer) {
    at_ = layer;
    if (p_.modules.empty()) return;
    changed_ = plan_in_layer(p_, layer);
    in_ = &changed_;
  }
  constexpr void leave() { in_ = &p_; }
  /// After modules that hold parameters of that kind: whole ones owe no sum.
  constexpr void sum_over_tp(parameter_kind kind, num layer = parameter::no_layer) {
    if (is_cut(p_, kind, layer)) sum_over_tp();
  }
  constexpr void sum_over_tp() {
    if (split_)
      values(operation::reduce_scatter, axis::tp, whole_, stream_);
    else
      values(operation::all_reduce, axis::tp, whole_);
  }

  // ---- attention: values of the queries, and of the keys (as many as the values)
  constexpr num ulysses() const { return ulysses_degree(*in_); }
  constexpr bool cut() const { return is_cut(p_, parameter_kind::q_proj, at_); }
  constexpr num heads() const { return cut() ? m_.num_attention_heads / p_.tp : m_.num_attention_heads; }
  constexpr num kv_heads() const {
    return cut() ? m_.num_key_value_heads * kv_copies(p_, m_) / p_.tp : m_.num_key_value_heads;
  }
  constexpr num traded(num of) const { return n_ * num_traded_heads(of, ulysses()) * m_.head_dim; }  // to one rank
  constexpr void trade_inputs() {
    if (n_ == 0 || ulysses() == 1) return;
    trade(axis::cp_ulysses, traded(heads()));
    trade(axis::cp_ulysses, traded(kv_heads()));
    trade(axis::cp_ulysses, traded(kv_heads()));
  }
  constexpr void trade_queries() {
    if (n_ > 0 && ulysses() > 1) trade(axis::cp_ulysses, traded(heads()));
  }
  /// Two blocks (keys and values, or their gradients) go to the next rank, two come from the one before.
  constexpr void pass_on(num hops) {
    if constexpr (counts_repeats) times_ = hops, hops = hops > 0 ? 1 : 0;
    for (num hop = 0; hop < hops; ++hop)
      for (operation what : {operation::send, operation::send, operation::receive, operation::receive})
        values(what, axis::cp_ring, ulysses() * traded(kv_heads()));
    times_ = 1;
  }
  constexpr void gather_keys() {
    for (int i = 0; i < 2; ++i) values(operation::all_gather, axis::cp_ring, ulysses() * traded(kv_heads()));
  }

  constexpr void attention_forward() {
    trade_inputs();
    if (n_ > 0 && in_->method == cp_method::all_gather) gather_keys();
    if (n_ > 0 && in_->method != cp_method::all_gather) pass_on(ring_degree(*in_) - 1);
    trade_queries();
  }
  constexpr void attention_backward() {
    trade_queries();
    const num ring = ring_degree(*in_), keys = ulysses() * traded(kv_heads());
    if (n_ > 0 && in_->method == cp_method::all_gather) {
      gather_keys();
      for (int i = 0; i < 2; ++i) values(operation::reduce_scatter, axis::cp_ring, ring * keys, keys);
    } else if (n_ > 0 && ring > 1) {
      pass_on(ring - 1 + ring);  // keys and values as in the forward, and after each their gradients, which come home
    }
    trade_inputs();
  }

  // ---- experts
  constexpr num tp_index(num rank) const { return coordinate(dense_mesh(p_), rank, axis::tp); }
  constexpr num my_rows() const { return routed_rows(*in_, n_, tp_index(rank_)).size(); }
  constexpr num moe_index(num layer) const {
    num index = 0;
    for (num before = 0; before < layer; ++before) index += is_moe_layer(m_, before) ? 1 : 0;
    return index;
  }
  /// Pairs that travel from rank `from` to the experts of ep rank `to` of its group.
  constexpr num pairs(num layer, num micro, num from, num to) const {
    return routing_(moe_index(layer), micro, from, chunk(m_.num_experts, in_->ep, to));
  }
  constexpr num arriving(num layer, num micro, num rank) const {
    return rows_received(m_, *in_, routing_, moe_index(layer), micro, rank);
  }
  /// Pairs of this rank that need not travel: the fewest, where the routing is a bound.
  constexpr num staying(num layer, num micro) const {
    const num at = group(axis::ep).index;
    if constexpr (requires { routing_.least(0, 0, 0, dim_range{}); })
      return routing_.least(moe_index(layer), micro, rank_, chunk(m_.num_experts, in_->ep, at));
    else
      return pairs(layer, micro, rank_, at);
  }
  constexpr num leaving(num layer, num micro) const {
    return routing_(moe_index(layer), micro, rank_, {0, m_.num_experts});
  }
  constexpr void to_experts(num layer, num micro) {
    const num H = m_.hidden_size;
    values(operation::all_to_all, axis::ep, leaving(layer, micro) * H, staying(layer, micro) * H);
    values(operation::all_gather, axis::etp, arriving(layer, micro, rank_) * H);
  }
  constexpr void from_experts(num layer, num micro) {
    const num H = m_.hidden_size, mine = arriving(layer, micro, rank_);
    const rank_group etp = group(axis::etp);
    num all = 0;
    for (num i = 0; i < etp.size(); ++i) all += arriving(layer, micro, etp.member(i));
    values(operation::reduce_scatter, axis::etp, all * H, mine * H);
    values(operation::all_to_all, axis::ep, mine * H, pairs(layer, micro, rank_, group(axis::ep).index) * H);
  }
  /// Rows gathered over the ep x etp group.
  constexpr num gathered_rows() const {
    const rank_group g = group(axis::ep | axis::etp);
    num all = 0;
    for (num i = 0; i < g.size(); ++i) all += routed_rows(*in_, n_, tp_index(g.member(i))).size();
    return all;
  }
  constexpr void all_rows() {
    if (!split_) values(operation::all_gather, axis::tp, my_rows() * m_.hidden_size);
  }

  constexpr void experts_forward(num layer, num micro) {
    const num H = m_.hidden_size, k = m_.num_experts_per_tok, r = my_rows();
    switch (in_->dispatch) {
      case dispatch_kind::all_reduce:
        gather_tokens();
        sum_over_tp();
        return;
      case dispatch_kind::dispatch: {
        const num counts = 8 * expert_slots(*in_, m_);
        bytes(operation::all_to_all, axis::ep, counts * in_->ep, counts);
        bytes(operation::all_gather, axis::etp, counts * in_->ep);
        to_experts(layer, micro);
        from_experts(layer, micro);
        break;
      }
      case dispatch_kind::all_gather: {
        const axis_set over = axis::ep | axis::etp;
        bytes(operation::all_gather, over, 8);
        values(operation::all_gather, over, r * H);
        bytes(operation::all_gather, over, r * k * 8);
        sums(operation::all_gather, over, r * k);
        values(operation::reduce_scatter, over, gathered_rows() * H, r * H);
        break;
      }
    }
    all_rows();
  }
  constexpr void experts_backward(num layer, num micro) {
    const num H = m_.hidden_size, k = m_.num_experts_per_tok, r = my_rows();
    switch (in_->dispatch) {
      case dispatch_kind::all_reduce:
        gather_tokens();
        sum_over_tp();
        return;
      case dispatch_kind::dispatch:
        to_experts(layer, micro);
        from_experts(layer, micro);
        break;
      case dispatch_kind::all_gather: {
        const axis_set over = axis::ep | axis::etp;
        values(operation::all_gather, over, r * H);
        sums(operation::reduce_scatter, over, gathered_rows() * k, r * k);
        values(operation::reduce_scatter, over, gathered_rows() * H, r * H);
        break;
      }
    }
    all_rows();
  }

  /// Does the sink take a number of times beside an entry? Then hops, which are alike, are told at once.
  static constexpr bool counts_repeats = requires(Sink & sink, const ledger_entry& e, num times) { sink(e, times); };

  const model_spec& m_;
  const plan_spec& p_;
  const run_shape& shape_;
  const plan_spec* in_ = &p_;  // as the layer at hand sees it
  plan_spec changed_{};
  num at_ = parameter::no_layer;
  num rank_;
  const R& routing_;
  Sink& sink_;
  num n_ = 0, stream_ = 0, whole_ = 0;  // tokens of this rank; values of the residual stream, and of all its tokens
  bool split_ = false;
  phase why_{};
  num layer_ = parameter::no_layer;
  num times_ = 1;
};

}  // namespace shardplan::detail
#endif  // SHARDPLAN_LAYER_COLLECTIVES_HPP
