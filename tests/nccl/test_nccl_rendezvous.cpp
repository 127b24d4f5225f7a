// SPDX-License-Identifier: Apache-2.0
// Ranks find each other, or every one of them ends in time with a message that names who is missing or wrong.
#include <doctest/doctest.h>

#include <poll.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>

#include "ranks.hpp"
#include "runtime/engine/nccl/rendezvous.hpp"

namespace {

using namespace ranks;
using runtime::detail::rendezvous;
using clock_type = std::chrono::steady_clock;

std::function<void()> comes(num rank, num world, num port, std::chrono::milliseconds timeout,
                            const std::string& address = "127.0.0.1") {
  return [=] { rendezvous(place_of(rank, world, port, address), timeout); };
}

/// Connects to rank 0 as no rank does, says `bytes`, and stays until the other end closes or `stay` is over.
std::function<void()> stranger(num port, const std::string& bytes, std::chrono::milliseconds stay) {
  return [=] {
    std::string reason;
    runtime::detail::connection line{runtime::detail::descriptor()};
    for (int i = 0; i < 500 && !line.open(); ++i) {
      line = runtime::detail::connection(runtime::detail::connect_to("127.0.0.1", port, 100, reason));
      if (!line.open()) std::this_thread::sleep_for(2ms);
    }
    line.send(bytes);
    const auto end = clock_type::now() + stay;
    while (line.open() && clock_type::now() < end) {
      line.move();
      std::this_thread::sleep_for(1ms);
    }
  };
}

std::string say_hello(num version, num world, num rank) {
  runtime::detail::hello h{{}, version, world, rank};
  std::memcpy(h.magic, runtime::detail::hello::expected_magic, sizeof h.magic);
  return {reinterpret_cast<const char*>(&h), sizeof h};
}

void check_all_good(const std::vector<std::string>& thrown) {
  for (const std::string& text : thrown) CHECK(text == "");
}

}  // namespace

TEST_CASE("rendezvous: a world of one meets nobody") { rendezvous(place_of(0, 1, 0), 1ms); }

TEST_CASE("rendezvous: by address of IPv4, of IPv6, and by name") {
  for (const char* address : {"127.0.0.1", "::1", "localhost"}) {
    if (std::string(address) == "::1") {
      const runtime::detail::descriptor fd(::socket(AF_INET6, SOCK_STREAM, 0));
      if (!fd.open()) continue;
    }
    const num port = free_port();
    check_all_good(
        at_once({comes(2, 3, port, 10s, address), comes(0, 3, port, 10s, address), comes(1, 3, port, 10s, address)}));
  }
}

TEST_CASE("rendezvous: the others may come long before rank 0") {
  const num port = free_port();
  check_all_good(at_once({comes(1, 2, port, 10s), [&] {
                            std::this_thread::sleep_for(200ms);
                            comes(0, 2, port, 10s)();
                          }}));
}

TEST_CASE("rendezvous: frames of each rank come whole and in order, to one and to all") {
  constexpr num world = 4, num_frames = 40;
  const num port = free_port();
  const std::string large(3'000'000, 'x');  // more than sockets hold
  std::vector<std::function<void()>> bodies;
  for (num r = 0; r < world; ++r)
    bodies.push_back([=] {
      rendezvous line(place_of(r, world, port), 10s);
      for (num i = 0; i < num_frames; ++i) {
        line.send(runtime::detail::everybody, std::to_string(i));
        line.send((r + 1) % world, "to the next " + std::to_string(i));
      }
      line.send((r + 1) % world, large);
      const num previous = (r + world - 1) % world;
      std::vector<num> next(world), next_own(world);
      num left = (world - 1) * num_frames + num_frames + 1, byes = r == 0 ? world - 1 : 0;
      const auto count = [&](num from, const std::string* payload) {
        if (payload == nullptr) {
          if (left == 0) return;  // all have what they came for, and some leave sooner
          throw engine_error("rank " + std::to_string(from) + " is lost");
        }
        if (*payload == "bye") {
          --byes;
          return;
        }
        --left;
        if (*payload == large && from == previous) return;
        const bool own = payload->starts_with("to the next ");
        num& expected = (own ? next_own : next)[static_cast<std::size_t>(from)];
        if (own && from != previous) throw engine_error("for another");
        if (*payload != (own ? "to the next " : "") + std::to_string(expected++)) throw engine_error("out of order");
      };
      const auto end = clock_type::now() + 20s;
      while (left > 0 && clock_type::now() < end) line.receive(5ms, count);
      if (left != 0) throw engine_error(std::to_string(left) + " frames have not come");
      // What is told is handed on by rank 0, which leaves last; the others wait for it, so that none is lost before.
      if (r != 0) line.send(0, "bye");
      while (byes > 0 && clock_type::now() < end) line.receive(5ms, count);
      if (r == 0) line.send(shardplan::runtime::detail::everybody, "bye");
      if (r != 0) byes += 1;
      while (byes > 0 && clock_type::now() < end) line.receive(5ms, count);
      if (byes != 0) throw engine_error("somebody has not said bye");
    });
  check_all_good(at_once(bodies));
}

TEST_CASE("rendezvous: an absent rank is named within the timeout, by all") {
  const num port = free_port();
  const auto begin = clock_type::now();
  const auto thrown = at_once({comes(0, 4, port, 300ms), comes(2, 4, port, 300ms)});
  CHECK(clock_type::now() - begin < 3s);
  for (const std::string& text : thrown) {
    CHECK(contains(text, "within 300 ms not all of 4 ranks came to port " + std::to_string(port)));
    CHECK(contains(text, "ranks 1, 3 are absent"));
  }
  CHECK(thrown[1].starts_with("rank 2: "));
}

TEST_CASE("rendezvous: rank 0 does not come") {
  const num port = free_port();
  const auto begin = clock_type::now();
  const auto thrown = at_once({comes(1, 2, port, 200ms)});
  CHECK(clock_type::now() - begin < 3s);
  CHECK(contains(thrown[0], "rank 1 cannot reach rank 0 at MASTER_ADDR 127.0.0.1, port " + std::to_string(port)));
  CHECK(contains(thrown[0], "within 200 ms"));
}

TEST_CASE("rendezvous: a name that nobody knows") {
  const auto thrown = at_once({comes(1, 2, free_port(), 1s, "no such host")});
  CHECK(contains(thrown[0], "no such host"));
}

TEST_CASE("rendezvous: another world is refused by name, and named to those who wait") {
  const num port = free_port();
  const auto thrown = at_once({comes(0, 2, port, 500ms), comes(1, 3, port, 500ms)});
  CHECK(contains(thrown[1], "rank 1 has WORLD_SIZE 3, rank 0 has 2"));
  CHECK(contains(thrown[0], "rank 1 is absent"));
  CHECK(contains(thrown[0], "turned away: rank 1 has WORLD_SIZE 3, rank 0 has 2"));
}

TEST_CASE("rendezvous: a rank that comes twice is refused by name, and the world goes on") {
  const num port = free_port();
  std::atomic<bool> two_came = false;
  std::atomic<int> num_refused = 0;
  const auto one = [&] {
    try {
      comes(1, 3, port, 10s)();
    } catch (const engine_error& e) {
      if (!contains(e.what(), "two processes have RANK 1")) throw;
      ++num_refused;
      two_came = true;
    }
  };
  check_all_good(at_once({comes(0, 3, port, 10s), one, one, [&] {
                            while (!two_came) std::this_thread::sleep_for(1ms);
                            comes(2, 3, port, 10s)();
                          }}));
  CHECK(num_refused == 1);
}

TEST_CASE("rendezvous: another version") {
  const num port = free_port();
  const auto thrown = at_once({comes(0, 2, port, 400ms), stranger(port, say_hello(2, 2, 1), 2s)});
  CHECK(contains(thrown[0], "rank 1 speaks version 2 of the protocol, rank 0 version 1"));
}

TEST_CASE("rendezvous: strangers at the port hold nobody up") {
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("shrd"), std::string(), std::string(100000, '\0')}) {
    const num port = free_port();
    std::atomic<bool> stranger_came = false;
    check_all_good(at_once({comes(0, 2, port, 10s),
                            [&] {
                              stranger(port, bytes, 20ms)();
                              stranger_came = true;
                              stranger(port, bytes, 100ms)();
                            },
                            [&] {
                              while (!stranger_came) std::this_thread::sleep_for(1ms);
                              comes(1, 2, port, 10s)();
                            }}));
  }
  const num port = free_port();
  const auto thrown = at_once({comes(0, 2, port, 300ms), stranger(port, "GET / HTTP/1.1\r\n\r\n", 100ms)});
  CHECK(contains(thrown[0], "does not speak this protocol"));
}

TEST_CASE("rendezvous: what answers is not rank 0") {
  const num port = free_port();
  std::atomic<bool> done = false;
  const auto thrown =
      at_once({[&] { comes(1, 2, port, 2s)(); },
               [&] {
                 auto listeners = runtime::detail::listen_on(port);
                 std::vector<runtime::detail::connection> guests;
                 const auto end = clock_type::now() + 3s;
                 while (!done && clock_type::now() < end) {
                   for (auto& l : listeners)
                     for (auto fd = runtime::detail::accept_one(l); fd.open(); fd = runtime::detail::accept_one(l)) {
                       guests.emplace_back(std::move(fd));
                       guests.back().send("HTTP/1.1 400 Bad Request\r\n\r\n");
                     }
                   for (auto& g : guests) {
                     g.move();
                     if (!g.open()) done = true;
                   }
                   std::this_thread::sleep_for(1ms);
                 }
               }});
  CHECK(contains(thrown[0], "what answers at MASTER_PORT is not rank 0 of this program"));
}

TEST_CASE("rendezvous: the port is taken") {
  const num port = free_port();
  const auto listeners = runtime::detail::listen_on(port);
  const auto thrown = at_once({comes(0, 2, port, 1s)});
  CHECK(contains(thrown[0], "rank 0 cannot listen on port " + std::to_string(port)));
  CHECK(contains(thrown[0], "SHARDPLAN_MASTER_PORT"));
}

TEST_CASE("rendezvous: who ends is known to be lost") {
  const num port = free_port();
  const auto waits_for = [&](num rank, num who) {
    return [=] {
      rendezvous line(place_of(rank, 3, port), 10s);
      bool lost = false;
      const auto end = clock_type::now() + 5s;
      while (!lost && clock_type::now() < end)
        line.receive(5ms, [&](num from, const std::string* payload) { lost = lost || (from == who && !payload); });
      if (!lost) throw engine_error("not known");
    };
  };
  // Rank 2 leaves at once; rank 0 and then rank 1 hear of the next.
  check_all_good(at_once({waits_for(0, 2), waits_for(1, 0), comes(2, 3, port, 10s)}));
}
