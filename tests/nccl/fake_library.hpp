// SPDX-License-Identifier: Apache-2.0
// A library in the place of NCCL, for ranks that are threads of one process: it moves data as NCCL's documentation
// says, and is as strict. Of one communicator a call begins when the one before has ended; a send ends when it is
// received.
#ifndef SHARDPLAN_TESTS_NCCL_FAKE_LIBRARY_HPP
#define SHARDPLAN_TESTS_NCCL_FAKE_LIBRARY_HPP

#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>

#include "runtime/engine/nccl/library.hpp"
#include "runtime/engine/nccl/remote_error.hpp"
#include "runtime/engine/reduce.hpp"

namespace fake {

using namespace shardplan;
using namespace shardplan::runtime;
using bytes = std::vector<std::byte>;

inline std::size_t at(num i) { return static_cast<std::size_t>(i); }

/// One collective of NCCL: what each member handed over.
struct meeting {
  nccl_function kind{};
  num peer = -1, count = -1;
  std::map<num, bytes> inputs;  // by member
};

struct shared_line {
  num n = 0;
  std::map<num, int> members;                             // how often each has connected
  std::map<std::pair<num, num>, std::deque<bytes>> sent;  // (from, to)
  std::map<num, meeting> meetings;                        // by ordinal
  bool aborted = false;
};

/// What all ranks share; guarded by one mutex.
struct shared_library {
  std::mutex mutex;
  num next_id = 1;
  num num_lines = 0, num_aborted = 0;
  num num_waiting_sends = 0;  // begun, and not received
  std::map<communicator_id, std::shared_ptr<shared_line>> lines;
};

class line final : public device_communicator {
 public:
  line(shared_library& library, std::shared_ptr<shared_line> shared, num index)
      : library_(library), shared_(std::move(shared)), me_(index) {}

  bool ready() override {
    const std::lock_guard lock(library_.mutex);
    return connected();
  }

  bool stages(const device_call&) override { return false; }

  void start(const device_call& call, const std::vector<nccl_step>& steps) override {
    const std::lock_guard lock(library_.mutex);
    if (!connected()) throw std::logic_error("start before ready");
    batches_.push_back({call, {}});
    for (const nccl_step& s : steps) batches_.back().steps.push_back({s, {}, -1});
  }

  bool done() override {
    const std::lock_guard lock(library_.mutex);
    while (!batches_.empty() && move(batches_.front())) batches_.pop_front();
    return batches_.empty();
  }

  void abort() noexcept override {
    const std::lock_guard lock(library_.mutex);
    shared_->aborted = true;
    ++library_.num_aborted;
  }

 private:
  struct open_step {
    nccl_step what;
    bytes input;
    num ordinal;  // of its meeting; -1: not begun
    bool done = false, begun = false;
  };
  struct batch {
    device_call call;
    std::vector<open_step> steps;
  };

  bool connected() const {
    if (shared_->aborted) throw remote_error("the communicator was aborted");
    for (const auto& [member, times] : shared_->members)
      if (times != 1) throw engine_error("member " + std::to_string(member) + " has connected twice");
    return static_cast<num>(shared_->members.size()) == shared_->n;
  }

  bool move(batch& b) {
    bool all = true;
    for (open_step& s : b.steps) {
      if (!s.begun) begin(b.call, s);
      if (!s.done) s.done = finish(b.call, s);
      all = all && s.done;
    }
    return all;
  }

  static num input_size(const nccl_step& s, num n) {
    return s.kind == nccl_function::reduce_scatter ? s.count * n : s.count;
  }

  void begin(const device_call& c, open_step& s) {
    const num unit = size_of(c.type);
    s.begun = true;
    if (s.what.from >= 0) {
      const num size = input_size(s.what, shared_->n);
      if (s.what.from + size > c.in_size) throw std::logic_error("reads beyond its input");
      s.input.assign(c.in + s.what.from * unit, c.in + (s.what.from + size) * unit);
    }
    if (s.what.kind == nccl_function::copy || s.what.kind == nccl_function::receive) return;
    if (s.what.kind == nccl_function::send) {
      ++library_.num_waiting_sends;
      return shared_->sent[{me_, s.what.peer}].push_back(s.input);
    }
    s.ordinal = next_ordinal_++;
    meeting& m = shared_->meetings[s.ordinal];
    if (m.inputs.empty()) m.kind = s.what.kind, m.peer = s.what.peer, m.count = s.what.count;
    if (m.kind != s.what.kind || m.peer != s.what.peer || m.count != s.what.count)
      throw std::logic_error("members call different collectives");
    m.inputs[me_] = s.input;
  }

  bool finish(const device_call& c, open_step& s) {
    const num unit = size_of(c.type);
    const auto write = [&](const bytes& from, num first, num count) {
      if (s.what.to < 0 || count == 0) return;
      if (s.what.to + count > c.out_size) throw std::logic_error("writes beyond its output");
      std::memmove(c.out + s.what.to * unit, from.data() + first * unit, at(count * unit));
    };
    switch (s.what.kind) {
      case nccl_function::copy:
        write(s.input, 0, s.what.count);
        return true;
      case nccl_function::send: {  // ended when the receiver has it
        const auto& queue = shared_->sent[{me_, s.what.peer}];
        return queue.empty();
      }
      case nccl_function::receive: {
        auto& queue = shared_->sent[{s.what.peer, me_}];
        if (queue.empty()) return false;
        if (queue.front().size() != at(s.what.count * unit)) throw std::logic_error("a message of another size");
        write(queue.front(), 0, s.what.count);
        queue.pop_front();
        --library_.num_waiting_sends;
        return true;
      }
      default:
        break;
    }
    const meeting& m = shared_->meetings[s.ordinal];
    if (static_cast<num>(m.inputs.size()) < shared_->n) return false;
    std::vector<const std::byte*> inputs;
    for (const auto& [member, input] : m.inputs) inputs.push_back(input.data());
    bytes result;
    if (s.what.kind == nccl_function::broadcast) {
      result = m.inputs.at(s.what.peer);
    } else if (s.what.kind == nccl_function::all_gather) {
      for (const auto& [member, input] : m.inputs) result.insert(result.end(), input.begin(), input.end());
    } else {
      result.resize(at(s.what.count * unit));
      const num first = s.what.kind == nccl_function::reduce_scatter ? me_ * s.what.count : 0;
      runtime::detail::reduce(c.type, c.reduce, inputs, first, s.what.count, result.data());
    }
    write(result, 0, static_cast<num>(result.size()) / unit);
    return true;
  }

  shared_library& library_;
  std::shared_ptr<shared_line> shared_;
  num me_, next_ordinal_ = 0;
  std::deque<batch> batches_;
};

class library final : public device_library {
 public:
  explicit library(std::shared_ptr<shared_library> shared) : shared_(std::move(shared)) {}

  communicator_id make_id() override {
    const std::lock_guard lock(shared_->mutex);
    communicator_id id{};
    std::memcpy(id.data(), &shared_->next_id, sizeof shared_->next_id);
    ++shared_->next_id;
    return id;
  }
  std::unique_ptr<device_communicator> connect(const communicator_id& id, num n, num index) override {
    const std::lock_guard lock(shared_->mutex);
    std::shared_ptr<shared_line>& made = shared_->lines[id];
    if (!made) made = std::make_shared<shared_line>(), made->n = n, ++shared_->num_lines;
    if (made->n != n) throw std::logic_error("members know another number of members");
    ++made->members[index];
    return std::make_unique<line>(*shared_, made, index);
  }
  std::shared_ptr<std::byte> keep(const std::byte* from, num size) override {
    auto kept = std::make_shared<bytes>(from, from + size);
    return {kept, kept->data()};
  }
  void copy(const std::byte* from, num size, std::byte* to) override {
    if (size > 0) std::memmove(to, from, at(size));
  }

 private:
  std::shared_ptr<shared_library> shared_;
};

}  // namespace fake
#endif  // SHARDPLAN_TESTS_NCCL_FAKE_LIBRARY_HPP
