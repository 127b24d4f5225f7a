// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/mpi/mail.hpp"

#include <sched.h>  // sched_yield

#include <algorithm>
#include <set>
#include <thread>  // sleep_for

#include "runtime/engine/mpi/signals.hpp"

namespace shardplan::runtime::detail {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int letter_tag = 1;
constexpr int data_tag = 2;  // chunks of data, in the order of their letters

/// Between two looks at what has come: at first only lets others run, later sleeps, up to a millisecond.
class pause {
 public:
  void rest() {
    constexpr int spins = 100, step_us = 20;
    if (++rounds_ <= spins)
      ::sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(1000, (rounds_ - spins) * step_us)));
  }

 private:
  int rounds_ = 0;
};

}  // namespace

void require_success(int code, num rank, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw collective_error("rank " + std::to_string(rank) + ": " + call + ": " +
                         std::string(text, static_cast<std::size_t>(length)));
}

mpi_mail::mpi_mail(MPI_Comm world, const mpi_options& options) : world_(world), options_(options) {
  int rank = 0, size = 0;
  require_success(MPI_Comm_rank(world, &rank), -1, "MPI_Comm_rank");
  require_success(MPI_Comm_size(world, &size), rank, "MPI_Comm_size");
  rank_ = rank;
  world_size_ = size;
  options_.chunk_bytes = std::clamp<num>(options_.chunk_bytes, 1, num{1} << 30);
}

// ---- sending

void mpi_mail::post(const std::byte* data, num size, num to, int tag, std::shared_ptr<bytes> owner) {
  outgoing& o = outgoing_.emplace_back(outgoing{MPI_REQUEST_NULL, std::move(owner)});
  require_success(MPI_Isend(data, static_cast<int>(size), MPI_BYTE, static_cast<int>(to), tag, world_, &o.request),
                  rank_, "MPI_Isend");
}

void mpi_mail::send(std::span<const num> to, const std::shared_ptr<bytes>& packed) {
  for (num rank : to) post(packed->data(), static_cast<num>(packed->size()), rank, letter_tag, packed);
}

void mpi_mail::send(std::span<const num> to, letter l) {
  l.apart = l.data_size > most_inside;
  const std::shared_ptr<bytes> packed = pack(l);
  const auto data = l.apart ? std::make_shared<bytes>(l.data, l.data + l.data_size) : nullptr;
  for (num rank : to) {
    post(packed->data(), static_cast<num>(packed->size()), rank, letter_tag, packed);
    for (num begin = 0; data && begin < l.data_size; begin += options_.chunk_bytes)
      post(data->data() + begin, std::min(options_.chunk_bytes, l.data_size - begin), rank, data_tag, data);
  }
}

// ---- what comes

void mpi_mail::deliver(letter l) {
  if (l.kind == letter_kind::verdict) {
    verdicts_.emplace(l.from, unpack_verdict(l));
    return;
  }
  if (l.kind == letter_kind::last) {
    if (!last_) last_ = unpack_last(l);
    return;
  }
  key k{l.kind, l.group, l.from, 0, {}};
  if (l.kind == letter_kind::message) k.axes = l.call.axes.bits, k.why = l.call.why;
  const auto whole = std::make_shared<letter>(std::move(l));
  inbox_[k].push_back(whole);
  const num size = whole->apart ? whole->data_size : 0;
  for (num begin = 0; begin < size; begin += options_.chunk_bytes) {
    const num part = std::min(options_.chunk_bytes, size - begin);
    incoming& c = incoming_.emplace_back(incoming{MPI_REQUEST_NULL, whole, part});
    require_success(MPI_Irecv(whole->own_data->data() + begin, static_cast<int>(part), MPI_BYTE,
                              static_cast<int>(whole->from), data_tag, world_, &c.request),
                    rank_, "MPI_Irecv");
  }
}

void mpi_mail::poll() {
  const auto finished = [&](MPI_Request& request) {
    int done = 0;
    require_success(MPI_Test(&request, &done, MPI_STATUS_IGNORE), rank_, "MPI_Test");
    return done != 0;
  };
  while (true) {
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    require_success(MPI_Improbe(MPI_ANY_SOURCE, letter_tag, world_, &found, &message, &status), rank_, "MPI_Improbe");
    if (found == 0) break;
    int size = 0;
    MPI_Get_count(&status, MPI_BYTE, &size);
    arriving& a = arriving_.emplace_back(
        arriving{status.MPI_SOURCE, MPI_REQUEST_NULL, std::make_shared<bytes>(static_cast<std::size_t>(size))});
    require_success(MPI_Imrecv(a.text->data(), size, MPI_BYTE, &message, &a.request), rank_, "MPI_Imrecv");
  }
  std::set<num> held_up;  // by an earlier letter of theirs that is not whole
  for (auto a = arriving_.begin(); a != arriving_.end();) {
    if (held_up.contains(a->from) || !finished(a->request)) {
      held_up.insert(a->from);
      ++a;
    } else {
      deliver(unpack(std::move(a->text), a->from));
      a = arriving_.erase(a);
    }
  }
  std::erase_if(incoming_, [&](incoming& c) {
    if (!finished(c.request)) return false;
    c.whole->missing -= c.size;
    return true;
  });
  std::erase_if(outgoing_, [&](outgoing& o) { return finished(o.request); });
}

// ---- waiting

std::vector<num> mpi_mail::absent(std::span<const key> keys) const {
  std::vector<num> ranks;
  for (const key& k : keys)
    if (const auto found = inbox_.find(k);
        found == inbox_.end() || found->second.empty() || found->second.front()->missing > 0)
      ranks.push_back(k.from);
  return ranks;
}

num mpi_mail::bytes_missing(std::span<const key> keys) const {
  num missing = 0;
  for (const key& k : keys)
    if (const auto found = inbox_.find(k); found != inbox_.end() && !found->second.empty())
      missing += found->second.front()->missing;
  return missing;
}

void mpi_mail::wait_for(std::span<const key> keys) {
  pause between;
  std::optional<steady_clock::time_point> since;
  num missing = 0;
  for (std::vector<num> ranks; poll(), !(ranks = absent(keys)).empty(); between.rest()) {
    check();
    for (num rank : ranks)
      if (verdicts_.contains(rank))
        throw collective_error("rank " + std::to_string(rank) + " returned while others wait");
    const auto now = steady_clock::now();
    const num missing_now = bytes_missing(keys);
    if (!since || missing_now != missing) since = now, missing = missing_now;  // large data is on its way
    if (now - *since > options_.timeout)
      throw collective_error("no progress for " + std::to_string(options_.timeout.count()) + " ms");
  }
}

std::vector<letter> mpi_mail::take(std::span<const key> keys, const request& call) {
  try {
    wait_for(keys);
  } catch (...) {
    present_wait_ =
        "rank " + std::to_string(rank_) + " waits for " + describe_ranks(absent(keys)) + " in " + describe(call);
    throw;
  }
  std::vector<letter> out;
  for (const key& k : keys) {
    auto& queue = inbox_[k];
    out.push_back(std::move(*queue.front()));
    queue.pop_front();
  }
  return out;
}

void mpi_mail::check() {
  if (told_to_end()) throw collective_error("rank " + std::to_string(rank_) + " was told to end by a signal");
  for (const auto& [rank, v] : verdicts_)
    if (v.exit_code != 0) throw run_aborted{};
}

// ---- the end

std::optional<verdict> mpi_mail::verdict_of(num rank) const {
  const auto found = verdicts_.find(rank);
  return found == verdicts_.end() ? std::nullopt : std::optional(found->second);
}

bool mpi_mail::go_on_until(const std::function<bool()>& done, milliseconds patience) {
  const auto end = steady_clock::now() + patience;
  for (pause between;; between.rest()) {
    poll();
    if (done()) return true;
    if (steady_clock::now() > end) return false;
  }
}

std::string mpi_mail::lost_message() const {
  for (const auto& [k, queue] : inbox_)
    if (k.kind == letter_kind::message && !queue.empty())
      return "rank " + std::to_string(rank_) + " never received what rank " + std::to_string(k.from) +
             " sent: " + describe(queue.front()->call);
  return "";
}

}  // namespace shardplan::runtime::detail
