// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/hub.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>  // any_of
#include <cstring>    // memcpy, memcmp

#include "runtime/engine/request.hpp"

namespace shardplan::runtime::detail {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds linger{250};  // for what is still to be told when the hub ends

std::string text(num value) { return std::to_string(value); }

}  // namespace

std::string to_frame(num peer, std::string_view payload) {
  const frame_head head{static_cast<num>(payload.size()), peer};
  std::string out(sizeof head, '\0');
  std::memcpy(out.data(), &head, sizeof head);
  return out += payload;
}

hub::hub(num world_size, num port, milliseconds timeout)
    : world_size_(world_size),
      port_(port),
      timeout_(timeout),
      listeners_(listen_on(port)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { serve(); }) {}

hub::~hub() {
  stop_ = true;
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  thread_.join();
}

void hub::serve() {
  while (!stop_) {
    wait();
    if (!listeners_.empty()) meet();
    for (num r = 0; r < world_size_; ++r) hand_on(r);
  }
  for (num r = 0; r < world_size_; ++r) hand_on(r);  // the last word of rank 0 may have come meanwhile
  const auto end = steady_clock::now() + linger;
  const auto busy = [&] {
    return std::any_of(members_.begin(), members_.end(),
                       [](const auto& m) { return m.second.open() && m.second.has_to_send(); });
  };
  while (busy() && steady_clock::now() < end) {
    wait();
    for (auto& [rank, member] : members_) member.move();
  }
}

/// Until anything can be done, but not for long.
void hub::wait() {
  std::vector<pollfd> all{{wake_.get(), POLLIN, 0}};
  for (const descriptor& l : listeners_) all.push_back({l.get(), POLLIN, 0});
  for (const connection& g : guests_) all.push_back({g.fd(), POLLIN, 0});
  for (const auto& [rank, member] : members_)
    if (member.open())
      all.push_back({member.fd(), static_cast<short>(member.has_to_send() ? POLLIN | POLLOUT : POLLIN), 0});
  constexpr int longest_ms = 20;
  ::poll(all.data(), all.size(), longest_ms);
}

/// Takes in who comes, until all have.
void hub::meet() {
  for (const descriptor& l : listeners_)
    for (descriptor fd = accept_one(l); fd.open(); fd = accept_one(l)) guests_.emplace_back(std::move(fd));
  std::vector<connection> silent;
  for (connection& guest : guests_) {
    guest.move();
    const std::string_view said = guest.received();
    const std::size_t size = std::min(said.size(), sizeof hello::magic);
    hello h;
    if (std::memcmp(said.data(), hello::expected_magic, size) != 0) {
      turn_away("a connection that does not speak this protocol was turned away");
    } else if (said.size() >= sizeof h) {
      std::memcpy(&h, said.data(), sizeof h);
      guest.take(sizeof h);
      greet(std::move(guest), h);
    } else if (guest.open()) {
      silent.push_back(std::move(guest));
    }
  }
  guests_ = std::move(silent);
  if (static_cast<num>(members_.size()) == world_size_) {
    for (auto& [rank, member] : members_) tell(rank, to_frame(welcome, ""));
    listeners_.clear();
    guests_.clear();
  } else if (steady_clock::now() - begin_ > timeout_) {
    give_up();
  }
}

void hub::greet(connection guest, const hello& said) {
  const std::string who = "rank " + text(said.rank);
  std::string why;
  if (said.version != hello::expected_version)
    why = who + " speaks version " + text(said.version) + " of the protocol, rank 0 version " +
          text(hello::expected_version);
  else if (said.world_size != world_size_)
    why = who + " has WORLD_SIZE " + text(said.world_size) + ", rank 0 has " + text(world_size_);
  else if (said.rank < 0 || said.rank >= world_size_)
    why = who + " is not in a world of " + text(world_size_);
  else if (members_.contains(said.rank))
    why = "two processes have RANK " + text(said.rank);
  if (why.empty()) {
    members_.emplace(said.rank, std::move(guest));
    return;
  }
  turn_away("turned away: " + why);
  guest.send(to_frame(refused, why));
  guest.move();
}

/// For the message, should not all come.
void hub::turn_away(const std::string& why) {
  constexpr std::size_t enough = 500;
  if (turned_away_.size() < enough) turned_away_ += "; " + why;
}

/// Tells those who came who did not.
void hub::give_up() {
  std::vector<num> absent;
  for (num r = 0; r < world_size_; ++r)
    if (!members_.contains(r)) absent.push_back(r);
  const std::string why = "within " + text(timeout_.count()) + " ms not all of " + text(world_size_) +
                          " ranks came to port " + text(port_) + " of rank 0: " + describe_ranks(absent) +
                          (absent.size() == 1 ? " is absent" : " are absent") + turned_away_;
  for (const auto& [rank, member] : members_) tell(rank, to_frame(refused, why));
  listeners_.clear();
  guests_.clear();
}

void hub::tell(num to, std::string_view frame) {
  const auto found = members_.find(to);
  if (found == members_.end() || !found->second.open()) return;
  found->second.send(frame);
  found->second.move();
}

void hub::hand_on(num from) {
  const auto found = members_.find(from);
  if (found == members_.end() || buried_.contains(from)) return;  // what came before a connection closed is handed on
  connection& sender = found->second;
  sender.move();
  frame_head head;
  while (sender.received().size() >= sizeof head) {
    std::memcpy(&head, sender.received().data(), sizeof head);
    if (head.size < 0 || head.size > longest_frame) return bury(from);
    const std::size_t whole = sizeof head + static_cast<std::size_t>(head.size);
    if (sender.received().size() < whole) break;
    const std::string frame = to_frame(from, sender.received().substr(sizeof head, whole - sizeof head));
    sender.take(whole);
    for (num r = 0; r < world_size_; ++r)
      if (head.peer == everybody ? r != from : r == head.peer) tell(r, frame);
  }
  if (!sender.open()) bury(from);
}

/// Tells the others that a rank is gone. One that leaves before all have come may come again.
void hub::bury(num rank) {
  if (!listeners_.empty()) {
    turn_away("rank " + text(rank) + " came and left");
    members_.erase(rank);
    return;
  }
  members_.at(rank).close();
  buried_.insert(rank);
  const std::string_view number(reinterpret_cast<const char*>(&rank), sizeof rank);
  for (num r = 0; r < world_size_; ++r) tell(r, to_frame(lost, number));
}

}  // namespace shardplan::runtime::detail
