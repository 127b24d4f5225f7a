// SPDX-License-Identifier: Apache-2.0
// Groups, abort, and the watch over waits.
#include "runtime/engine/threads/world.hpp"

#include <algorithm>  // find, binary_search

namespace shardplan::runtime::detail {

namespace {

/// Ranks that wait in one call for the same others.
struct wait_report {
  std::vector<num> waiting;
  std::vector<num> absent;
  std::string call;
};

/// Who keeps the rank of `status` from going on. Read after the flags of the ranks that have returned: what those did
/// before is seen here.
std::vector<num> absent_ranks(const request& call, const shared_group& group, num index) {
  std::vector<num> absent;
  if (call.what == operation::receive) {
    inbox& box = group.slot(index).box;
    const std::lock_guard lock(box.mutex);
    const auto found = box.messages.find(box.awaited);
    if (box.waiting && (found == box.messages.end() || found->second.empty()))
      absent.push_back(group.ranks[static_cast<std::size_t>(call.peer)]);
    return absent;
  }
  const std::uint64_t mine = group.slot(index).arrivals.load();
  for (num i = 0; i < group.size(); ++i)
    if (group.slot(i).arrivals.load() < mine) absent.push_back(group.ranks[static_cast<std::size_t>(i)]);
  return absent;
}

std::string describe_waits(const std::vector<wait_report>& reports) {
  std::string out;
  for (const wait_report& r : reports)
    out += (out.empty() ? "" : "; ") + describe_ranks(r.waiting) + (r.waiting.size() == 1 ? " waits" : " wait") +
           " for " + describe_ranks(r.absent) + " in " + r.call;
  return out;
}

}  // namespace

shared_group& thread_world::find_group(const std::vector<num>& ranks) {
  const std::lock_guard lock(groups_mutex);
  if (aborted) throw run_aborted{};  // abort() may have passed this group by
  std::unique_ptr<shared_group>& group = groups[ranks];
  if (!group) group = std::make_unique<shared_group>(ranks);
  return *group;
}

void thread_world::abort() {
  aborted = true;
  const std::lock_guard lock(groups_mutex);
  for (const auto& [ranks, group] : groups) {
    group->generation.abort();
    for (num i = 0; i < group->size(); ++i) group->slot(i).box.arrived.abort();
  }
}

void thread_world::fail(outcome kind, const std::string& text) {
  {
    const std::lock_guard lock(mutex);
    if (how == outcome::good) {
      how = kind;
      why = text;
    }
  }
  abort();
  changed.notify_all();
}

void thread_world::watch() {
  if (aborted) return;
  std::vector<char> returned(static_cast<std::size_t>(size));
  for (num r = 0; r < size; ++r) returned[static_cast<std::size_t>(r)] = status(r).returned;
  const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);

  std::vector<wait_report> reports;
  std::vector<num> waiting, absent;
  bool expired = false;
  for (num r = 0; r < size; ++r) {
    rank_status& s = status(r);
    const std::unique_lock lock(s.mutex);
    const std::int64_t since = s.since;
    if (since == 0) continue;
    wait_report report{{r}, absent_ranks(s.call, *s.group, s.index), describe(s.call)};
    if (report.absent.empty() || s.since != since) continue;  // it is on its way
    expired = expired || now - since > std::chrono::nanoseconds(timeout).count();
    waiting.push_back(r);
    absent.insert(absent.end(), report.absent.begin(), report.absent.end());
    const auto same = std::find_if(reports.begin(), reports.end(), [&](const wait_report& other) {
      return other.call == report.call && other.absent == report.absent;
    });
    if (same != reports.end())
      same->waiting.push_back(r);
    else
      reports.push_back(std::move(report));
  }

  std::sort(absent.begin(), absent.end());
  absent.erase(std::unique(absent.begin(), absent.end()), absent.end());
  std::vector<num> gone, silent;  // absent because returned; absent and not waiting itself
  for (num r : absent) {
    if (returned[static_cast<std::size_t>(r)])
      gone.push_back(r);
    else if (!std::binary_search(waiting.begin(), waiting.end(), r))
      silent.push_back(r);
  }
  if (!gone.empty())
    return fail(outcome::engine, describe_ranks(gone) + " returned while others wait: " + describe_waits(reports));
  if (!expired) return;
  std::string text = "no progress for " + std::to_string(timeout.count()) + " ms: ";
  for (num r : silent) {
    const std::lock_guard lock(status(r).mutex);
    text += "rank " + std::to_string(r) + " is absent (" +
            (status(r).group == nullptr ? "no call yet" : "last call: " + describe(status(r).call)) + "); ";
  }
  if (silent.empty()) text += "every rank waits for another; ";
  fail(silent.empty() ? outcome::engine : outcome::stalled, text + describe_waits(reports));
}

std::string thread_world::lost_messages() {
  const std::lock_guard lock(groups_mutex);
  for (const auto& [ranks, group] : groups)
    for (num i = 0; i < group->size(); ++i) {
      inbox& box = group->slot(i).box;
      const std::lock_guard box_lock(box.mutex);
      for (const auto& [from, queue] : box.messages)
        if (!queue.empty())
          return "rank " + std::to_string(ranks[static_cast<std::size_t>(i)]) + " never received what rank " +
                 std::to_string(ranks[static_cast<std::size_t>(std::get<2>(from))]) +
                 " sent: " + describe(queue.front().call);
    }
  return "";
}

}  // namespace shardplan::runtime::detail
