// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_gpu/machine.hpp"

#include <algorithm>  // sort, all_of
#include <cstdio>     // fprintf
#include <cstdlib>    // getenv, strtoull
#include <thread>     // sleep_for

namespace simulated {

std::uint64_t variable(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

void complain(const std::string& what) { std::fprintf(stderr, "simulated GPU: %s\n", what.c_str()); }

machine& machine::it() {
  static machine& one = *new machine;
  return one;
}

machine::machine() : random_(variable("SHARDPLAN_SIMULATED_SEED", 1) * 1000 + variable("RANK", 0)) {
  const auto num_devices = variable("SHARDPLAN_SIMULATED_GPUS", 1);
  for (std::uint64_t i = 0; i < num_devices; ++i) {
    memory_.push_back(std::make_unique<arena>(variable("SHARDPLAN_SIMULATED_MEMORY", std::uint64_t{1} << 30)));
    defaults_.push_back(std::make_unique<CUstream_st>());
    defaults_.back()->device = static_cast<int>(i);
    defaults_.back()->is_default = true;
  }
}

int& machine::current_device() {
  thread_local int device = 0;
  return device;
}
cudaError_t& machine::last_error() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}

// ---- memory

arena* machine::memory_of(const void* at) {
  const int device = device_of(at);
  return device < 0 ? nullptr : &memory(device);
}
int machine::device_of(const void* at) const {
  for (std::size_t i = 0; i < memory_.size(); ++i)
    if (memory_[i]->holds(at)) return static_cast<int>(i);
  return -1;
}
place machine::place_of(const void* at, std::size_t bytes) const {
  if (const int device = device_of(at); device >= 0)
    return memory_[static_cast<std::size_t>(device)]->is_usable(at, bytes) ? place::device : place::nowhere;
  const auto next = pinned_.upper_bound(at);
  if (next == pinned_.begin()) return place::pageable;
  const auto& [begin, size] = *std::prev(next);
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(at) - static_cast<const char*>(begin));
  return offset < size ? (bytes <= size - offset ? place::pinned : place::nowhere) : place::pageable;
}

// ---- streams

CUstream_st* machine::find(cudaStream_t stream) {
  const int device = current_device();
  if (stream == nullptr || stream == cudaStreamLegacy)
    return device < num_devices() ? defaults_[static_cast<std::size_t>(device)].get() : nullptr;
  for (const auto& s : streams_)
    if (s.get() == stream) return s->destroyed ? nullptr : stream;
  return nullptr;
}

CUstream_st* machine::create_stream(bool meets_default) {
  auto made = std::make_unique<CUstream_st>();
  made->device = current_device();
  made->meets_default = meets_default;
  made->priority = random();
  CUstream_st* const stream = made.get();
  streams_.push_back(std::move(made));
  return stream;
}

void machine::enqueue(CUstream_st* stream, operation what) {
  stream->queue.push_back({next_number_++, std::move(what)});
}

std::shared_ptr<mark> machine::record(CUstream_st* stream) {
  auto made = std::make_shared<mark>();
  enqueue(stream, [made] {
    made->reached = true;
    made->when = std::chrono::steady_clock::now();
    return step::done;
  });
  return made;
}

bool machine::may_run(const CUstream_st& stream) const {
  if (stream.queue.empty()) return false;
  const auto earlier = [&](const CUstream_st& other) {
    return !other.queue.empty() && other.queue.front().number < stream.queue.front().number;
  };
  if (!stream.is_default) return !stream.meets_default || !earlier(*defaults_[static_cast<std::size_t>(stream.device)]);
  return std::none_of(streams_.begin(), streams_.end(), [&](const auto& other) {
    return other->device == stream.device && other->meets_default && earlier(*other);
  });
}

bool machine::run_one(CUstream_st* preferred) {
  std::vector<CUstream_st*> order;
  const auto consider = [&](CUstream_st& s) {
    if (by_chance(16)) s.priority = random();
    if (may_run(s)) order.push_back(&s);
  };
  for (const auto& s : defaults_) consider(*s);
  for (const auto& s : streams_) consider(*s);
  std::sort(order.begin(), order.end(), [&](const CUstream_st* a, const CUstream_st* b) {
    return a == preferred || (b != preferred && a->priority > b->priority);
  });
  for (CUstream_st* s : order) {
    const step what = s->queue.front().run();
    if (what == step::blocked) continue;
    if (what == step::done) s->queue.pop_front(), reap();
    return true;
  }
  return false;
}

void machine::run_until(guard& held, const std::function<bool()>& done, CUstream_st* preferred) {
  if (by_chance(2)) preferred = nullptr;
  while (!done() && !failed_) {
    if (run_one(preferred)) continue;
    held.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    held.lock();
  }
}

void machine::pass_time(const std::function<bool()>& done) {
  // A look that finds nothing done must stay possible, and so must an end of looking.
  for (std::uint64_t left = by_chance(3) ? random() % 4 : 1000; left > 0 && !done() && !failed_; --left)
    if (!run_one()) return;
}

bool machine::is_idle(int device) const {
  return defaults_[static_cast<std::size_t>(device)]->queue.empty() &&
         std::all_of(streams_.begin(), streams_.end(),
                     [&](const auto& s) { return s->device != device || s->queue.empty(); });
}

/// Streams that were destroyed go when they have run out.
void machine::reap() {
  std::erase_if(streams_, [](const auto& s) { return s->destroyed && s->queue.empty(); });
}

void machine::fail(const std::string& why) {
  complain(why);
  failed_ = true;
}

}  // namespace simulated
