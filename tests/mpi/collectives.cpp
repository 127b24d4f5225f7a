// SPDX-License-Identifier: Apache-2.0
// The engine of MPI, run by mpirun: every collective against its definition, and against the engine of threads, which
// must give the same bits, the same ledger and the same complaints. Usage: mpi_collectives [BYTES OF A CHUNK]
#include <cstdio>
#include <cstring>
#include <mutex>
#include <random>

#include "../unit/collective_checks.hpp"
#include "runtime/engine/mpi/mpi.hpp"
#include "runtime/engine/threads/threads.hpp"

namespace {

using namespace collective_checks;
using namespace std::chrono_literals;

static_assert(ProcessCommunicator<mpi_communicator>);

template <class C>
auto world_group(C& c) {
  return c.group(everybody(c.world_size(), c.rank()), axis::fsdp);
}

void check_groups(mpi_communicator& c) {
  check_types(c, world_group(c));
  if (c.world_size() != 8) return;
  for (axis_set axes : cube_axes()) {
    const rank_group ranks = select(cube(), c.rank(), axes);
    const mpi_group g = c.group(ranks, axes);
    require(g.size() == ranks.size() && g.index() == ranks.index && g.axes() == axes, "group");
    for (num i = 0; i < g.size(); ++i) require(g.member(i) == ranks.member(i), "member");
    check_collectives<double>(c, g);
    check_collectives<std::int32_t>(c, g);
  }
}

/// Numbers of many sizes, whose sum depends on the order of summing.
template <class T>
std::vector<T> random_values(num rank, num size) {
  std::mt19937_64 random(static_cast<std::uint64_t>(rank) * 1000 + static_cast<std::uint64_t>(size));
  std::vector<T> v(at(size));
  for (T& x : v)
    x = static_cast<T>(std::ldexp(static_cast<double>(random() % 2000) - 1000, static_cast<int>(random() % 20)));
  return v;
}

/// Every sum that this rank gets, one after another.
template <class T, class C>
std::vector<T> all_sums(C& c) {
  const auto g = world_group(c);
  std::vector<T> out;
  for (num size : {1, 7, 61, 64, 500, 3001}) {
    std::vector<T> x = random_values<T>(c.rank(), size);
    c.all_reduce(g, std::span(x));
    out.insert(out.end(), x.begin(), x.end());
    std::vector<T> part(at(size));
    c.reduce_scatter(g, random_values<T>(c.rank(), size * g.size()), std::span(part));
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

/// What `body` gives on every rank of the engine of threads, by rank.
template <class R, class Body>
std::vector<R> on_threads(num world, Body&& body) {
  std::vector<R> out(at(world));
  std::mutex mutex;
  run(world, 20s, [&](thread_communicator& c) {
    R mine = body(c);
    const std::lock_guard lock(mutex);
    out[at(c.rank())] = std::move(mine);
  });
  return out;
}

template <class T>
void check_bits(mpi_communicator& c) {
  const std::vector<T> ours = all_sums<T>(c);
  const std::vector<T> theirs =
      on_threads<std::vector<T>>(c.world_size(), [](thread_communicator& t) { return all_sums<T>(t); })[at(c.rank())];
  require(ours.size() == theirs.size() && std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(T)) == 0,
          "sums have other bits than with threads");
}

/// Messages under three labels and over two groups, received in another order than they were sent in.
void check_order_of_messages(mpi_communicator& c) {
  const num n = c.world_size(), next = (c.rank() + 1) % n, previous = (c.rank() + n - 1) % n;
  const mpi_group a = world_group(c), b = c.group(everybody(n, c.rank()), axis::tp);
  struct kind {
    const mpi_group* group;
    phase why;
    num size;
  };
  const std::vector<kind> kinds{{&a, phase::forward, 3}, {&a, phase::backward, 2000}, {&b, phase::forward, 70}};
  for (const kind& k : kinds)
    for (num i : {0, 1}) {
      c.label(k.why, 0);
      c.send(*k.group, std::span<const double>(values<double>(c.rank(), k.size, i)), next);
    }
  for (auto k = kinds.rbegin(); k != kinds.rend(); ++k)
    for (num i : {0, 1}) {
      c.label(k->why, 1);
      std::vector<double> x(at(k->size));
      c.receive(*k->group, std::span(x), previous);
      require(x == values<double>(previous, k->size, i), "messages are matched by group and phase, in order");
    }
}

/// All kinds of calls, for the ledger.
template <class C>
std::vector<ledger_entry> recorded(C& c) {
  c.ledger().clear();
  c.label(phase::forward, 3);
  check_collectives<float>(c, world_group(c));
  return c.ledger().entries();
}

void check_ledger(mpi_communicator& c) {
  const auto theirs = on_threads<std::vector<ledger_entry>>(
      c.world_size(), [](thread_communicator& t) { return recorded(t); })[at(c.rank())];
  require(!theirs.empty() && recorded(c) == theirs, "the ledger is another than with threads");
}

/// Calls about which ranks disagree: the last rank, and the others.
template <class C>
void disagree(C& c, int how) {
  const auto g = world_group(c);
  const num n = c.world_size();
  const bool last = c.rank() == n - 1;
  c.label(phase::backward, 2);
  std::vector<double> x(at(n * 300)), y(at(n * 300));
  std::vector<num> counts(at(n), 2), uneven = counts;
  uneven[0] = 3;
  const std::span<double> all(x), part(y);
  switch (how) {
    case 0:
      return c.all_reduce(g, all.first(last ? 4 : 5));
    case 1:
      return c.all_reduce(g, all.first(last ? 280 : 290));
    case 2:
      return last ? c.barrier(g) : c.all_reduce(g, all.first(5));
    case 3:
      return c.all_reduce(g, all.first(5), last ? reduce_op::max : reduce_op::sum);
    case 4:
      return c.broadcast(g, all.first(5), last ? 1 : 0);
    case 5:
      return c.all_gather(g, part.first(2), all.first(at(2 * n + (last ? 1 : 0))));
    case 6: {
      std::vector<std::int64_t> whole(5);
      return last ? c.all_reduce(g, std::span(whole)) : c.all_reduce(g, all.first(5));
    }
    case 7:
      return c.all_to_all(g, part.first(at(2 * n + (last ? 1 : 0))), last ? uneven : counts, all.first(at(2 * n)),
                          counts);
    case 8:
      return c.all_gather(last ? c.group(everybody(n, c.rank()), axis::tp) : g, part.first(2), all.first(at(2 * n)));
    default: {
      if (last) return c.send(g, std::span<const double>(all.first(at(5))), 0);
      if (c.rank() == 0) return c.receive(g, all.first(6), n - 1);
    }
  }
}
constexpr int num_disagreements = 10;

template <class Body>
std::string complaint(Body&& body) {
  try {
    body();
  } catch (const engine_error& e) {
    return e.what();
  }
  return "";
}

void check_disagreements(mpi_communicator& c) {
  for (int how = 0; how < num_disagreements; ++how) {
    const std::string theirs =
        complaint([&] { run(c.world_size(), 20s, [&](thread_communicator& t) { disagree(t, how); }); });
    const std::string ours = complaint([&] { disagree(c, how); });
    const bool concerns_all = how < num_disagreements - 1;
    require(!theirs.empty(), "threads find nothing wrong with case " + std::to_string(how));
    if (concerns_all || c.rank() == 0)
      require(ours == theirs, "case " + std::to_string(how) + ": '" + ours + "' is not '" + theirs + "'");
  }
}

/// The last thing that a communicator does.
void check_lost_messages(mpi_communicator& c) {
  if (c.rank() == 1) c.send(world_group(c), std::span<const double>(std::vector<double>(700)), 0);
  const std::string text = complaint([&] { c.require_all_received(); });
  const bool told = text.find("rank 0 never received what rank 1 sent: send of 700 double") != std::string::npos;
  require(told == (c.rank() == 0), "a lost message: '" + text + "'");
}

void check_all(mpi_communicator& c) {
  check_groups(c);
  check_bits<float>(c);
  check_bits<double>(c);
  check_bits<std::int64_t>(c);
  check_order_of_messages(c);
  check_ledger(c);
  check_disagreements(c);
  check_lost_messages(c);
}

}  // namespace

int main(int argc, char** argv) {
  mpi_options options;
  options.timeout = 60s;
  if (argc > 1) options.chunk_bytes = std::stol(argv[1]);
  mpi_process process(options);
  try {
    check_all(process.world());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %ld: %s\n", static_cast<long>(process.world().rank()), e.what());
    process.abort(1);
  }
  process.finish(0);
}
