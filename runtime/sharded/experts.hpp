// SPDX-License-Identifier: Apache-2.0
// The mixture of experts across ranks. Tokens that tp ranks hold in common are split between them by row first, so that
// each (token, choice) pair is computed once; then rows travel to experts, or partial sums travel back.
// Letters: n tokens of this context-parallel rank, r of them this rank routes, H hidden, E experts, k per token,
// slots experts of one ep rank, I width of an expert on one etp rank.
#ifndef SHARDPLAN_RUNTIME_SHARDED_EXPERTS_HPP
#define SHARDPLAN_RUNTIME_SHARDED_EXPERTS_HPP

#include <algorithm>
#include <numeric>

#include "runtime/sharded/linear.hpp"

namespace shardplan::runtime {

/// What routing needs to know of the n tokens beside their hidden states.
struct routed_tokens {
  std::vector<char> real;   ///< (n): padding is not routed
  std::vector<num> forced;  ///< (n, k) experts to choose, -1: as the router says; empty: nowhere
};

/// The choices of r rows: experts (r, k) and weights (r, k). Rows of padding choose expert -1.
template <class T>
struct routing {
  num per_token = 0;
  std::vector<num> experts;
  std::vector<T> weights;
};

template <class T>
routing<T> route(const model_config& config, std::span<const T> x, const parameter_part<T>& router,
                 const routed_tokens& tokens, num first) {
  const model_spec& m = config.spec;
  const num k = m.num_experts_per_tok, n = static_cast<num>(x.size()) / m.hidden_size;
  routing<T> out{k, std::vector<num>(static_cast<std::size_t>(n * k), -1),
                 std::vector<T>(static_cast<std::size_t>(n * k))};
  if (!tokens.forced.empty()) std::copy_n(tokens.forced.begin() + first * k, n * k, out.experts.begin());
  std::vector<T> scores = linear(x, router);
  choose_experts<T>(scores, m.num_experts, k, config.norm_topk_prob, out.experts, out.weights);
  for (num i = 0; i < n; ++i)
    if (!tokens.real[static_cast<std::size_t>(first + i)]) std::fill_n(out.experts.begin() + i * k, k, -1);
  return out;
}

/// y (rows, H): each expert's own rows through it. `counts[slot]` rows for each expert here, expert by expert; the
/// result is a part of the sum over etp.
template <class T>
std::vector<T> run_experts(std::span<const T> x, std::span<const num> counts, const parameters_in_use<T>& w) {
  const parameter_part<T>&gate_up = w[parameter_kind::experts_gate_up], &down = w[parameter_kind::experts_down];
  const num H = gate_up.shape[2], I = gate_up.shape[1] / 2;
  std::vector<T> y(x.size());
  const num most = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  std::vector<T> wide(static_cast<std::size_t>(most * 2 * I)), act(static_cast<std::size_t>(most * I));
  num row = 0;
  for (num slot = 0; slot < static_cast<num>(counts.size()); ++slot) {
    const num n = counts[static_cast<std::size_t>(slot)];
    if (n == 0) continue;  // also the padding slots, which have no weights
    gemm_nt({x.data() + row * H, n, H}, {gate_up.values.data() + slot * 2 * I * H, 2 * I, H},
            matrix_view<T>(wide.data(), n, 2 * I));
    const std::span<T> part(act.data(), static_cast<std::size_t>(n * I));
    swiglu<T>(std::span<const T>(wide.data(), static_cast<std::size_t>(n * 2 * I)), I, part);
    gemm_nt({act.data(), n, I}, {down.values.data() + slot * H * I, H, I}, matrix_view<T>(y.data() + row * H, n, H));
    row += n;
  }
  return y;
}

/// Pairs (token, choice) sorted by expert: `order[j]` is the pair in place j, `counts[e]` how many chose expert e of
/// [first, first + count). Pairs of other experts, and of padding, are left out.
struct pairs_by_expert {
  std::vector<num> order, counts;

  pairs_by_expert(std::span<const num> experts, num first, num count) : counts(static_cast<std::size_t>(count)) {
    const auto here = [&](num e) { return e >= first && e < first + count; };
    for (num e : experts)
      if (here(e)) ++counts[static_cast<std::size_t>(e - first)];
    std::vector<num> next(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), next.begin(), num{0});
    order.resize(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), num{0})));
    for (std::size_t pair = 0; pair < experts.size(); ++pair)
      if (here(experts[pair]))
        order[static_cast<std::size_t>(next[static_cast<std::size_t>(experts[pair] - first)]++)] =
            static_cast<num>(pair);
  }
};

/// The rows of x (r, H) that the pairs name.
template <class T>
std::vector<T> rows_of_pairs(std::span<const T> x, const pairs_by_expert& pairs, num per_token, num H) {
  std::vector<T> out(pairs.order.size() * static_cast<std::size_t>(H));
  auto to = out.begin();
  for (num pair : pairs.order) to = std::copy_n(x.begin() + pair / per_token * H, H, to);
  return out;
}

/// y(token) += weight * row, for each pair in the order of its token's choices, so that the sum does not depend on
/// where experts live.
template <class T>
void add_pairs(std::span<T> y, std::span<const T> rows, const pairs_by_expert& pairs, const routing<T>& chosen, num H) {
  std::vector<num> place(chosen.experts.size(), -1);
  for (std::size_t j = 0; j < pairs.order.size(); ++j)
    place[static_cast<std::size_t>(pairs.order[j])] = static_cast<num>(j);
  for (std::size_t pair = 0; pair < place.size(); ++pair) {
    if (place[pair] < 0) continue;
    const T weight = chosen.weights[pair];
    const T* from = rows.data() + place[pair] * H;
    T* to = y.data() + static_cast<num>(pair) / chosen.per_token * H;
    for (num h = 0; h < H; ++h) to[h] += weight * from[h];
  }
}

/// Every pair travels to the ep rank of its expert, and on to all etp ranks there; their partial results travel back.
/// x (r, H) -> y (r, H)
template <class T, Communicator C>
std::vector<T> dispatch_to_experts(const rank_view<C>& view, std::span<const T> x, const routing<T>& chosen,
                                   const parameters_in_use<T>& w) {
  const num H = view.model().hidden_size, slots = expert_slots(view.plan, view.model());
  const auto ep = view.group(axis::ep), etp = view.group(axis::etp);
  const num senders = ep.size() * etp.size();

  // Experts are owned in order, so pairs sorted by expert are sorted by owner.
  const pairs_by_expert pairs(chosen.experts, 0, slots * ep.size());
  const std::vector<T> leaving = rows_of_pairs(x, pairs, chosen.per_token, H);

  const std::vector<num> per_slot(static_cast<std::size_t>(ep.size()), slots);
  std::vector<num> arriving_counts(static_cast<std::size_t>(slots * ep.size()));  // (ep rank it comes from, slot)
  view.comm.all_to_all(ep, read_only(pairs.counts), std::span<const num>(per_slot), std::span<num>(arriving_counts),
                       std::span<const num>(per_slot));
  const auto values_per_rank = [&](const std::vector<num>& counts) {
    std::vector<num> values;
    for (num rank = 0; rank < ep.size(); ++rank)
      values.push_back(H * std::accumulate(counts.begin() + rank * slots, counts.begin() + (rank + 1) * slots, num{0}));
    return values;
  };
  const std::vector<num> send = values_per_rank(pairs.counts), receive = values_per_rank(arriving_counts);
  const num arriving_values = std::accumulate(receive.begin(), receive.end(), num{0});
  std::vector<T> arrived(static_cast<std::size_t>(arriving_values));
  view.comm.all_to_all(ep, read_only(leaving), std::span<const num>(send), std::span<T>(arrived),
                       std::span<const num>(receive));

  // The etp ranks of this ep rank hold slices of the same experts: each needs the rows that any of them received.
  std::vector<num> counts(static_cast<std::size_t>(senders * slots));  // (etp rank, ep rank it came from, slot)
  view.comm.all_gather(etp, read_only(arriving_counts), std::span<num>(counts));
  std::vector<num> values_of_etp;
  for (num e = 0; e < etp.size(); ++e)
    values_of_etp.push_back(H * std::accumulate(counts.begin() + e * ep.size() * slots,
                                                counts.begin() + (e + 1) * ep.size() * slots, num{0}));
  const std::span<const num> parts(values_of_etp);
  std::vector<T> rows(static_cast<std::size_t>(std::accumulate(parts.begin(), parts.end(), num{0})));
  view.comm.all_gather(etp, read_only(arrived), std::span<T>(rows), parts);

  // Rows came sender by sender; experts take theirs together.
  std::vector<num> starts(counts.size()), rows_of_slot(static_cast<std::size_t>(slots));
  std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), num{0});
  for (std::size_t block = 0; block < counts.size(); ++block)
    rows_of_slot[block % static_cast<std::size_t>(slots)] += counts[block];
  const auto for_each_block = [&](auto&& f) {  // f(first row as received, first row by expert, rows)
    num row = 0;
    for (num slot = 0; slot < slots; ++slot)
      for (num sender = 0; sender < senders; ++sender) {
        const auto block = static_cast<std::size_t>(sender * slots + slot);
        f(starts[block], row, counts[block]);
        row += counts[block];
      }
  };
  std::vector<T> by_expert(rows.size());
  for_each_block([&](num received, num sorted, num n) {
    std::copy_n(rows.begin() + received * H, n * H, by_expert.begin() + sorted * H);
  });
  const std::vector<T> results = run_experts<T>(by_expert, rows_of_slot, w);
  for_each_block([&](num received, num sorted, num n) {
    std::copy_n(results.begin() + sorted * H, n * H, rows.begin() + received * H);
  });

  view.comm.reduce_scatter(etp, read_only(rows), std::span<T>(arrived), parts);
  std::vector<T> back(leaving.size());
  view.comm.all_to_all(ep, read_only(arrived), std::span<const num>(receive), std::span<T>(back),
                       std::span<const num>(send));
  std::vector<T> y(x.size(), T{0});
  add_pairs<T>(y, back, pairs, chosen, H);
  return y;
}

/// What the experts of this rank contribute to the rows: partial over the ep x etp group. x (r, H) -> y (r, H)
template <class T, Communicator C>
std::vector<T> contribute(const rank_view<C>& view, std::span<const T> x, const routing<T>& chosen,
                          const parameters_in_use<T>& w) {
  const num H = view.model().hidden_size, slots = expert_slots(view.plan, view.model());
  const pairs_by_expert pairs(chosen.experts, view.at(axis::ep) * slots, slots);
  const std::vector<T> results = run_experts<T>(rows_of_pairs(x, pairs, chosen.per_token, H), pairs.counts, w);
  std::vector<T> y(x.size(), T{0});
  add_pairs<T>(y, results, pairs, chosen, H);
  return y;
}

/// Rows are gathered over the ep x etp group, every rank contributes to all of them, the sums are scattered back.
template <class T, Communicator C>
std::vector<T> gather_to_experts(const rank_view<C>& view, std::span<const T> x, const routing<T>& chosen,
                                 const parameters_in_use<T>& w) {
  const num H = view.model().hidden_size, k = chosen.per_token;
  const auto group = view.group(axis::ep | axis::etp);
  std::vector<num> rows(static_cast<std::size_t>(group.size()));
  const std::vector<num> mine{static_cast<num>(x.size()) / H};
  view.comm.all_gather(group, read_only(mine), std::span<num>(rows));
  const num all = std::accumulate(rows.begin(), rows.end(), num{0});
  const auto gathered = [&]<class V>(std::span<const V> part, num width) {
    std::vector<num> counts;
    for (num r : rows) counts.push_back(r * width);
    std::vector<V> whole(static_cast<std::size_t>(all * width));
    view.comm.all_gather(group, part, std::span<V>(whole), std::span<const num>(counts));
    return whole;
  };
  const std::vector<T> every_x = gathered(x, H);
  const routing<T> every_choice{k, gathered(read_only(chosen.experts), k), gathered(read_only(chosen.weights), k)};
  const std::vector<T> partial = contribute<T>(view, every_x, every_choice, w);
  std::vector<num> counts;
  for (num r : rows) counts.push_back(r * H);
  std::vector<T> y(x.size());
  view.comm.reduce_scatter(group, read_only(partial), std::span<T>(y), std::span<const num>(counts));
  return y;
}

/// The expert block of one layer: x and the result are tokens of the residual stream, whole or split over tp.
template <class T, class Residual, Communicator C>
hidden<T, Residual> mixture_of_experts(const rank_view<C>& view, const hidden<T, Residual>& x,
                                       const parameters_in_use<T>& w, const routed_tokens& tokens) {
  using traits = residual_traits<Residual>;
  const num H = x.width(), n = static_cast<num>(tokens.real.size());
  const auto tp = view.group(axis::tp);
  const auto rows = [&](const auto& from, num first, num count) {
    return std::span<const T>(from.data())
        .subspan(static_cast<std::size_t>(first * H), static_cast<std::size_t>(count * H));
  };

  if (view.plan.dispatch == dispatch_kind::all_reduce) {
    // The ranks of one ep x etp group are neighbours on tp and take the same rows; groups divide the rows.
    const num sharing = view.plan.ep * view.plan.etp;
    const dim_range mine = chunk(n, tp.size() / sharing, tp.index() / sharing);
    const auto& whole = gather_tokens(view, x);
    const std::span<const T> my_rows = rows(whole, mine.begin, mine.size());
    const routing<T> chosen = route<T>(view.config, my_rows, w[parameter_kind::router], tokens, mine.begin);
    const std::vector<T> part = contribute<T>(view, my_rows, chosen, w);
    hidden<T, typename traits::tokens> sum(whole, H);
    std::copy(part.begin(), part.end(), sum.data().begin() + mine.begin * H);
    return sum_over_tp<Residual>::of(view, std::move(sum));
  }

  const dim_range mine = chunk(n, tp.size(), tp.index());
  const std::span<const T> my_rows = traits::split ? std::span<const T>(x.data()) : rows(x, mine.begin, mine.size());
  const routing<T> chosen = route<T>(view.config, my_rows, w[parameter_kind::router], tokens, mine.begin);
  const std::vector<T> y = view.plan.dispatch == dispatch_kind::dispatch
                               ? dispatch_to_experts<T>(view, my_rows, chosen, w)
                               : gather_to_experts<T>(view, my_rows, chosen, w);
  hidden<T, Residual> out(x, H);
  if (traits::split) {
    out.data() = y;
  } else {
    std::vector<num> counts = chunk_counts(n, tp.size());
    for (num& c : counts) c *= H;
    view.comm.all_gather(tp, read_only(y), std::span<T>(out.data()), std::span<const num>(counts));
  }
  return out;
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_EXPERTS_HPP
