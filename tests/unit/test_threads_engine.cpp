// SPDX-License-Identifier: Apache-2.0
// The engine of threads: every collective against its definition, the same bits whatever the timing, the ledger, and
// every fault ends in an error that names it.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>       // isnan
#include <filesystem>  // directory_iterator
#include <random>
#include <string>
#include <thread>

#include "collective_checks.hpp"
#include "runtime/engine/threads/threads.hpp"

namespace {

using namespace shardplan;
using namespace shardplan::runtime;
using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;
using namespace collective_checks;

static_assert(Communicator<thread_communicator>);

num num_threads() {
  num n = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ++n;
  return n;
}

/// Whether there are `n` threads, or soon will be: a joined thread is listed a little longer.
bool threads_become(num n) {
  for (int i = 0; i < 200 && num_threads() != n; ++i) std::this_thread::sleep_for(10ms);
  return num_threads() == n;
}

/// The text of the Error that run() throws; "" when it throws none. At most `limit` passes, and no thread stays.
template <class Error = engine_error>
std::string failure(num world, std::chrono::milliseconds timeout, std::chrono::milliseconds limit,
                    const std::function<void(thread_communicator&)>& body) {
  const num threads_before = num_threads();
  const auto begin = clock_type::now();
  std::string text;
  try {
    run(world, timeout, body);
  } catch (const Error& e) {
    text = e.what();
  }
  CHECK(clock_type::now() - begin < limit);
  CHECK(threads_become(threads_before));
  return text;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("threads: every collective on every group of a 2x2x2 mesh") {
  run(8, 20s, [](thread_communicator& c) {
    for (axis_set axes : cube_axes()) {
      const rank_group ranks = select(cube(), c.rank(), axes);
      const thread_group g = c.group(ranks, axes);
      require(g.size() == ranks.size() && g.index() == ranks.index && g.axes() == axes, "group");
      for (num i = 0; i < g.size(); ++i) require(g.member(i) == ranks.member(i), "member");
      check_types(c, g);
    }
  });
}

TEST_CASE("threads: every collective on odd and strided groups") {
  run(6, 20s, [](thread_communicator& c) {
    const mesh m{{{{axis::fsdp, 3}, {axis::tp, 2}}, 2}};
    check_types(c, c.group(select(m, c.rank(), axis::fsdp), axis::fsdp));  // ranks 0, 2, 4 and 1, 3, 5
  });
  run(5, 20s, [](thread_communicator& c) { check_types(c, c.group(everybody(5, c.rank()), axis::ep)); });
}

TEST_CASE("threads: a world of one") {
  run(1, 20s, [](thread_communicator& c) {
    require(c.rank() == 0 && c.world_size() == 1, "rank");
    check_types(c, c.group(everybody(1, 0), axis::tp));
  });
}

TEST_CASE("threads: sums are in member order, with the same bits whatever the timing") {
  for (num size : {7, 3001}) {
    std::vector<std::vector<double>> in(5, std::vector<double>(at(size)));
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    for (auto& row : in)
      for (double& x : row) x = normal(random) * std::exp(8 * normal(random));
    std::vector<double> expected = in[0], backwards = in[4];
    for (std::size_t i = 1; i < 5; ++i)
      for (std::size_t e = 0; e < at(size); ++e) {
        expected[e] += in[i][e];
        backwards[e] += in[4 - i][e];
      }
    CHECK(expected != backwards);  // the order does matter for these numbers
    run(5, 20s, [&](thread_communicator& c) {
      const thread_group g = c.group(everybody(5, c.rank()), axis::tp);
      std::mt19937 pause(static_cast<unsigned>(c.rank()));
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::this_thread::sleep_for(std::chrono::microseconds(pause() % 1000));
        std::vector<double> x = in[at(c.rank())];
        c.all_reduce(g, std::span(x), reduce_op::sum);
        require(x == expected, "all_reduce");
        std::this_thread::sleep_for(std::chrono::microseconds(pause() % 1000));
        const std::vector<num> counts = {0, size - 4, 1, 3, 0};
        const num first[] = {0, 0, size - 4, size - 3, size};
        std::vector<double> mine(at(counts[at(c.rank())]));
        c.reduce_scatter(g, in[at(c.rank())], std::span(mine), counts);
        for (std::size_t e = 0; e < mine.size(); ++e)
          require(mine[e] == expected[at(first[c.rank()]) + e], "reduce_scatter");
      }
    });
  }
}

TEST_CASE("threads: a NaN survives max and min, and integers wrap") {
  run(3, 20s, [](thread_communicator& c) {
    const thread_group g = c.group(everybody(3, c.rank()), axis::tp);
    for (num holder = 0; holder < 3; ++holder)
      for (reduce_op op : {reduce_op::max, reduce_op::min, reduce_op::sum}) {
        double x = c.rank() == holder ? std::nan("") : static_cast<double>(c.rank());
        c.all_reduce(g, std::span(&x, 1), op);
        require(std::isnan(x), "NaN");
      }
    num big = INT64_MAX;
    c.all_reduce(g, std::span(&big, 1), reduce_op::sum);
    require(big == INT64_MAX - 2, "wrap");  // 3 * (2^63 - 1) modulo 2^64
  });
}

TEST_CASE("threads: different groups do not wait for each other") {
  // Ranks 0 and 1 finish 200 collectives before rank 2 comes to its first.
  std::atomic<bool> first_done{false};
  run(4, 20s, [&](thread_communicator& c) {
    const mesh m{{{{axis::fsdp, 2}, {axis::tp, 2}}, 2}};
    const thread_group g = c.group(select(m, c.rank(), axis::tp), axis::tp);
    if (c.rank() == 2) first_done.wait(false);
    for (int i = 0; i < 200; ++i) check_all_reduce<double>(c, g, i);
    if (c.rank() == 0) {
      first_done = true;
      first_done.notify_all();
    }
  });
  // And when all groups of a cube are used by turns, by ranks of different speed, nothing is mixed up.
  run(8, 20s, [](thread_communicator& c) {
    std::mt19937 pause(static_cast<unsigned>(c.rank()));
    for (int i = 0; i < 30; ++i)
      for (axis_set axes : cube_axes()) {
        if (pause() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pause() % 300));
        const thread_group g = c.group(select(cube(), c.rank(), axes), axes);
        check_all_reduce<float>(c, g, i % 2 == 0 ? 3 : 200);
        check_all_to_all<std::int32_t>(c, g, i % 5);
      }
  });
}

TEST_CASE("threads: sums of bf16 are formed in float and rounded once, and count two bytes") {
  // 256 + 1 is 256 again in bf16, whose next number is 258.
  const auto mine = [](num rank, num e) { return narrow<bf16>(rank == 0 ? 256.0f : e % 2 == 0 ? 1.0f : -0.5f); };
  for (num size : {num{3}, num{5000}}) {
    const std::vector<recorder> ledgers = run(4, 20s, [&](thread_communicator& c) {
      const auto g = c.group(everybody(4, c.rank()), axis::fsdp);
      std::vector<bf16> x(at(size)), all(at(4 * size)), part(at(size));
      for (num e = 0; e < size; ++e) x[at(e)] = mine(c.rank(), e);
      for (num e = 0; e < 4 * size; ++e) all[at(e)] = mine(c.rank(), e);
      c.all_reduce(g, std::span(x));
      c.reduce_scatter(g, all, std::span(part));
      for (num e = 0; e < size; ++e) {
        require(x[at(e)] == narrow<bf16>(e % 2 == 0 ? 259.0f : 254.5f), "all_reduce");  // 260: ties to even
        require(part[at(e)] == narrow<bf16>((c.rank() * size + e) % 2 == 0 ? 259.0f : 254.5f), "reduce_scatter");
      }
    });
    for (const recorder& r : ledgers) {
      CHECK(r.entries().at(0).bytes == 2 * size);
      CHECK(r.entries().at(1).bytes == 8 * size);
      CHECK(r.entries().at(1).kept == 2 * size);
    }
  }
}

TEST_CASE("threads: messages are buffered, and matched in order by group, sender and receiver") {
  run(3, 20s, [](thread_communicator& c) {
    const thread_group tp = c.group(everybody(3, c.rank()), axis::tp);
    const thread_group pp = c.group(everybody(3, c.rank()), axis::pp);  // the same ranks, another group
    const auto send = [&](const thread_group& g, num what, num to) { c.send(g, std::span<const num>(&what, 1), to); };
    const auto receive = [&](const thread_group& g, num from) {
      num what = 0;
      c.receive(g, std::span(&what, 1), from);
      return what;
    };
    if (c.rank() < 2) {
      for (num i = 0; i < 100; ++i) {
        send(tp, 1000 * c.rank() + i, 2);
        send(pp, 5000 + 1000 * c.rank() + i, 2);
      }
      require(receive(tp, 2) == 7, "answer");
    } else {
      for (num i = 99; i >= 0; --i) require(receive(pp, 1) == 6099 - i, "pp from 1");
      for (num from : {1, 0})
        for (num i = 0; i < 100; ++i) require(receive(tp, from) == 1000 * from + i, "tp");
      for (num i = 0; i < 100; ++i) require(receive(pp, 0) == 5000 + i, "pp from 0");
      for (num to : {0, 1}) send(tp, 7, to);
    }
  });
}

TEST_CASE("threads: the ledger has what was handed over") {
  const std::vector<recorder> ledgers = run(2, 20s, [](thread_communicator& c) {
    const thread_group g = c.group(everybody(2, c.rank()), axis::tp | axis::fsdp_cp);
    rank_group self;
    self.first = c.rank();
    const thread_group one = c.group(self, axis::pp);
    std::vector<double> x(6);
    std::vector<float> y(4);
    c.label(phase::forward, 3);
    c.all_reduce(g, std::span(x), reduce_op::max);
    c.all_reduce(one, std::span(x), reduce_op::max);
    c.barrier(g);
    c.all_gather(g, std::span(x).first(3), std::span(x));
    c.label(phase::loss);
    c.reduce_scatter(g, y, std::span(y).subspan(2 * at(c.rank()), 2));
    const std::vector<num> send = c.rank() == 0 ? std::vector<num>{1, 3} : std::vector<num>{0, 1};
    const std::vector<num> receive = c.rank() == 0 ? std::vector<num>{1, 0} : std::vector<num>{3, 1};
    std::vector<std::int32_t> out(at(send[0] + send[1])), in(at(receive[0] + receive[1]));
    c.all_to_all(g, out, send, std::span(in), receive);
    c.broadcast(g, std::span(y), 1);
    c.label(phase::collect, 0);
    if (c.rank() == 0) c.send(g, std::span(y), 1);
    if (c.rank() == 1) c.receive(g, std::span(y), 0);
    const std::vector<num> counts = {5, 1};
    std::vector<double> whole(c.rank() == 0 ? 6 : 0);
    c.gather(g, std::span(x).first(at(counts[at(c.rank())])), std::span(whole), counts, 0);
  });
  const axis_set both = axis::tp | axis::fsdp_cp;
  const std::vector<ledger_entry> first = {
      {operation::all_reduce, both, 2, 48, 0, false, phase::forward, 3},
      {operation::all_gather, both, 2, 24, 0, false, phase::forward, 3},
      {operation::reduce_scatter, both, 2, 16, 8, false, phase::loss, -1},
      {operation::all_to_all, both, 2, 16, 4, false, phase::loss, -1},
      {operation::broadcast, both, 2, 16, 0, false, phase::loss, -1},
      {operation::send, both, 2, 16, 0, false, phase::collect, 0},
      {operation::gather, both, 2, 40, 40, true, phase::collect, 0},
  };
  const std::vector<ledger_entry> second = {
      {operation::all_reduce, both, 2, 48, 0, false, phase::forward, 3},
      {operation::all_gather, both, 2, 24, 0, false, phase::forward, 3},
      {operation::reduce_scatter, both, 2, 16, 8, false, phase::loss, -1},
      {operation::all_to_all, both, 2, 4, 4, false, phase::loss, -1},
      {operation::broadcast, both, 2, 16, 0, true, phase::loss, -1},
      {operation::receive, both, 2, 16, 0, false, phase::collect, 0},
      {operation::gather, both, 2, 8, 0, false, phase::collect, 0},
  };
  REQUIRE(ledgers.size() == 2);
  CHECK(ledgers[0].entries() == first);
  CHECK(ledgers[1].entries() == second);
  const auto wires = [](const std::vector<ledger_entry>& entries) {
    std::vector<num> bytes;
    for (const ledger_entry& e : entries) bytes.push_back(wire_bytes(e));
    return bytes;
  };
  CHECK(wires(first) == std::vector<num>{48, 24, 8, 12, 0, 16, 0});
  CHECK(wires(second) == std::vector<num>{48, 24, 8, 0, 16, 0, 8});
}

TEST_CASE("ledger: bytes on the wire") {
  const auto wire = [](operation what, num bytes, num kept = 0, bool root = false) {
    return wire_bytes({what, axis::tp, 4, bytes, kept, root});
  };
  CHECK(wire(operation::all_reduce, 80) == 120);
  CHECK(wire(operation::all_reduce, 81) == 122);  // 121.5
  CHECK(wire(operation::all_gather, 80) == 240);
  CHECK(wire(operation::reduce_scatter, 80, 20) == 60);
  CHECK(wire(operation::all_to_all, 80, 8) == 72);
  CHECK(wire(operation::broadcast, 80) == 0);
  CHECK(wire(operation::broadcast, 80, 0, true) == 240);
  CHECK(wire(operation::gather, 80) == 80);
  CHECK(wire(operation::gather, 80, 80, true) == 0);
  CHECK(wire(operation::send, 80) == 80);
  CHECK(wire(operation::send, 80, 80) == 0);
  CHECK(wire(operation::receive, 80) == 0);
}

TEST_CASE("threads fault: a rank that throws ends the run, with the type and the rank") {
  const auto waits_for_thrower = [](auto thrown) {
    return [=](thread_communicator& c) {
      const thread_group g = c.group(everybody(4, c.rank()), axis::tp);
      check_all_reduce<double>(c, g, 300);
      if (c.rank() == 3) throw thrown;
      if (c.rank() == 2) {
        double x = 0;
        c.receive(g, std::span(&x, 1), 3);
      } else {
        check_all_reduce<double>(c, g, 300);
      }
    };
  };
  CHECK(failure<input_error>(4, 20s, 2s, waits_for_thrower(input_error("no file"))) == "rank 3: no file");
  CHECK(failure<plan_error>(4, 20s, 2s, waits_for_thrower(plan_error("unequal"))) == "rank 3: unequal");
  CHECK(failure(4, 20s, 2s, waits_for_thrower(engine_error("cable"))) == "rank 3: cable");
  CHECK(failure(4, 20s, 2s, waits_for_thrower(std::out_of_range("index"))) == "rank 3: index");
  CHECK(failure(4, 20s, 2s, waits_for_thrower(42)) == "rank 3: an exception that is no std::exception");
}

TEST_CASE("threads fault: a rank that throws while others are amid large collectives") {
  // The buffers of ranks that leave must outlive the others' reading: the address sanitizer looks on.
  for (int repeat = 0; repeat < 40; ++repeat)
    CHECK(
        failure(6, 20s, 2s, [&](thread_communicator& c) {
          const thread_group g = c.group(select({{{{axis::fsdp, 2}, {axis::tp, 3}}, 2}}, c.rank(), axis::tp), axis::tp);
          for (int i = 0;; ++i) {
            if (c.rank() == 0 && i == 2 + repeat % 8) throw std::runtime_error("enough");
            std::vector<double> x(8000, 1.0), all(24000);
            c.all_reduce(g, std::span(x), reduce_op::sum);
            c.all_gather(g, x, std::span(all));
          }
        }) == "rank 0: enough");
}

TEST_CASE("threads fault: buffers stay until nobody reads them, though their ranks were woken by a failure") {
  // Ranks 2 and 3 wait for rank 1, which alone has much to read of theirs, when rank 0 fails.
  for (int repeat = 0; repeat < 10; ++repeat)
    CHECK(failure(4, 20s, 10s, [&](thread_communicator& c) {
            if (c.rank() == 0) {
              std::this_thread::sleep_for(std::chrono::milliseconds(20 + 3 * repeat));
              throw std::runtime_error("enough");
            }
            rank_group ranks = everybody(3, c.rank() - 1);
            ranks.first = 1;
            const thread_group g = c.group(ranks, axis::tp);
            const num size = 1 << 20;
            const std::vector<num> counts = {size, 0, 0};
            std::vector<double> mine(at(counts[at(g.index())]));
            while (true) {
              const std::vector<double> all(at(size), 1.0);
              c.reduce_scatter(g, all, std::span(mine), counts);
            }
          }) == "rank 0: enough");
}

TEST_CASE("threads fault: long work between collectives may ask whether the run has failed") {
  CHECK(failure(2, 20s, 2s, [](thread_communicator& c) {
          if (c.rank() == 0) throw std::runtime_error("enough");
          while (true) {
            std::this_thread::sleep_for(1ms);
            c.check_abort();
          }
        }) == "rank 0: enough");
}

TEST_CASE("threads fault: an abort that the body swallows is met again") {
  CHECK(failure(2, 20s, 2s, [](thread_communicator& c) {
          const thread_group g = c.group(everybody(2, c.rank()), axis::tp);
          if (c.rank() == 0) throw std::runtime_error("enough");
          try {
            c.barrier(g);
          } catch (...) {
          }
          c.barrier(g);
        }) == "rank 0: enough");
}

TEST_CASE("threads fault: a rank that returns while others wait for it") {
  const std::string text = failure(3, 20s, 2s, [](thread_communicator& c) {
    const thread_group g = c.group(everybody(3, c.rank()), axis::cp);
    if (c.rank() == 1) return;
    c.label(phase::forward, 2);
    std::vector<float> x(4);
    if (c.rank() == 0) std::this_thread::sleep_for(50ms);  // comes to wait after the return
    c.all_reduce(g, std::span(x), reduce_op::sum);
  });
  CHECK(contains(text, "rank 1 returned"));
  CHECK(contains(text, "all_reduce(sum) of 4 float over cp (forward, layer 2)"));

  const std::string message = failure(2, 20s, 2s, [](thread_communicator& c) {
    const thread_group g = c.group(everybody(2, c.rank()), axis::pp);
    num x = 0;
    if (c.rank() == 0) c.receive(g, std::span(&x, 1), 1);
  });
  CHECK(message ==
        "rank 1 returned while others wait: rank 0 waits for rank 1 in receive of 1 int64 from member 1 over pp "
        "(parameters)");
}

TEST_CASE("threads fault: a rank that stalls") {
  const std::string text = failure(4, 300ms, 1000ms, [](thread_communicator& c) {
    const thread_group g = c.group(everybody(4, c.rank()), axis::tp);
    c.label(phase::forward, 1);
    c.barrier(g);
    if (c.rank() == 2) std::this_thread::sleep_for(450ms);  // longer than the timeout, shorter than with its grace
    c.label(phase::forward, 2);
    std::vector<double> x(1000);
    c.all_reduce(g, std::span(x), reduce_op::sum);
  });
  CHECK(text ==
        "no progress for 300 ms: rank 2 is absent (last call: barrier over tp (forward, layer 1)); ranks 0, 1, 3 wait "
        "for rank 2 in all_reduce(sum) of 1000 double over tp (forward, layer 2)");
}

TEST_CASE("threads fault: a rank that is stuck for good is left behind") {
  const num threads_before = num_threads();
  const auto stuck_until = std::make_shared<std::atomic<bool>>(false);  // outlives the run by the body's copy
  const auto begin = clock_type::now();
  std::string text;
  try {
    run(3, 200ms, [stuck_until](thread_communicator& c) {
      const thread_group g = c.group(everybody(3, c.rank()), axis::tp);
      if (c.rank() == 0) stuck_until->wait(false);
      c.barrier(g);
    });
  } catch (const engine_error& e) {
    text = e.what();
  }
  CHECK(clock_type::now() - begin < 900ms);
  CHECK(text ==
        "no progress for 200 ms: rank 0 is absent (no call yet); ranks 1, 2 wait for rank 0 in barrier over tp "
        "(parameters)");
  CHECK(threads_become(threads_before + 1));
  *stuck_until = true;  // it meets the abort at its barrier and ends
  stuck_until->notify_all();
  CHECK(threads_become(threads_before));
}

TEST_CASE("threads fault: ranks that wait for each other") {
  const std::string text = failure(2, 200ms, 900ms, [](thread_communicator& c) {
    const thread_group g = c.group(everybody(2, c.rank()), axis::pp);
    double x = 0;
    c.receive(g, std::span(&x, 1), 1 - c.rank());
  });
  CHECK(contains(text, "every rank waits for another"));
  CHECK(contains(text, "rank 0 waits for rank 1 in receive of 1 double from member 1 over pp"));
  CHECK(contains(text, "rank 1 waits for rank 0 in receive of 1 double from member 0 over pp"));
}

TEST_CASE("threads fault: messages of others do not prolong a wait") {
  const std::string text = failure(3, 200ms, 900ms, [](thread_communicator& c) {
    const thread_group g = c.group(everybody(3, c.rank()), axis::pp);
    num x = 0;
    if (c.rank() == 0) c.receive(g, std::span(&x, 1), 1);
    for (int i = 0; i < 2000 / 20; ++i) {
      if (c.rank() == 2) c.send(g, std::span(&x, 1), 0);
      std::this_thread::sleep_for(20ms);
      c.check_abort();
    }
  });
  CHECK(contains(text, "no progress for 200 ms: rank 1 is absent (no call yet); rank 0 waits for rank 1 in receive"));
}

TEST_CASE("threads: the timeout is of one wait, not of the run") {
  CHECK(failure(2, 200ms, 5s, [](thread_communicator& c) {
          const thread_group g = c.group(everybody(2, c.rank()), axis::pp);
          for (int i = 0; i < 6; ++i) {
            if (c.rank() == i % 2) std::this_thread::sleep_for(60ms);
            c.barrier(g);
          }
        }) == "");
}

TEST_CASE("threads fault: members that disagree") {
  // Rank 0 and 2 call as told; rank 1 otherwise. Small and large calls.
  for (num size : {4, 400}) {
    const auto disagree = [&](auto usual, auto otherwise) {
      return failure(3, 5s, 2s, [&](thread_communicator& c) {
        const thread_group g = c.group(everybody(3, c.rank()), axis::tp);
        c.label(phase::forward, 7);
        std::vector<double> x(at(size)), y(at(3 * size + 3));
        if (c.rank() == 1)
          otherwise(c, g, x, y);
        else
          usual(c, g, x, y);
      });
    };
    using buffer = std::vector<double>;
    const auto reduce_sum = [](thread_communicator& c, const thread_group& g, buffer& x, buffer&) {
      c.all_reduce(g, std::span(x), reduce_op::sum);
    };
    const std::string usual =
        "rank 0 calls all_reduce(sum) of " + std::to_string(size) + " double over tp (forward, layer 7)";
    const auto expect = [&](const std::string& text, const std::string& other) {
      CHECK(text == "rank 0 and rank 1 disagree: " + usual + ", rank 1 calls " + other + " over tp (forward, layer 7)");
    };
    const std::string same = std::to_string(size), more = std::to_string(size + 1);
    expect(disagree(reduce_sum,
                    [](thread_communicator& c, const thread_group& g, buffer& x, buffer&) {
                      x.push_back(0);
                      c.all_reduce(g, std::span(x), reduce_op::sum);
                    }),
           "all_reduce(sum) of " + more + " double");
    expect(disagree(reduce_sum, [](thread_communicator& c, const thread_group& g, buffer& x,
                                   buffer&) { c.all_reduce(g, std::span(x), reduce_op::max); }),
           "all_reduce(max) of " + same + " double");
    expect(disagree(reduce_sum,
                    [](thread_communicator& c, const thread_group& g, buffer& x, buffer&) {
                      std::vector<std::int64_t> z(x.size());
                      c.all_reduce(g, std::span(z), reduce_op::sum);
                    }),
           "all_reduce(sum) of " + same + " int64");
    expect(disagree(reduce_sum, [](thread_communicator& c, const thread_group& g, buffer& x,
                                   buffer&) { c.broadcast(g, std::span(x), 2); }),
           "broadcast of " + same + " double with root 2");
    expect(disagree(reduce_sum, [](thread_communicator& c, const thread_group& g, buffer&, buffer&) { c.barrier(g); }),
           "barrier");
    const auto broadcast_from = [](num root) {
      return [=](thread_communicator& c, const thread_group& g, buffer& x, buffer&) {
        c.broadcast(g, std::span(x), root);
      };
    };
    CHECK(contains(disagree(broadcast_from(0), broadcast_from(1)),
                   "rank 1 calls broadcast of " + same + " double with root 1 over tp"));
    CHECK(contains(disagree([](thread_communicator& c, const thread_group& g, buffer&,
                               buffer&) { c.all_reduce(g, std::span<double>(), reduce_op::sum); },
                            [](thread_communicator& c, const thread_group& g, buffer&, buffer&) { c.barrier(g); }),
                   "rank 1 calls barrier over tp"));
    const std::string over = disagree(reduce_sum, [](thread_communicator& c, const thread_group&, buffer& x, buffer&) {
      c.all_reduce(c.group(everybody(3, c.rank()), axis::ep), std::span(x), reduce_op::sum);
    });
    CHECK(contains(over, "over ep"));

    const auto gather_even = [](thread_communicator& c, const thread_group& g, buffer& x, buffer& y) {
      c.all_gather(g, x, std::span(y).first(3 * x.size()));
    };
    const std::string sizes =
        disagree(gather_even, [&](thread_communicator& c, const thread_group& g, buffer& x, buffer& y) {
          x.push_back(0);
          gather_even(c, g, x, y);
        });
    CHECK(sizes == "rank 0 and rank 1 disagree: rank 0 calls all_gather of " + same +
                       " double over tp (forward, layer 7), rank 1 calls all_gather of " + more +
                       " double over tp (forward, layer 7)");

    const auto exchange = [&](num sent) {
      return [=](thread_communicator& c, const thread_group& g, buffer&, buffer&) {
        const std::vector<num> send = {0, sent, 0}, receive = {0, 0, 0}, middle = {sent, sent, sent};
        buffer out(at(sent)), in(c.rank() == 1 ? at(3 * size) : 0);
        const std::vector<num> mine = {size, size, size};
        c.all_to_all(g, out, send, std::span(in), c.rank() == 1 ? mine : receive);
      };
    };
    CHECK(disagree(exchange(size), exchange(size)) == "");
    const std::string counts = disagree(exchange(size), exchange(size + 1));
    CHECK(contains(counts, "rank 1 and rank 1 disagree"));
    CHECK(contains(counts, "sends " + more + " elements, rank 1 expects " + same));
    CHECK(contains(disagree(exchange(size - 1), exchange(size)),
                   "rank 0 and rank 1 disagree in all_to_all of " + std::to_string(size - 1) + " double (counts 0+" +
                       std::to_string(size - 1) + "+0) over tp (forward, layer 7): rank 0 sends " +
                       std::to_string(size - 1) + " elements, rank 1 expects " + same));

    const auto gather_counts = [](std::vector<num> counts) {
      return [=](thread_communicator& c, const thread_group& g, buffer&, buffer& y) {
        const buffer mine(at(counts[at(c.rank())]));
        num total = 0;
        for (num k : counts) total += k;
        c.all_gather(g, mine, std::span(y).first(at(total)), counts);
      };
    };
    CHECK(contains(disagree(gather_counts({size, 1, 0}), gather_counts({size, 0, 1})),
                   "rank 1 calls all_gather of 0 double (counts " + same + "+0+1) over tp"));
  }
}

TEST_CASE("threads fault: messages of another size or type, or never received") {
  const auto messages = [](auto receive) {
    return failure(2, 5s, 2s, [=](thread_communicator& c) {
      const thread_group g = c.group(everybody(2, c.rank()), axis::pp);
      const std::vector<float> x(3);
      if (c.rank() == 0) c.send(g, std::span(x), 1);
      if (c.rank() == 1) receive(c, g);
    });
  };
  CHECK(messages([](thread_communicator& c, const thread_group& g) {
          std::vector<float> x(4);
          c.receive(g, std::span(x), 0);
        }) ==
        "rank 0 and rank 1 disagree: rank 0 calls send of 3 float to member 1 over pp (parameters), rank 1 calls "
        "receive of 4 float from member 0 over pp (parameters)");
  CHECK(contains(messages([](thread_communicator& c, const thread_group& g) {
                   std::vector<std::int32_t> x(3);
                   c.receive(g, std::span(x), 0);
                 }),
                 "rank 1 calls receive of 3 int32"));
  CHECK(messages([](thread_communicator&, const thread_group&) {}) ==
        "rank 1 never received what rank 0 sent: send of 3 float to member 1 over pp (parameters)");
}

TEST_CASE("threads fault: one rank's own mistakes") {
  const auto mistake = [](auto call) {
    return failure(2, 5s, 2s, [=](thread_communicator& c) {
      const thread_group g = c.group(everybody(2, c.rank()), axis::tp);
      std::vector<double> x(4), y(6);
      call(c, g, std::span(x), std::span(y));
    });
  };
  using span = std::span<double>;
  using comm = thread_communicator;
  CHECK(contains(mistake([](comm& c, const thread_group& g, span x, span y) { c.all_gather(g, x, y); }),
                 "rank 0 calls all_gather of 4 double over tp (parameters): 2 parts of 4 do not make 6 elements"));
  CHECK(contains(mistake([](comm& c, const thread_group& g, span x, span) { c.broadcast(g, x, 2); }),
                 "root 2 is no member of 2"));
  CHECK(contains(mistake([](comm& c, const thread_group& g, span x, span) { c.send(g, x, -1); }),
                 "the group has 2 members"));
  CHECK(contains(mistake([](comm& c, const thread_group& g, span x, span y) {
                   c.all_gather(g, x, y, std::vector<num>{4, 2});
                 }),
                 "rank 1 calls all_gather of 4 double (counts 4+2) over tp (parameters): its part has 4 elements, the "
                 "counts say 2"));
  CHECK(contains(mistake([](comm& c, const thread_group& g, span x, span y) {
                   c.reduce_scatter(g, y, x, std::vector<num>{7, -1});
                 }),
                 "counts 7+-1"));
  CHECK(contains(mistake([](comm& c, const thread_group& g, span x, span y) {
                   c.all_to_all(g, x, std::vector<num>{4}, y, std::vector<num>{3, 3});
                 }),
                 "1 send counts and 2 receive counts for 2 members"));
  CHECK(contains(mistake([](comm& c, const thread_group&, span, span) { c.group(everybody(3, c.rank()), axis::tp); }),
                 "rank 2 is not in the world"));
  CHECK(
      contains(mistake([](comm& c, const thread_group&, span, span) { c.group(everybody(2, 1 - c.rank()), axis::tp); }),
               "asks for a group over tp: it is not member"));
  CHECK(failure<input_error>(0, 1s, 1s, [](comm&) {}) == "a world of 0 ranks: at least 1");
  CHECK(failure<input_error>(2, 0ms, 1s, [](comm&) {}) == "a timeout of 0 ms: at least 1");
}
