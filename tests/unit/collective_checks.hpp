// SPDX-License-Identifier: Apache-2.0
// Every collective against its definition, on any communicator: each rank checks what it gets by itself.
#ifndef SHARDPLAN_TESTS_UNIT_COLLECTIVE_CHECKS_HPP
#define SHARDPLAN_TESTS_UNIT_COLLECTIVE_CHECKS_HPP

#include <algorithm>
#include <numeric>  // accumulate
#include <string>
#include <vector>

#include "runtime/engine/communicator.hpp"
#include "runtime/error.hpp"

namespace collective_checks {

using namespace shardplan;
using namespace shardplan::runtime;

/// Inside a rank: assertions of the framework are for the main thread.
inline void require(bool good, const std::string& what) {
  if (!good) throw plan_error(what);
}

inline std::size_t at(num i) { return static_cast<std::size_t>(i); }

inline mesh cube() { return {{{{axis::pp, 2}, {axis::cp, 2}, {axis::tp, 2}}, 3}}; }

/// All subsets of the cube's axes, the empty one too: groups of 1, 2, 4 and 8.
inline std::vector<axis_set> cube_axes() {
  std::vector<axis_set> all;
  for (int bits = 0; bits < 8; ++bits) {
    axis_set s;
    if (bits & 1) s = s | axis::pp;
    if (bits & 2) s = s | axis::cp;
    if (bits & 4) s = s | axis::tp;
    all.push_back(s);
  }
  return all;
}

/// Ranks 0 .. n-1, as `rank` sees them.
inline rank_group everybody(num n, num rank) {
  rank_group g;
  g.index = rank;
  g.steps.push_back({n, 1});
  return g;
}

/// Element e of rank r: a small integer, exact in every type and every order of summing. Eight of bf16 are below 256.
template <class T>
accumulated<T> number(num r, num e) {
  const num of_any = (r * 37 + e * 11) % 101 + r;
  return static_cast<accumulated<T>>(std::is_same_v<T, bf16> ? of_any % 31 : of_any);
}
template <class T>
T value(num r, num e) {
  return narrow<T>(number<T>(r, e));
}
template <class T>
std::vector<T> values(num r, num size, num first = 0) {
  std::vector<T> v(at(size));
  for (num e = 0; e < size; ++e) v[at(e)] = value<T>(r, first + e);
  return v;
}

template <class T, class Group>
T reduced(const Group& g, reduce_op op, num e) {
  using A = accumulated<T>;
  A acc = number<T>(g.member(0), e);
  for (num i = 1; i < g.size(); ++i) {
    const A next = number<T>(g.member(i), e);
    acc = op == reduce_op::sum   ? static_cast<A>(acc + next)
          : op == reduce_op::max ? std::max(acc, next)
                                 : std::min(acc, next);
  }
  return narrow<T>(acc);
}

template <class T, class C>
void check_all_reduce(C& c, const typename C::group_type& g, num size) {
  for (reduce_op op : {reduce_op::sum, reduce_op::max, reduce_op::min}) {
    std::vector<T> x = values<T>(c.rank(), size);  // (size)
    c.all_reduce(g, std::span(x), op);
    for (num e = 0; e < size; ++e) require(x[at(e)] == reduced<T>(g, op, e), "all_reduce " + std::string(name_of(op)));
  }
}

template <class T, class C>
void check_even_parts(C& c, const typename C::group_type& g, num size) {
  const num n = g.size();
  std::vector<T> all(at(n * size));  // (n * size)
  c.all_gather(g, values<T>(c.rank(), size), std::span(all));
  for (num i = 0; i < n; ++i)
    for (num e = 0; e < size; ++e) require(all[at(i * size + e)] == value<T>(g.member(i), e), "all_gather");

  std::vector<T> mine(at(size));  // (size)
  c.reduce_scatter(g, values<T>(c.rank(), n * size), std::span(mine));
  for (num e = 0; e < size; ++e)
    require(mine[at(e)] == reduced<T>(g, reduce_op::sum, g.index() * size + e), "reduce_scatter");

  // In place: the part lies in the whole.
  std::vector<T> whole = values<T>(c.rank(), n * size);
  c.reduce_scatter(g, whole, std::span(whole).subspan(at(g.index() * size), at(size)));
  c.all_gather(g, std::span(whole).subspan(at(g.index() * size), at(size)), std::span(whole));
  for (num e = 0; e < n * size; ++e) require(whole[at(e)] == reduced<T>(g, reduce_op::sum, e), "in place");
}

/// Parts of 0, size, 2 * size, 0, ... elements: small and large members meet in one call.
template <class T, class C>
void check_uneven_parts(C& c, const typename C::group_type& g, num size) {
  const num n = g.size();
  std::vector<num> counts, offsets;
  num total = 0;
  for (num i = 0; i < n; ++i) {
    counts.push_back(i % 3 * size);
    offsets.push_back(total);
    total += counts.back();
  }
  const num my_count = counts[at(g.index())];
  const auto check = [&](const std::vector<T>& all, const std::string& what) {
    for (num i = 0; i < n; ++i)
      for (num e = 0; e < counts[at(i)]; ++e) require(all[at(offsets[at(i)] + e)] == value<T>(g.member(i), e), what);
  };
  std::vector<T> all(at(total));  // (sum of counts)
  c.all_gather(g, values<T>(c.rank(), my_count), std::span(all), counts);
  check(all, "uneven all_gather");

  for (num root = 0; root < n; ++root) {
    std::vector<T> gathered(at(root == g.index() ? total : 0));
    c.gather(g, values<T>(c.rank(), my_count), std::span(gathered), counts, root);
    if (root == g.index()) check(gathered, "gather");
  }

  std::vector<T> mine(at(my_count));  // (counts[me])
  c.reduce_scatter(g, values<T>(c.rank(), total), std::span(mine), counts);
  for (num e = 0; e < my_count; ++e)
    require(mine[at(e)] == reduced<T>(g, reduce_op::sum, offsets[at(g.index())] + e), "uneven reduce_scatter");
}

/// Member i sends j the elements 100 * j, 100 * j + 1, ... of its own; (i + 2 * j) % 4 * size of them.
template <class T, class C>
void check_all_to_all(C& c, const typename C::group_type& g, num size) {
  const num n = g.size(), me = g.index();
  std::vector<T> send, receive;
  std::vector<num> send_counts, receive_counts;
  num total = 0;
  for (num j = 0; j < n; ++j) {
    send_counts.push_back((me + 2 * j) % 4 * size);
    receive_counts.push_back((j + 2 * me) % 4 * size);
    const std::vector<T> part = values<T>(c.rank(), send_counts.back(), 100 * j);
    send.insert(send.end(), part.begin(), part.end());
    total += receive_counts.back();
  }
  receive.resize(at(total));
  c.all_to_all(g, send, send_counts, std::span(receive), receive_counts);
  num k = 0;
  for (num i = 0; i < n; ++i)
    for (num e = 0; e < receive_counts[at(i)]; ++e, ++k)
      require(receive[at(k)] == value<T>(g.member(i), 100 * me + e), "all_to_all");
}

template <class T, class C>
void check_broadcast(C& c, const typename C::group_type& g, num size) {
  for (num root = 0; root < g.size(); ++root) {
    std::vector<T> x = values<T>(c.rank(), size);
    c.broadcast(g, std::span(x), root);
    require(x == values<T>(g.member(root), size), "broadcast");
  }
}

/// Two messages to the next member around the ring, and back in the same order.
template <class T, class C>
void check_messages(C& c, const typename C::group_type& g, num size) {
  const num n = g.size(), next = (g.index() + 1) % n, previous = (g.index() + n - 1) % n;
  for (num k : {0, 1}) c.send(g, std::span<const T>(values<T>(c.rank(), size + k, k)), next);
  for (num k : {0, 1}) {
    std::vector<T> x(at(size + k));
    c.receive(g, std::span(x), previous);
    require(x == values<T>(g.member(previous), size + k, k), "messages");
  }
}

/// Two that were begun, with other calls on the same group and waits of any length between begin and end.
template <class T, class C>
void check_begun(C& c, const typename C::group_type& g, num size) {
  const num n = g.size(), next = (g.index() + 1) % n, previous = (g.index() + n - 1) % n;
  std::vector<num> counts;
  for (num i = 0; i < n; ++i) counts.push_back((i + 1) % 3 * size);
  const std::vector<T> mine = values<T>(c.rank(), counts[at(g.index())]);
  std::vector<T> all(at(std::accumulate(counts.begin(), counts.end(), num{0}))), message(at(size));
  const std::vector<num> expected_counts = counts;
  typename C::pending gathering = c.begin_all_gather(g, mine, std::span(all), counts);
  counts.assign(counts.size(), -1);  // are the caller's again, as the buffers are not
  c.send(g, std::span<const T>(values<T>(c.rank(), size, 7)), next);
  typename C::pending receiving = c.begin_receive(g, std::span(message), previous), moved;
  c.flush(g);
  check_all_reduce<T>(c, g, size);
  gathering.finish();
  moved = std::move(receiving);
  moved.finish();
  moved.finish();
  require(message == values<T>(g.member(previous), size, 7), "begun receive");
  num k = 0;
  for (num i = 0; i < n; ++i)
    for (num e = 0; e < expected_counts[at(i)]; ++e, ++k)
      require(all[at(k)] == value<T>(g.member(i), e), "begun all_gather");
}

template <class T, class C>
void check_collectives(C& c, const typename C::group_type& g) {
  for (num size : {0, 1, 5, 300}) {  // 300: too large for copies
    check_all_reduce<T>(c, g, size);
    check_even_parts<T>(c, g, size);
    check_uneven_parts<T>(c, g, size);
    check_all_to_all<T>(c, g, size);
    check_broadcast<T>(c, g, size);
    check_messages<T>(c, g, size);
    check_begun<T>(c, g, size);
    c.barrier(g);
  }
}

template <class C>
void check_types(C& c, const typename C::group_type& g) {
  check_collectives<double>(c, g);
  check_collectives<float>(c, g);
  check_collectives<bf16>(c, g);
  check_collectives<std::int64_t>(c, g);
  check_collectives<std::uint64_t>(c, g);
  check_collectives<std::int32_t>(c, g);
}

}  // namespace collective_checks
#endif  // SHARDPLAN_TESTS_UNIT_COLLECTIVE_CHECKS_HPP
