// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/rendezvous.hpp"

#include <poll.h>

#include <algorithm>  // clamp
#include <cstring>    // memcpy
#include <thread>     // sleep_for

#include "runtime/engine/request.hpp"

namespace shardplan::runtime::detail {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds hub_grace{250};  // rank 0 knows who is absent: its word goes before ours

int ms_until(steady_clock::time_point end) {
  const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now());
  return static_cast<int>(std::clamp<milliseconds::rep>(left.count(), 0, 1000));
}

}  // namespace

rendezvous::rendezvous(const process_place& place, milliseconds timeout) : place_(place), timeout_(timeout) {
  if (place_.world_size == 1) return;
  const auto end = steady_clock::now() + timeout;
  if (place_.rank == 0) hub_ = std::make_unique<hub>(place_.world_size, place_.port, timeout);
  connect(end);
  wait_for_welcome(end + hub_grace);
}

void rendezvous::connect(steady_clock::time_point end) {
  // Rank 0 reaches itself, whatever name the others know it by.
  const std::string address = place_.rank == 0 ? "localhost" : place_.address;
  const auto pause = std::clamp(timeout_ / 100, milliseconds(2), milliseconds(100));
  std::string reason;
  while (true) {
    to_hub_ = connection(connect_to(address, place_.port, std::max(ms_until(end), 1), reason));
    if (to_hub_.open()) break;
    if (steady_clock::now() > end)
      throw collective_error("rank " + std::to_string(rank()) + " cannot reach rank 0 at MASTER_ADDR " + address +
                             ", port " + std::to_string(place_.port) + ", within " + std::to_string(timeout_.count()) +
                             " ms: " + reason);
    std::this_thread::sleep_for(pause);
  }
  hello mine{{}, hello::expected_version, place_.world_size, place_.rank};
  std::memcpy(mine.magic, hello::expected_magic, sizeof mine.magic);
  to_hub_.send({reinterpret_cast<const char*>(&mine), sizeof mine});
}

void rendezvous::wait_for_welcome(steady_clock::time_point end) {
  const auto fail = [&](const std::string& why) {
    throw collective_error("rank " + std::to_string(rank()) + ": " + why);
  };
  frame_head head;
  std::string payload;
  while (true) {
    to_hub_.move();
    if (next_frame(head, payload)) {
      if (head.peer == welcome) return;
      fail(head.peer == refused ? payload : "what answers at MASTER_PORT is not rank 0 of this program");
    }
    const std::string_view said = to_hub_.received();
    if (said.size() >= sizeof head) {
      std::memcpy(&head, said.data(), sizeof head);
      if (head.size < 0 || head.size > longest_frame || head.peer > everybody || head.peer < lost)
        fail("what answers at MASTER_PORT is not rank 0 of this program");
    }
    if (!to_hub_.open()) fail("rank 0 has closed the connection before all ranks came");
    if (steady_clock::now() > end)
      fail("rank 0 does not answer within " + std::to_string(timeout_.count()) + " ms at port " +
           std::to_string(place_.port));
    wait_until_ready(milliseconds(ms_until(end)));
  }
}

void rendezvous::wait_until_ready(milliseconds wait) {
  pollfd ready{to_hub_.fd(), static_cast<short>(to_hub_.has_to_send() ? POLLIN | POLLOUT : POLLIN), 0};
  ::poll(&ready, 1, static_cast<int>(wait.count()));
}

bool rendezvous::next_frame(frame_head& head, std::string& payload) {
  const std::string_view there = to_hub_.received();
  if (there.size() < sizeof head) return false;
  std::memcpy(&head, there.data(), sizeof head);
  if (head.size < 0 || there.size() - sizeof head < static_cast<std::size_t>(head.size)) return false;
  payload = there.substr(sizeof head, static_cast<std::size_t>(head.size));
  to_hub_.take(sizeof head + payload.size());
  return true;
}

void rendezvous::send(num to, std::string_view payload) {
  if (!to_hub_.open()) return;  // receive() says so
  to_hub_.send(to_frame(to, payload));
  to_hub_.move();
}

void rendezvous::receive(milliseconds wait, const receiver& hand_over) {
  if (place_.world_size == 1) return std::this_thread::sleep_for(wait);
  to_hub_.move();
  if (to_hub_.open() && to_hub_.received().empty() && wait.count() > 0) {
    wait_until_ready(wait);
    to_hub_.move();
  }
  frame_head head;
  std::string payload;
  while (next_frame(head, payload)) {
    if (head.peer >= 0) {
      hand_over(head.peer, &payload);
    } else if (head.peer == lost && payload.size() == sizeof(num)) {
      num who = 0;
      std::memcpy(&who, payload.data(), sizeof who);
      hand_over(who, nullptr);
    }
  }
  if (to_hub_.open()) return;
  hand_over(0, nullptr);
  std::this_thread::sleep_for(wait);
}

bool rendezvous::flush(milliseconds patience) {
  const auto end = steady_clock::now() + patience;
  for (to_hub_.move(); to_hub_.open() && to_hub_.has_to_send(); to_hub_.move()) {
    if (steady_clock::now() > end) return false;
    wait_until_ready(milliseconds(1));
  }
  return !to_hub_.has_to_send();
}

void rendezvous::close() {
  hub_.reset();
  to_hub_.close();
}

}  // namespace shardplan::runtime::detail
