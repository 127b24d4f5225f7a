// SPDX-License-Identifier: Apache-2.0
// How rows meet experts on other ranks: they travel (dispatch), all rows are gathered (all_gather), or ranks that have
// the same rows contribute to them (all_reduce).
// Letters as in experts.hpp: r rows of this rank, k choices each, H hidden, slots experts of one ep rank.
#ifndef SHARDPLAN_RUNTIME_SHARDED_DISPATCH_HPP
#define SHARDPLAN_RUNTIME_SHARDED_DISPATCH_HPP

#include "runtime/sharded/experts.hpp"

namespace shardplan::runtime {

/// Every pair travels to the ep rank of its expert, and on to all etp ranks there, which hold slices of the same
/// experts; their partial results travel back and are summed on the way.
template <class T, class D = cpu_device>
class dispatched_experts {
 public:
  /// x (r, H) -> y (r, H)
  template <Communicator C>
  buffer_on<D, T> forward(const rank_view<C, D>& view, std::span<const T> x, const routing<T, D>& chosen,
                          const parameters_in_use<T, D>& w) {
    const num H = view.model().hidden_size, slots = expert_slots(view.plan, view.model());
    const auto ep = view.group(axis::ep), etp = view.group(axis::etp);
    // Experts are owned in order, so pairs sorted by expert are sorted by owner.
    pairs_ = sort_pairs(view.on, chosen.experts, 0, slots * ep.size());

    const std::vector<num> each(static_cast<std::size_t>(ep.size()), slots);
    std::vector<num> arriving(static_cast<std::size_t>(slots * ep.size()));  // (ep rank it comes from, slot)
    view.comm.all_to_all(ep, read_only(pairs_.counts), std::span<const num>(each), std::span<num>(arriving),
                         std::span<const num>(each));
    leaving_ = values_per_part(pairs_.counts, ep.size(), H);
    arriving_ = values_per_part(arriving, ep.size(), H);
    counts_.resize(static_cast<std::size_t>(etp.size() * ep.size() * slots));  // (etp rank, ep rank, slot)
    view.comm.all_gather(etp, read_only(arriving), std::span<num>(counts_));
    of_etp_ = values_per_part(counts_, etp.size(), H);
    rows_of_slot_.assign(static_cast<std::size_t>(slots), 0);
    for (std::size_t block = 0; block < counts_.size(); ++block)
      rows_of_slot_[block % static_cast<std::size_t>(slots)] += counts_[block];
    if (ep.size() * etp.size() > 1) blocks_ = take(view.on, blocks());

    buffer_on<D, T> rows = to_experts(view, rows_of_pairs<T>(view.on, x, pairs_, chosen.per_token, H));
    back_ = from_experts(view, bank_.forward(view.on, std::move(rows), rows_of_slot_, w));
    return combine_pairs<T>(view.on, back_, pairs_, chosen.weights, chosen.per_token, H);
  }

  /// dx (r, H) without the router's share, and `dweights` (r, k).
  template <Communicator C>
  buffer_on<D, T> backward(const rank_view<C, D>& view, std::span<const T> dy, const routing<T, D>& chosen,
                           const parameters_in_use<T, D>& w, std::span<accumulated<T>> dgate_up,
                           std::span<accumulated<T>> ddown, buffer_on<D, accumulated<T>>& dweights) {
    const num H = view.model().hidden_size, k = chosen.per_token;
    auto drows = combine_pairs_backward<T>(view.on, dy, back_, pairs_, chosen.weights, k, H, dweights);
    const auto dback =
        from_experts(view, bank_.backward(view.on, to_experts(view, std::move(drows)), w, dgate_up, ddown));
    auto dx = filled<T>(view.on, dy.size(), T{0});
    add_rows_of_pairs<T>(view.on, dx, dback, pairs_, k, H);
    return dx;
  }

 private:
  static std::vector<num> values_per_part(const std::vector<num>& counts, num parts, num H) {
    const num part = static_cast<num>(counts.size()) / parts;
    std::vector<num> values;
    for (num i = 0; i < parts; ++i)
      values.push_back(H * std::accumulate(counts.begin() + i * part, counts.begin() + (i + 1) * part, num{0}));
    return values;
  }
  static std::size_t total(const std::vector<num>& counts) {
    return static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), num{0}));
  }

  /// Rows of this rank's pairs (pairs, H) to the rows of the experts here (all arriving, H), expert by expert.
  template <Communicator C>
  buffer_on<D, T> to_experts(const rank_view<C, D>& view, buffer_on<D, T> rows) const {
    const auto ep = view.group(axis::ep), etp = view.group(axis::etp);
    if (ep.size() * etp.size() == 1) return rows;  // nobody else's, and sorted by expert as they are
    auto arrived = allocate<T>(view.on, total(arriving_)), all = allocate<T>(view.on, total(of_etp_)),
         sorted = allocate<T>(view.on, all.size());
    view.comm.all_to_all(ep, read_only(rows), std::span<const num>(leaving_), std::span<T>(arrived),
                         std::span<const num>(arriving_));
    view.comm.all_gather(etp, read_only(arrived), std::span<T>(all), std::span<const num>(of_etp_));
    sort_blocks<T>(view.on, all, blocks_, view.model().hidden_size, sorted);
    return sorted;
  }

  /// The way back, which is also the backward of the way there: partial results are summed over etp.
  template <Communicator C>
  buffer_on<D, T> from_experts(const rank_view<C, D>& view, buffer_on<D, T> sorted) const {
    const auto ep = view.group(axis::ep), etp = view.group(axis::etp);
    if (ep.size() * etp.size() == 1) return sorted;
    auto all = allocate<T>(view.on, sorted.size()), mine = allocate<T>(view.on, total(arriving_)),
         back = allocate<T>(view.on, total(leaving_));
    unsort_blocks<T>(view.on, sorted, blocks_, view.model().hidden_size, all);
    view.comm.reduce_scatter(etp, read_only(all), std::span<T>(mine), std::span<const num>(of_etp_));
    view.comm.all_to_all(ep, read_only(mine), std::span<const num>(arriving_), std::span<T>(back),
                         std::span<const num>(leaving_));
    return back;
  }

  /// Rows come sender by sender; experts take theirs together.
  std::vector<row_block> blocks() const {
    std::vector<row_block> out;
    std::vector<num> starts(counts_.size());
    std::exclusive_scan(counts_.begin(), counts_.end(), starts.begin(), num{0});
    num row = 0;
    for (std::size_t slot = 0; slot < rows_of_slot_.size(); ++slot)
      for (std::size_t b = slot; b < counts_.size(); b += rows_of_slot_.size()) {
        out.push_back({starts[b], row, counts_[b]});
        row += counts_[b];
      }
    return out;
  }

  typename D::pairs pairs_;
  std::vector<num> leaving_, arriving_, of_etp_;  // values to and from each ep rank, and held by each etp rank
  std::vector<num> counts_, rows_of_slot_;
  buffer_on<D, row_block> blocks_;
  expert_bank<T, D> bank_;
  buffer_on<D, T> back_;  // (pairs, H): what the experts returned
};

/// Rows and choices are gathered over the ep x etp group, every rank contributes to all of them, sums are scattered.
template <class T, class D = cpu_device>
class gathered_experts {
  using A = accumulated<T>;

 public:
  /// x (r, H) -> y (r, H)
  template <Communicator C>
  buffer_on<D, T> forward(const rank_view<C, D>& view, std::span<const T> x, const routing<T, D>& chosen,
                          const parameters_in_use<T, D>& w) {
    const num H = view.model().hidden_size, k = chosen.per_token;
    const auto group = view.group(axis::ep | axis::etp);
    rows_.resize(static_cast<std::size_t>(group.size()));
    const std::vector<num> mine{static_cast<num>(x.size()) / H};
    view.comm.all_gather(group, read_only(mine), std::span<num>(rows_));
    const auto every_x = gathered<T>(view, x, H);
    every_ = {k, gathered<num>(view, chosen.experts, k), gathered<A>(view, chosen.weights, k), {}};
    return scattered<T>(view, contribution_.forward(view, every_x, every_, w), H);
  }

  template <Communicator C>
  buffer_on<D, T> backward(const rank_view<C, D>& view, std::span<const T> dy, const routing<T, D>& chosen,
                           const parameters_in_use<T, D>& w, std::span<accumulated<T>> dgate_up,
                           std::span<accumulated<T>> ddown, buffer_on<D, accumulated<T>>& dweights) {
    const num H = view.model().hidden_size;
    buffer_on<D, A> every_dweights;
    const auto every_dx =
        contribution_.backward(view, gathered<T>(view, dy, H), every_, w, dgate_up, ddown, every_dweights);
    dweights = scattered<A>(view, every_dweights, chosen.per_token);
    return scattered<T>(view, every_dx, H);
  }

 private:
  std::vector<num> counts(num width) const {
    std::vector<num> out;
    for (num r : rows_) out.push_back(r * width);
    return out;
  }
  static std::size_t total(const std::vector<num>& parts) {
    return static_cast<std::size_t>(std::accumulate(parts.begin(), parts.end(), num{0}));
  }
  template <class V, Communicator C>
  buffer_on<D, V> gathered(const rank_view<C, D>& view, std::span<const V> part, num width) const {
    const std::vector<num> parts = counts(width);
    auto whole = allocate<V>(view.on, total(parts));
    view.comm.all_gather(view.group(axis::ep | axis::etp), part, std::span<V>(whole), std::span<const num>(parts));
    return whole;
  }
  template <class V, Communicator C>
  buffer_on<D, V> scattered(const rank_view<C, D>& view, const buffer_on<D, V>& partial, num width) const {
    const auto group = view.group(axis::ep | axis::etp);
    const std::vector<num> parts = counts(width);
    auto mine = allocate<V>(view.on, static_cast<std::size_t>(parts[static_cast<std::size_t>(group.index())]));
    view.comm.reduce_scatter(group, read_only(partial), std::span<V>(mine), std::span<const num>(parts));
    return mine;
  }

  std::vector<num> rows_;  // of each member
  routing<T, D> every_;
  contribution<T, D> contribution_;
};

/// The experts of a layer, reached as the plan's dispatch kind says. Who replaces it (see planned_methods) gives the
/// same two functions of the rows x (r, H) that this rank routes (shardplan::routed_rows), with k choices each; rows of
/// padding chose -1 and go nowhere. Under dispatch and all_gather results are whole; under all_reduce the ranks of one
/// ep x etp group route the same rows, and each gives its part, which the caller sums over tp.
template <class T, class D = cpu_device>
class planned_experts {
 public:
  /// y (r, H): the sum of weight * expert(x) over the choices of each row.
  template <Communicator C>
  buffer_on<D, T> forward(const rank_view<C, D>& view, std::span<const T> x, const routing<T, D>& chosen,
                          const parameters_in_use<T, D>& w) {
    return as_planned(view, [&](auto& experts) { return experts.forward(view, x, chosen, w); });
  }
  /// dx (r, H) without the router's share, and `dweights` (r, k); the gradients of the experts here grow.
  template <Communicator C>
  buffer_on<D, T> backward(const rank_view<C, D>& view, std::span<const T> dy, const routing<T, D>& chosen,
                           const parameters_in_use<T, D>& w, std::span<accumulated<T>> dgate_up,
                           std::span<accumulated<T>> ddown, buffer_on<D, accumulated<T>>& dweights) {
    return as_planned(view,
                      [&](auto& experts) { return experts.backward(view, dy, chosen, w, dgate_up, ddown, dweights); });
  }

 private:
  template <Communicator C, class F>
  buffer_on<D, T> as_planned(const rank_view<C, D>& view, F&& f) {
    switch (view.plan.dispatch) {
      case dispatch_kind::all_reduce:
        return f(contribution_);
      case dispatch_kind::all_gather:
        return f(gathered_);
      case dispatch_kind::dispatch:
        break;
    }
    return f(dispatched_);
  }

  dispatched_experts<T, D> dispatched_;
  gathered_experts<T, D> gathered_;
  contribution<T, D> contribution_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_DISPATCH_HPP
