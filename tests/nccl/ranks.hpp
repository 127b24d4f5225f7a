// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of a test, and meet by TCP as processes do.
#ifndef SHARDPLAN_TESTS_NCCL_RANKS_HPP
#define SHARDPLAN_TESTS_NCCL_RANKS_HPP

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/nccl/nccl.hpp"
#include "runtime/engine/nccl/place.hpp"
#include "runtime/engine/nccl/socket.hpp"
#include "runtime/error.hpp"

namespace ranks {

using namespace shardplan;
using namespace shardplan::runtime;
using namespace std::chrono_literals;

/// A port that nobody listens on.
inline num free_port() {
  const shardplan::runtime::detail::descriptor fd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof any;
  ::bind(fd.get(), reinterpret_cast<sockaddr*>(&any), size);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&any), &size);
  return ntohs(any.sin_port);
}

inline process_place place_of(num rank, num world, num port, const std::string& address = "127.0.0.1") {
  process_place p;
  p.rank = rank;
  p.local_rank = rank;
  p.world_size = world;
  p.address = address;
  p.port = port;
  return p;
}

/// Runs the bodies at the same time. What each threw: the text of an exception, "aborted" for run_aborted.
inline std::vector<std::string> at_once(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::string> thrown(bodies.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < bodies.size(); ++i)
    threads.emplace_back([&, i] {
      try {
        bodies[i]();
      } catch (const std::exception& e) {
        thrown[i] = e.what();
      } catch (const run_aborted&) {
        thrown[i] = "aborted";
      }
    });
  for (std::thread& t : threads) t.join();
  return thrown;
}

/// A rank's work, after which it tells the others how it went, as a process does.
inline void do_and_tell(nccl_communicator& c, const std::function<void()>& work) {
  const auto tell = [&](int exit_code) {
    verdict v;
    v.exit_code = exit_code;
    c.tell(v, 100ms);
    if (c.rank() == 0) c.wait_for_verdicts(exit_code == 0 ? 5s : 300ms);  // it hands on what the others say
  };
  try {
    work();
    c.require_all_received();
  } catch (...) {
    tell(3);
    throw;
  }
  tell(0);
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace ranks
#endif  // SHARDPLAN_TESTS_NCCL_RANKS_HPP
