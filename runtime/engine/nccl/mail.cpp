// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/mail.hpp"

#include <algorithm>  // any_of
#include <thread>     // yield

namespace shardplan::runtime::detail {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A wait looks without a pause at first, then often, and in the end every millisecond: a GPU is soon done or not for
// long, and says so to nobody who sleeps.
constexpr milliseconds busy_for{2}, eager_for{100};
constexpr std::chrono::microseconds nap{50};

}  // namespace

tcp_mail::tcp_mail(const process_place& place, milliseconds timeout) : line_(place, timeout), timeout_(timeout) {}

void tcp_mail::send(const std::vector<num>& ranks, const letter& what) {
  const std::string packed = pack(what);
  for (num r : ranks) line_.send(r, packed);
}

void tcp_mail::poll(milliseconds wait) {
  line_.receive(wait, [&](num from, const std::string* payload) {
    if (payload == nullptr) {
      lost_.insert(from);
      return;
    }
    letter l = unpack(*payload, from);
    switch (static_cast<letter_kind>(l.address[0])) {
      case letter_kind::verdict:
        verdicts_[from] = to_verdict(l);
        return;
      case letter_kind::last:
        last_ = to_last_word(l);
        return;
      case letter_kind::call:
      case letter_kind::message:
      case letter_kind::fetch:
        break;
    }
    auto& queue = inbox_[{l.address, from}];
    queue.push_back(std::move(l));
  });
}

// ---- waiting

void tcp_mail::check() {
  poll(milliseconds(0));
  fail_when_hopeless({}, false);
}

bool tcp_mail::another_failed() const {
  return std::any_of(verdicts_.begin(), verdicts_.end(), [](const auto& v) { return v.second.exit_code != 0; });
}

bool tcp_mail::hears_of_failure(milliseconds patience) {
  go_on_until([&] { return another_failed(); }, patience);
  return another_failed();
}

void tcp_mail::fail_when_hopeless(const std::vector<num>& awaited, bool they_come) const {
  if (another_failed()) throw run_aborted{};
  for (num rank : lost_)
    if (!verdicts_.contains(rank)) throw collective_error("the process of rank " + std::to_string(rank) + " is lost");
  for (num rank : awaited)
    if (they_come && verdicts_.contains(rank))
      throw collective_error("rank " + std::to_string(rank) + " returned while others wait");
}

void tcp_mail::wait(const std::function<bool()>& done, const std::function<std::vector<num>()>& awaited, bool they_come,
                    const request& call) {
  const auto begin = steady_clock::now();
  try {
    while (poll(milliseconds(0)), !done()) {
      const auto waited = steady_clock::now() - begin;
      fail_when_hopeless(awaited(), they_come);
      if (waited > timeout_) throw collective_error("no progress for " + std::to_string(timeout_.count()) + " ms");
      if (progress_) progress_();
      if (waited > eager_for)
        poll(milliseconds(1));
      else if (waited > busy_for)
        std::this_thread::sleep_for(nap);
      else
        std::this_thread::yield();
    }
  } catch (...) {
    const std::vector<num> ranks = awaited();
    present_wait_ = "rank " + std::to_string(rank()) + " waits for " +
                    (ranks.empty() ? "NCCL" : describe_ranks(ranks)) + " in " + describe(call);
    throw;
  }
}

std::vector<letter> tcp_mail::take(const letter_address& address, const std::vector<num>& from, const request& call) {
  const auto absent = [&] {
    std::vector<num> ranks;
    for (num r : from)
      if (const auto found = inbox_.find({address, r}); found == inbox_.end() || found->second.empty())
        ranks.push_back(r);
    return ranks;
  };
  wait([&] { return absent().empty(); }, absent, true, call);
  std::vector<letter> out;
  for (num r : from) {
    auto& queue = inbox_[{address, r}];
    out.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  return out;
}

bool tcp_mail::take_if_there(const letter_address& address, num from) {
  const auto found = inbox_.find({address, from});
  if (found == inbox_.end() || found->second.empty()) return false;
  found->second.pop_front();
  return true;
}

// ---- the end

std::optional<verdict> tcp_mail::verdict_of(num rank) const {
  const auto found = verdicts_.find(rank);
  return found == verdicts_.end() ? std::nullopt : std::optional(found->second);
}

void tcp_mail::go_on_until(const std::function<bool()>& done, milliseconds patience) {
  const auto end = steady_clock::now() + patience;
  while (poll(milliseconds(0)), !done() && steady_clock::now() < end) poll(milliseconds(1));
}

std::string tcp_mail::lost_message() const {
  for (const auto& [key, queue] : inbox_)
    if (key.first[0] == static_cast<num>(letter_kind::message) && !queue.empty())
      return "rank " + std::to_string(rank()) + " never received what rank " + std::to_string(key.second) +
             " sent: " + describe(queue.front().call);
  return "";
}

}  // namespace shardplan::runtime::detail
