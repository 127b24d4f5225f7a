// SPDX-License-Identifier: Apache-2.0
// The engine nccl with another library in the place of NCCL: every collective against its definition, groups in any
// order, messages that nobody waits for, and every fault ends in an error that names it.
#include <doctest/doctest.h>

#include <atomic>

#include "../unit/collective_checks.hpp"
#include "fake_library.hpp"
#include "ranks.hpp"
#include "runtime/engine/nccl/nccl.hpp"

namespace {

using namespace ranks;
using namespace collective_checks;
using clock_type = std::chrono::steady_clock;

static_assert(ProcessCommunicator<nccl_communicator>);

using body = std::function<void(nccl_communicator&)>;
using library_of = std::function<std::shared_ptr<device_library>(num rank)>;

/// Runs the ranks. What each threw.
std::vector<std::string> run_ranks(num world, std::chrono::milliseconds timeout, const library_of& library,
                                   const body& work) {
  const num port = free_port();
  std::vector<std::function<void()>> bodies;
  for (num r = 0; r < world; ++r)
    bodies.push_back([=] {
      nccl_communicator c(place_of(r, world, port), timeout, library(r));
      do_and_tell(c, [&] { work(c); });
    });
  return at_once(bodies);
}

std::vector<std::string> run_ranks(num world, std::chrono::milliseconds timeout, const body& work,
                                   std::shared_ptr<fake::shared_library> shared = nullptr) {
  if (shared == nullptr) shared = std::make_shared<fake::shared_library>();
  return run_ranks(
      world, timeout, [=](num) { return std::make_shared<fake::library>(shared); }, work);
}

void check_all_good(const std::vector<std::string>& thrown) {
  for (const std::string& text : thrown) CHECK(text == "");
}

nccl_group all(nccl_communicator& c) { return c.group(everybody(c.world_size(), c.rank()), {}); }

rank_group pair(num a, num b, num index) {
  rank_group g;
  g.first = a;
  g.index = index;
  g.steps.push_back({2, b - a});
  return g;
}

/// The first text that is not "aborted"; each other must be.
std::string only_failure(const std::vector<std::string>& thrown) {
  std::string text;
  for (const std::string& t : thrown) {
    CHECK(t != "");
    if (t != "aborted" && text.empty()) text = t;
  }
  return text;
}

}  // namespace

TEST_CASE("nccl: every collective on every group of a 2x2 mesh") {
  check_all_good(run_ranks(4, 20s, [](nccl_communicator& c) {
    const mesh square{{{{axis::cp, 2}, {axis::tp, 2}}, 2}};
    for (axis_set axes : {axis_set{}, axis_set(axis::cp), axis_set(axis::tp), axis::cp | axis::tp})
      check_collectives<double>(c, c.group(select(square, c.rank(), axes), axes));
  }));
}

TEST_CASE("nccl: every type, on three ranks") {
  check_all_good(run_ranks(3, 20s, [](nccl_communicator& c) {
    const auto g = all(c);
    check_all_reduce<float>(c, g, 5), check_all_to_all<float>(c, g, 5), check_messages<float>(c, g, 5);
    check_all_reduce<bf16>(c, g, 5), check_uneven_parts<bf16>(c, g, 5), check_messages<bf16>(c, g, 5);
    check_all_reduce<std::int64_t>(c, g, 5), check_uneven_parts<std::int64_t>(c, g, 5);
    check_all_reduce<std::uint64_t>(c, g, 5), check_even_parts<std::uint64_t>(c, g, 5);
    check_all_reduce<std::int32_t>(c, g, 5), check_broadcast<std::int32_t>(c, g, 5);
  }));
}

TEST_CASE("nccl: alone") {
  check_all_good(run_ranks(1, 1s, [](nccl_communicator& c) { check_collectives<double>(c, all(c)); }));
}

TEST_CASE("nccl: groups may be asked for, and first used, in different orders") {
  const auto shared = std::make_shared<fake::shared_library>();
  check_all_good(run_ranks(
      4, 20s,
      [](nccl_communicator& c) {
        // Each rank asks for its groups in an order of its own: an engine that connected here would not return.
        const num r = c.rank();
        const auto left = [&] { return c.group(pair(0, 1, r), axis::tp); };
        const auto middle = [&] { return c.group(pair(1, 2, r - 1), axis::cp); };
        const auto right = [&] { return c.group(pair(2, 3, r - 2), axis::tp); };
        double x = 1;
        const std::span<double> one(&x, 1);
        if (r == 1) middle(), left();
        if (r == 2) right(), middle();
        all(c);
        if (r <= 1) c.all_reduce(left(), one);
        if (r == 1 || r == 2) c.all_reduce(middle(), one);
        if (r >= 2) c.all_reduce(right(), one);
        c.all_reduce(all(c), one);
        require(x == 13, "sums over groups: " + std::to_string(x));  // 2 + 3 + 4 + 4
      },
      shared));
  CHECK(shared->num_lines == 4);  // one per group of ranks, whatever its axes
}

TEST_CASE("nccl: one communicator for groups of the same ranks") {
  const auto shared = std::make_shared<fake::shared_library>();
  check_all_good(run_ranks(
      2, 20s,
      [](nccl_communicator& c) {
        num x = c.rank();
        for (axis_set axes : {axis_set{}, axis_set(axis::tp), axis_set(axis::cp)}) {
          const auto g = c.group(everybody(2, c.rank()), axes);
          c.barrier(g);
          c.all_reduce(g, std::span<num>(&x, 1));
        }
        require(x == 4, "sum");
      },
      shared));
  CHECK(shared->num_lines == 1);
}

TEST_CASE("nccl: a send waits for nobody, and messages of phases overtake each other") {
  check_all_good(run_ranks(2, 20s, [](nccl_communicator& c) {
    const auto g = all(c);
    std::vector<double> first{1, 2, 3}, second{4, 5};
    if (c.rank() == 0) {
      c.label(phase::forward);
      c.send(g, std::span(first), 1);
      c.label(phase::backward);
      c.send(g, std::span(second), 1);
      first[0] = second[0] = 99;  // the buffers are the sender's again
      c.barrier(g);
    } else {
      c.barrier(g);  // the receiver comes to the messages when both have been sent
      std::vector<double> x(2), y(3);
      c.label(phase::backward);
      c.receive(g, std::span(x), 0);
      c.label(phase::forward);
      c.receive(g, std::span(y), 0);
      require(x == std::vector<double>{4, 5} && y == std::vector<double>{1, 2, 3}, "messages");
    }
  }));
}

TEST_CASE("nccl: what nobody has come to receive is not sent, however long that takes") {
  const auto shared = std::make_shared<fake::shared_library>();
  const auto waiting = [=] {
    const std::lock_guard lock(shared->mutex);
    return shared->num_waiting_sends;
  };
  check_all_good(run_ranks(
      3, 20s,
      [&](nccl_communicator& c) {
        const auto g = all(c);
        std::vector<double> x{1, 2}, y(2), z(2);
        if (c.rank() == 0)
          for (num i = 0; i < 3; ++i) x[0] = static_cast<double>(i), c.send(g, std::span(x), 1);
        double sum = 1;
        for (num i = 0; i < 3; ++i) {
          c.all_reduce(g, std::span<double>(&sum, 1));  // the first makes a communicator while messages wait
          require(waiting() == 0, "a send on the GPU without its receive");
          c.barrier(g);
          if (c.rank() == 1) {
            c.receive(g, std::span(y), 0);
            require(y[0] == static_cast<double>(i), "in order");
          }
          c.barrier(g);
        }
      },
      shared));
  CHECK(shared->num_waiting_sends == 0);
}

TEST_CASE("nccl: what was begun and is not finished is given up") {
  const auto shared = std::make_shared<fake::shared_library>();
  const auto thrown = run_ranks(
      2, 5s,
      [](nccl_communicator& c) {
        std::vector<double> all_of(2), mine(1), x(1);
        const std::vector<num> parts{1, 1};
        const auto gathering = c.begin_all_gather(all(c), mine, std::span(all_of), std::span<const num>(parts));
        if (c.rank() == 1) throw plan_error("leaves in between");
        c.all_reduce(all(c), std::span(x));
      },
      shared);
  CHECK(thrown[1] == "leaves in between");
  CHECK(thrown[0] == "aborted");
  CHECK(shared->num_aborted == 2);
}

TEST_CASE("nccl: messages to itself") {
  check_all_good(run_ranks(2, 20s, [](nccl_communicator& c) {
    const auto g = all(c);
    num x = 7 + c.rank(), y = 0;
    c.send(g, std::span<num>(&x, 1), c.rank());
    c.receive(g, std::span<num>(&y, 1), c.rank());
    require(y == x, "to itself");
  }));
}

TEST_CASE("nccl: members that disagree never reach the library") {
  const auto shared = std::make_shared<fake::shared_library>();
  const auto thrown = run_ranks(
      3, 20s,
      [](nccl_communicator& c) {
        std::vector<double> x(c.rank() == 2 ? 4 : 3);
        c.label(phase::forward, 5);
        c.all_reduce(all(c), std::span(x));
      },
      shared);
  for (const std::string& text : thrown)
    CHECK((text == "aborted" || text == "rank 0 and rank 2 disagree: rank 0 calls all_reduce(sum) of 3 double over no "
                                        "axis (forward, layer 5), rank "
                                        "2 calls all_reduce(sum) of 4 double over no axis (forward, layer 5)"));
  CHECK(shared->num_lines == 0);
}

TEST_CASE("nccl: a message of another length") {
  const auto thrown = run_ranks(2, 20s, [](nccl_communicator& c) {
    std::vector<float> x(c.rank() == 0 ? 3 : 4);
    if (c.rank() == 0) c.send(all(c), std::span(x), 1);
    if (c.rank() == 1) c.receive(all(c), std::span(x), 0);
  });
  CHECK(contains(only_failure(thrown), "rank 0 and rank 1 disagree: rank 0 calls send of 3 float to member 1"));
}

TEST_CASE("nccl: a message that nobody receives") {
  const auto thrown = run_ranks(2, 20s, [](nccl_communicator& c) {
    num x = 1;
    if (c.rank() == 0) c.send(all(c), std::span<num>(&x, 1), 1);
  });
  CHECK(contains(only_failure(thrown), "rank 1 never received what rank 0 sent: send of 1 int64 to member 1"));
}

TEST_CASE("nccl: an absent rank is named within the timeout") {
  const auto begin = clock_type::now();
  std::atomic<bool> all_told = false;
  std::vector<std::string> waits(3);
  const auto thrown = run_ranks(3, 400ms, [&](nccl_communicator& c) {
    if (c.rank() == 1) {
      const auto end = clock_type::now() + 3s;
      while (!all_told && clock_type::now() < end) c.check_abort(), std::this_thread::sleep_for(5ms);
      return;
    }
    double x = 0;
    try {
      c.label(phase::backward, 2);
      c.all_reduce(all(c), std::span<double>(&x, 1), reduce_op::max);
    } catch (...) {
      waits[at(c.rank())] = c.present_wait();
      throw;
    }
  });
  all_told = true;
  CHECK(clock_type::now() - begin < 3s);
  CHECK(contains(only_failure(thrown), "no progress for 400 ms"));
  CHECK(thrown[1] == "aborted");
  for (num r : {0, 2})
    CHECK(waits[at(r)] == "rank " + std::to_string(r) +
                              " waits for rank 1 in all_reduce(max) of 1 double over no axis (backward, layer 2)");
}

TEST_CASE("nccl: a rank that returns while others wait") {
  const auto thrown = run_ranks(2, 5s, [](nccl_communicator& c) {
    num x = 0;
    if (c.rank() == 0) return c.tell({}, 100ms);
    c.receive(all(c), std::span<num>(&x, 1), 0);
  });
  CHECK(contains(thrown[1], "rank 0 returned while others wait"));
}

TEST_CASE("nccl: a lost process") {
  const num port = free_port();
  const auto begin = clock_type::now();
  const auto shared = std::make_shared<fake::shared_library>();
  const auto rank = [&](num r, const body& work) {
    return [=] {
      nccl_communicator c(place_of(r, 3, port), 10s, std::make_shared<fake::library>(shared));
      work(c);
    };
  };
  const auto waits = [](nccl_communicator& c) {
    double x = 1;
    for (int i = 0; i < 2; ++i) c.all_reduce(all(c), std::span<double>(&x, 1));
  };
  const auto thrown = at_once({rank(0, waits), rank(1, waits), rank(2, [](nccl_communicator& c) {
                                 double x = 1;
                                 c.all_reduce(all(c), std::span<double>(&x, 1));
                               })});
  CHECK(clock_type::now() - begin < 5s);
  // The first to notice names rank 2, and is then lost itself.
  for (num r : {0, 1}) CHECK(contains(thrown[at(r)], "is lost"));
  CHECK((contains(thrown[0], "the process of rank 2 is lost") || contains(thrown[1], "the process of rank 2 is lost")));
}

namespace {

/// Fails, or never ends, in what one rank begins after so many calls.
struct faulty_line final : device_communicator {
  faulty_line(std::unique_ptr<device_communicator> real, bool hangs) : real_(std::move(real)), hangs_(hangs) {}
  bool ready() override { return real_->ready(); }
  bool stages(const device_call& call) override { return real_->stages(call); }
  void start(const device_call& call, const std::vector<nccl_step>& steps) override {
    if (!hangs_) throw engine_error("ncclAllReduce: unhandled system error");
    real_->start(call, steps);
  }
  bool done() override { return hangs_ ? false : real_->done(); }
  void abort() noexcept override { real_->abort(); }

  std::unique_ptr<device_communicator> real_;
  bool hangs_;
};

struct faulty_library final : device_library {
  faulty_library(std::shared_ptr<fake::shared_library> shared, bool hangs) : real(std::move(shared)), hangs(hangs) {}
  communicator_id make_id() override { return real.make_id(); }
  std::unique_ptr<device_communicator> connect(const communicator_id& id, num n, num index) override {
    return std::make_unique<faulty_line>(real.connect(id, n, index), hangs);
  }
  std::shared_ptr<std::byte> keep(const std::byte* from, num size) override { return real.keep(from, size); }
  void copy(const std::byte* from, num size, std::byte* to) override { real.copy(from, size, to); }

  fake::library real;
  bool hangs;
};

std::vector<std::string> run_with_fault_on_1(bool hangs, std::shared_ptr<fake::shared_library> shared) {
  const auto library = [=](num rank) -> std::shared_ptr<device_library> {
    if (rank == 1) return std::make_shared<faulty_library>(shared, hangs);
    return std::make_shared<fake::library>(shared);
  };
  return run_ranks(3, 400ms, library, [](nccl_communicator& c) {
    double x = 1;
    c.label(phase::forward, 1);
    c.all_reduce(all(c), std::span<double>(&x, 1));
    c.barrier(all(c));
  });
}

}  // namespace

TEST_CASE("nccl: an error of the library names rank, collective and peers, and all communicators are aborted") {
  const auto shared = std::make_shared<fake::shared_library>();
  const auto begin = clock_type::now();
  const auto thrown = run_with_fault_on_1(false, shared);
  CHECK(clock_type::now() - begin < 3s);
  CHECK(thrown[1] ==
        "rank 1 calls all_reduce(sum) of 1 double over no axis (forward, layer 1) with ranks 0, 1, 2: ncclAllReduce: "
        "unhandled system error");
  CHECK(thrown[0] == "aborted");
  CHECK(thrown[2] == "aborted");
  CHECK(shared->num_aborted == 3);
}

TEST_CASE("nccl: a collective that never ends in the library") {
  const auto shared = std::make_shared<fake::shared_library>();
  const auto begin = clock_type::now();
  const auto thrown = run_with_fault_on_1(true, shared);
  CHECK(clock_type::now() - begin < 3s);
  CHECK(contains(only_failure(thrown), "no progress for 400 ms"));
  CHECK(shared->num_aborted == 3);
}
