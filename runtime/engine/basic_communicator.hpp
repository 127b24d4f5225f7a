// SPDX-License-Identifier: Apache-2.0
// The typed face that every engine shares: turns a call on spans into a request, has the engine carry it out, and
// records it. An engine is a class with `group_type`, rank(), world_size(), group(), check_abort() and
// perform(group, request); or, in the place of the last, where calls go on while the rank computes, begin(group,
// request), finish(group, request), flush(group, request) and give_up(), after which nothing touches the buffers of
// what was begun.
#ifndef SHARDPLAN_RUNTIME_ENGINE_BASIC_COMMUNICATOR_HPP
#define SHARDPLAN_RUNTIME_ENGINE_BASIC_COMMUNICATOR_HPP

#include <optional>
#include <type_traits>  // type_identity
#include <utility>      // exchange, move
#include <vector>

#include "runtime/engine/request.hpp"

namespace shardplan::runtime {

/// See communicator.hpp for what each operation means. Element types are deduced from the buffer that is written, so
/// that inputs may be spans of T or of const T, or vectors.
template <class Engine>
class basic_communicator {
 public:
  using group_type = typename Engine::group_type;
  template <class T>
  using input = std::span<const std::type_identity_t<T>>;
  using counts = std::span<const num>;

  /// A call that was begun. Its buffers are the engine's until finish(); all members begin and finish in one order.
  /// Where finish() never comes, as when an exception passes by, the engine gives up all it has begun.
  class pending {
   public:
    pending() = default;  ///< of nothing
    pending(pending&& other) noexcept
        : of_(std::exchange(other.of_, nullptr)),
          group_(other.group_),
          call_(other.call_),
          counts_(std::move(other.counts_)) {
      call_.counts = counts_;
    }
    pending& operator=(pending&& other) noexcept {
      pending(std::move(other)).swap(*this);
      return *this;
    }
    ~pending() {
      if constexpr (begins)
        if (of_ != nullptr) of_->engine_.give_up();
    }
    /// As the call itself ends; nothing the second time.
    void finish() {
      if (basic_communicator* const of = std::exchange(of_, nullptr)) of->finish(*group_, call_);
    }

   private:
    friend basic_communicator;
    pending(basic_communicator& of, const group_type& g, const request& r)
        : of_(&of), group_(g), call_(r), counts_(r.counts.begin(), r.counts.end()) {
      call_.counts = counts_;
    }
    void swap(pending& other) noexcept {
      std::swap(of_, other.of_), std::swap(group_, other.group_), std::swap(call_, other.call_);
      counts_.swap(other.counts_);  // whose values stay where they are
    }

    basic_communicator* of_ = nullptr;
    std::optional<group_type> group_;
    request call_;
    std::vector<num> counts_;  // what call_.counts shows
  };

  explicit basic_communicator(Engine engine) : engine_(std::move(engine)) {}
  basic_communicator(const basic_communicator&) = delete;
  basic_communicator& operator=(const basic_communicator&) = delete;

  num rank() const { return engine_.rank(); }
  num world_size() const { return engine_.world_size(); }
  /// The group of this rank; `axes` is what it is called in messages and in the ledger.
  /// engine_error: this rank is not member `ranks.index`, or a member is outside the world or there twice.
  group_type group(const rank_group& ranks, axis_set axes) { return engine_.group(ranks, axes); }
  void label(phase why, num layer = -1) {
    why_ = why;
    layer_ = layer;
  }
  recorder& ledger() { return ledger_; }
  void check_abort() { engine_.check_abort(); }

  template <Element T>
  void all_reduce(const group_type& g, std::span<T> inout, reduce_op op = reduce_op::sum) {
    request r = make<T>(operation::all_reduce, inout, inout);
    r.reduce = op;
    perform(g, r);
  }
  template <Element T>
  void all_gather(const group_type& g, input<T> mine, std::span<T> all) {
    perform(g, make<T>(operation::all_gather, mine, all));
  }
  template <Element T>
  void all_gather(const group_type& g, input<T> mine, std::span<T> all, counts part_counts) {
    request r = make<T>(operation::all_gather, mine, all);
    r.counts = part_counts;
    perform(g, r);
  }
  template <Element T>
  [[nodiscard]] pending begin_all_gather(const group_type& g, input<T> mine, std::span<T> all, counts part_counts) {
    request r = make<T>(operation::all_gather, mine, all);
    r.counts = part_counts;
    return begin(g, r);
  }
  template <Element T>
  void reduce_scatter(const group_type& g, input<T> all, std::span<T> mine) {
    perform(g, make<T>(operation::reduce_scatter, all, mine));
  }
  template <Element T>
  void reduce_scatter(const group_type& g, input<T> all, std::span<T> mine, counts part_counts) {
    request r = make<T>(operation::reduce_scatter, all, mine);
    r.counts = part_counts;
    perform(g, r);
  }
  template <Element T>
  void all_to_all(const group_type& g, input<T> send, counts send_counts, std::span<T> receive, counts receive_counts) {
    request r = make<T>(operation::all_to_all, send, receive);
    r.counts = send_counts;
    r.receive_counts = receive_counts;
    perform(g, r);
  }
  template <Element T>
  void broadcast(const group_type& g, std::span<T> inout, num root) {
    request r = make<T>(operation::broadcast, inout, inout);
    r.peer = root;
    perform(g, r);
  }
  template <Element T>
  void gather(const group_type& g, input<T> mine, std::span<T> all, counts part_counts, num root) {
    request r = make<T>(operation::gather, mine, all);
    r.counts = part_counts;
    r.peer = root;
    perform(g, r);
  }
  template <Element T>
  void send(const group_type& g, std::span<const T> message, num to) {
    request r = make<T>(operation::send, message, {});
    r.peer = to;
    perform(g, r);
  }
  template <Element T>
  void send(const group_type& g, std::span<T> message, num to) {
    send(g, std::span<const T>(message), to);
  }
  template <Element T>
  void receive(const group_type& g, std::span<T> message, num from) {
    request r = make<T>(operation::receive, {}, message);
    r.peer = from;
    perform(g, r);
  }
  template <Element T>
  [[nodiscard]] pending begin_receive(const group_type& g, std::span<T> message, num from) {
    request r = make<T>(operation::receive, {}, message);
    r.peer = from;
    return begin(g, r);
  }
  void flush([[maybe_unused]] const group_type& g) {
    if constexpr (begins) {
      request r = make<double>(operation::send, {}, {});
      r.axes = g.axes();
      engine_.flush(g, r);
    }
  }
  void barrier(const group_type& g) { perform(g, make<double>(operation::barrier, {}, {})); }

 private:
  template <Element T>
  request make(operation what, input<T> in, std::span<T> out) const {
    request r;
    r.what = what;
    r.type = element_type_of<T>;
    r.in = reinterpret_cast<const std::byte*>(in.data());
    r.in_size = static_cast<num>(in.size());
    r.out = reinterpret_cast<std::byte*>(out.data());
    r.out_size = static_cast<num>(out.size());
    r.why = why_;
    r.layer = layer_;
    return r;
  }

  static constexpr bool begins = requires(Engine & e, const group_type& g, const request& r) { e.begin(g, r); };

  /// An engine that begins nothing does all of it in the end.
  pending begin(const group_type& g, request r) {
    r.axes = g.axes();
    if constexpr (begins) engine_.begin(g, r);
    return pending(*this, g, r);
  }
  void perform(const group_type& g, request r) {
    r.axes = g.axes();
    if constexpr (begins) engine_.begin(g, r);
    finish(g, r);
  }

  void finish(const group_type& g, const request& r) {
    if constexpr (begins)
      engine_.finish(g, r);
    else
      engine_.perform(g, r);
    ledger_entry e{r.what, r.axes, g.size(), r.what == operation::receive ? r.out_bytes() : r.in_bytes()};
    if (r.what == operation::reduce_scatter) e.kept = r.out_bytes();
    if (r.what == operation::all_to_all) e.kept = r.counts[static_cast<std::size_t>(g.index())] * size_of(r.type);
    if (r.what == operation::send && r.peer == g.index()) e.kept = e.bytes;
    e.root = (r.what == operation::broadcast || r.what == operation::gather) && r.peer == g.index();
    if (r.what == operation::gather && e.root) e.kept = e.bytes;
    e.why = r.why;
    e.layer = r.layer;
    ledger_.add(e);
  }

  Engine engine_;
  recorder ledger_;
  phase why_ = phase::parameters;
  num layer_ = -1;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_BASIC_COMMUNICATOR_HPP
