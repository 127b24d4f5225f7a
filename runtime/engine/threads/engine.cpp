// SPDX-License-Identifier: Apache-2.0
// The collectives. A member publishes its call, waits for all others, and then only reads their buffers and writes
// its own. Calls that are small on all members are published as copies and need one wait; the others need a second,
// so that no buffer is taken back while it is read.
#include <cstring>  // memcpy
#include <optional>

#include "runtime/engine/reduce.hpp"
#include "runtime/engine/threads/world.hpp"

namespace shardplan::runtime {

using namespace detail;

namespace {

std::size_t at(num i) { return static_cast<std::size_t>(i); }

void copy(const std::byte* from, num bytes, std::byte* to) {
  if (bytes > 0 && from != to) std::memcpy(to, from, at(bytes));
}

/// While it lives, the rank is known to wait.
class noted_wait {
 public:
  explicit noted_wait(rank_status& status) : status_(status) {
    status_.since = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  ~noted_wait() { status_.since = 0; }
  noted_wait(const noted_wait&) = delete;

 private:
  rank_status& status_;
};

/// While it lives, the members' published buffers stay. run_aborted when they may be gone already: either the reader
/// sees the abort here, or the one who leaves because of the abort sees the reader.
class reader {
 public:
  reader(const thread_world& world, shared_group& group) : world_(world), group_(group) {
    group_.num_readers.fetch_add(1);
    if (!world_.aborted) return;
    leave();
    throw run_aborted{};
  }
  ~reader() { leave(); }
  reader(const reader&) = delete;

 private:
  void leave() {
    if (group_.num_readers.fetch_sub(1) == 1 && world_.aborted) group_.num_readers.notify_all();
  }
  const thread_world& world_;
  shared_group& group_;
};

void wait_for_readers(shared_group& group) {
  for (int n = group.num_readers; n != 0; n = group.num_readers) group.num_readers.wait(n);
}

void wait_for_all(shared_group& group, num index, rank_status& status) {
  const wait_word::value seen = group.generation.read();
  if (wait_word::aborted(seen)) throw run_aborted{};
  group.slot(index).arrivals.fetch_add(1);
  if (group.num_arrived.fetch_add(1) + 1 == group.size()) {
    group.num_arrived = 0;  // nobody comes to the next barrier before the signal
    group.generation.signal();
    return;
  }
  const noted_wait wait(status);
  if (wait_word::same_event(group.generation.wait_beyond(seen), seen)) throw run_aborted{};
}

void publish(const request& r, published_call& to) {
  to.call = r;
  const std::size_t count_bytes = (r.counts.size() + r.receive_counts.size()) * sizeof(num);
  to.copied = count_bytes + at(r.in_bytes()) <= published_call::capacity;
  if (!to.copied) return;
  std::byte* free = to.storage;
  const auto keep = [&](const void* from, std::size_t bytes) {
    std::byte* const begin = free;
    copy(static_cast<const std::byte*>(from), static_cast<num>(bytes), begin);
    free += bytes;
    return begin;
  };
  const auto keep_counts = [&](std::span<const num> counts) {
    return std::span(reinterpret_cast<const num*>(keep(counts.data(), counts.size_bytes())), counts.size());
  };
  to.call.counts = keep_counts(r.counts);
  to.call.receive_counts = keep_counts(r.receive_counts);
  to.call.in = keep(r.in, at(r.in_bytes()));
}

/// Writes what member `me` gets from the members' inputs; of a large all_reduce its slice.
void fill(const request& r, const thread_membership& m, num me, bool copied) {
  const num n = static_cast<num>(m.calls.size());
  const num unit = size_of(r.type);
  switch (r.what) {
    case operation::all_reduce: {
      const num first = copied ? 0 : slice_begin(r.in_size, me, n);
      const num last = copied ? r.in_size : slice_begin(r.in_size, me + 1, n);
      return reduce(r.type, r.reduce, m.inputs, first, last - first, r.out + first * unit);
    }
    case operation::reduce_scatter:
      return reduce(r.type, r.reduce, m.inputs, part_offset(r, me, n), r.out_size, r.out);
    case operation::all_gather:
    case operation::gather: {
      if (r.what == operation::gather && r.peer != me) return;
      std::byte* to = r.out;
      for (num j = 0; j < n; to += part_size(r, j, n) * unit, ++j) copy(m.inputs[at(j)], part_size(r, j, n) * unit, to);
      return;
    }
    case operation::all_to_all: {
      std::byte* to = r.out;
      for (num j = 0; j < n; to += r.receive_counts[at(j)] * unit, ++j)
        copy(m.inputs[at(j)] + part_offset(*m.calls[at(j)], me, n) * unit, r.receive_counts[at(j)] * unit, to);
      return;
    }
    case operation::broadcast:
      return copy(m.inputs[at(r.peer)], r.in_bytes(), r.out);
    case operation::send:
    case operation::receive:
    case operation::barrier:
      return;
  }
}

/// The rest of a large all_reduce: the slices that the others have reduced.
void fill_other_slices(const request& r, const thread_membership& m) {
  const num n = static_cast<num>(m.calls.size());
  const num unit = size_of(r.type);
  for (num j = 0; j < n; ++j) {
    const num first = slice_begin(r.in_size, j, n);
    const num last = slice_begin(r.in_size, j + 1, n);
    copy(m.inputs[at(j)] + first * unit, (last - first) * unit, r.out + first * unit);
  }
}

/// One collective of a group of more than one.
void collect(thread_world& world, rank_status& status, thread_membership& m, const request& r) {
  shared_group& group = *m.group;
  member_slot& mine = group.slot(m.index);
  const std::uint64_t turn = mine.num_calls++ % 2;
  std::string wrong;
  try {
    publish(r, mine.calls[turn]);
    wait_for_all(group, m.index, status);
    bool copied = true;
    {
      const reader reading(world, group);
      for (num i = 0; i < group.size(); ++i) {
        const published_call& p = group.slot(i).calls[turn];
        m.calls[at(i)] = &p.call;
        m.inputs[at(i)] = p.call.in;
        copied = copied && p.copied;
      }
      wrong = disagreement(m.calls, group.ranks);  // all members come to the same answer, so all wait below or none
      if (wrong.empty()) fill(r, m, m.index, copied);
    }
    if (!copied) wait_for_all(group, m.index, status);
    if (!copied && wrong.empty() && r.what == operation::all_reduce) {
      {
        const reader reading(world, group);
        fill_other_slices(r, m);
      }
      wait_for_all(group, m.index, status);
    }
  } catch (...) {
    world.abort();  // mostly it is already; then nobody begins to read
    wait_for_readers(group);
    throw;
  }
  if (!wrong.empty()) throw collective_error(wrong);
}

void post(const thread_membership& m, const request& r) {
  message parcel{without_buffers(r), std::vector<std::byte>(r.in, r.in + r.in_bytes())};
  inbox& box = m.group->slot(r.peer).box;
  {
    const std::lock_guard lock(box.mutex);
    box.messages[{m.axes.bits, r.why, m.index}].push_back(std::move(parcel));
  }
  box.arrived.signal();
}

message take(const thread_membership& m, const request& r, rank_status& status) {
  inbox& box = m.group->slot(m.index).box;
  std::optional<noted_wait> wait;
  while (true) {
    const wait_word::value seen = box.arrived.read();
    if (wait_word::aborted(seen)) throw run_aborted{};
    {
      const std::lock_guard lock(box.mutex);
      box.awaited = {m.axes.bits, r.why, r.peer};
      std::deque<message>& queue = box.messages[box.awaited];
      box.waiting = queue.empty();
      if (!box.waiting) {
        message parcel = std::move(queue.front());
        queue.pop_front();
        return parcel;
      }
    }
    if (!wait) wait.emplace(status);  // messages of others may interrupt it: timed from its beginning
    box.arrived.wait_beyond(seen);
  }
}

void receive(const thread_membership& m, const request& r, rank_status& status) {
  const message parcel = take(m, r, status);
  require_same_message(parcel.call, m.group->ranks[at(r.peer)], r, m.group->ranks[at(m.index)]);
  copy(parcel.data.data(), r.out_bytes(), r.out);
}

}  // namespace

num thread_group::size() const { return membership_->group->size(); }
num thread_group::index() const { return membership_->index; }
num thread_group::member(num i) const { return membership_->group->ranks.at(at(i)); }
axis_set thread_group::axes() const { return membership_->axes; }

thread_engine::thread_engine(std::shared_ptr<thread_world> world, num rank) : world_(std::move(world)), rank_(rank) {}
thread_engine::thread_engine(thread_engine&&) noexcept = default;
thread_engine::~thread_engine() = default;

num thread_engine::world_size() const { return world_->size; }

thread_group thread_engine::group(const rank_group& ranks, axis_set axes) {
  for (const auto& known : groups_)
    if (known->axes == axes && known->asked == ranks) return thread_group(known.get());

  std::vector<num> members = require_members(ranks, axes, rank_, world_->size);
  auto made = std::make_unique<thread_membership>();
  made->asked = ranks;
  made->axes = axes;
  made->index = ranks.index;
  made->calls.resize(members.size());
  made->inputs.resize(members.size());
  made->group = &world_->find_group(members);
  groups_.push_back(std::move(made));
  return thread_group(groups_.back().get());
}

void thread_engine::check_abort() const {
  if (world_->aborted) throw run_aborted{};
}

void thread_engine::perform(const thread_group& g, const request& r) {
  check_abort();
  thread_membership& m = *g.membership_;
  rank_status& status = world_->status(rank_);
  {
    const std::lock_guard lock(status.mutex);
    status.call = without_buffers(r);
    status.group = m.group;
    status.index = m.index;
  }
  if (r.what == operation::send || r.what == operation::receive) {
    require_peer(r, m.group->size(), rank_);
    return r.what == operation::send ? post(m, r) : receive(m, r, status);
  }
  if (m.group->size() == 1) return collect_alone(r, rank_);
  collect(*world_, status, m, r);
}

}  // namespace shardplan::runtime
