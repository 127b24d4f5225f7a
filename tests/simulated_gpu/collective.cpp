// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_gpu/collective.hpp"

#include <algorithm>  // max, min

#include "runtime/device/cuda/real.hpp"

namespace simulated {

using bytes = std::vector<std::byte>;
using shardplan::runtime::cuda::bf16;

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
    case ncclInt64:
    case ncclUint64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
      return 4;
    case ncclBfloat16:
      return 2;
    default:
      return 0;
  }
}

std::size_t bytes_in(const nccl_call& c, int rank, int n) {
  const std::size_t whole = c.count * size_of(c.type);
  if (c.kind == nccl_kind::receive || (c.kind == nccl_kind::broadcast && rank != c.peer)) return 0;
  return c.kind == nccl_kind::reduce_scatter ? whole * static_cast<std::size_t>(n) : whole;
}
std::size_t bytes_out(const nccl_call& c, int rank, int n) {
  const std::size_t whole = c.count * size_of(c.type);
  if (c.kind == nccl_kind::send || (c.kind == nccl_kind::reduce && rank != c.peer)) return 0;
  return c.kind == nccl_kind::all_gather ? whole * static_cast<std::size_t>(n) : whole;
}

namespace {

/// What goes before the data of a call, and must be what the other expects.
struct heading {
  std::uint64_t kind, type, op, root, count;
};

/// into = into op from, element by element.
template <class T>
void combine(ncclRedOp_t op, const std::byte* from, std::byte* into) {
  T a, b;
  std::memcpy(&a, into, sizeof a), std::memcpy(&b, from, sizeof b);
  if constexpr (std::is_same_v<T, bf16>) {
    const float x = shardplan::runtime::cuda::widen(a), y = shardplan::runtime::cuda::widen(b);
    a = shardplan::runtime::cuda::narrow<bf16>(op == ncclSum ? x + y : op == ncclMax ? std::max(x, y) : std::min(x, y));
  } else {
    a = op == ncclSum ? static_cast<T>(a + b) : op == ncclMax ? std::max(a, b) : std::min(a, b);
  }
  std::memcpy(into, &a, sizeof a);
}
void combine(ncclDataType_t type, ncclRedOp_t op, const std::byte* from, std::byte* into) {
  switch (type) {
    case ncclFloat64:
      return combine<double>(op, from, into);
    case ncclFloat32:
      return combine<float>(op, from, into);
    case ncclInt64:
      return combine<std::int64_t>(op, from, into);
    case ncclUint64:
      return combine<std::uint64_t>(op, from, into);
    case ncclInt32:
      return combine<std::int32_t>(op, from, into);
    default:
      return combine<bf16>(op, from, into);
  }
}

/// Element `first` + i of the result begins with another member every 64 elements, and goes down through the members:
/// an order that no caller would guess, and the same on all of them.
bytes reduce(const nccl_call& c, const std::vector<const std::byte*>& inputs, std::size_t first) {
  const std::size_t unit = size_of(c.type), n = inputs.size();
  bytes out(c.count * unit);
  for (std::size_t e = 0; e < c.count; ++e) {
    const std::size_t begin = ((first + e) / 64 + 1) % n;
    std::memcpy(&out[e * unit], inputs[begin] + e * unit, unit);
    for (std::size_t i = 1; i < n; ++i) combine(c.type, c.op, inputs[(begin + n - i) % n] + e * unit, &out[e * unit]);
  }
  return out;
}

class exchange {
 public:
  exchange(communicator comm, std::vector<nccl_call> calls) : comm_(std::move(comm)), calls_(std::move(calls)) {
    number_ = comm_->next++;
    comm_->order.push_back(number_);
  }

  step go_on() {
    if (comm_->aborted) return step::done;
    if (comm_->order.front() != number_ || wrong_) return step::blocked;
    if (!begun_) begin();
    const bool moved = push() | pull();
    if (wrong_ || !is_complete()) return moved ? step::moved : step::blocked;
    end();
    comm_->order.pop_front();
    return step::done;
  }

 private:
  struct outgoing {
    bytes data;
    std::size_t sent = 0;
    std::uint64_t taken_at = 0;  // the other must have taken so much
  };
  struct incoming {
    std::size_t call;
    heading expected;
    bytes data;  // with its heading
    std::size_t come = 0;
  };
  std::size_t n() const { return static_cast<std::size_t>(comm_->n); }
  std::size_t me() const { return static_cast<std::size_t>(comm_->rank); }

  heading heading_of(const nccl_call& c) const {
    const bool message = c.kind == nccl_kind::send || c.kind == nccl_kind::receive;
    return {message ? static_cast<std::uint64_t>(nccl_kind::send) : static_cast<std::uint64_t>(c.kind),
            static_cast<std::uint64_t>(c.type), message ? 0 : static_cast<std::uint64_t>(c.op),
            message ? 0 : static_cast<std::uint64_t>(c.peer), c.count};
  }

  void give(std::size_t to, const nccl_call& c, const std::byte* from, bool must_be_taken = false) {
    const heading h = heading_of(c);
    const auto* const head = reinterpret_cast<const std::byte*>(&h);
    outgoing& o = outgoing_[to];
    o.data.insert(o.data.end(), head, head + sizeof h);
    o.data.insert(o.data.end(), from, from + c.count * size_of(c.type));
    if (must_be_taken) o.taken_at = comm_->line->written(static_cast<int>(to)) + o.data.size();
  }
  void expect(std::size_t from, std::size_t call) {
    const nccl_call& c = calls_[call];
    incoming_[from].push_back({call, heading_of(c), bytes(sizeof(heading) + c.count * size_of(c.type)), 0});
  }

  void begin() {
    begun_ = true;
    outgoing_.resize(n()), incoming_.resize(n());
    machine& m = machine::it();
    const arena::opened now(m.memory(comm_->device));
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const nccl_call& c = calls_[i];
      const std::size_t whole = c.count * size_of(c.type);
      inputs_.emplace_back(c.in, c.in + bytes_in(c, comm_->rank, comm_->n));
      const std::byte* const mine = inputs_.back().data();
      const auto peer = static_cast<std::size_t>(c.peer);
      if (c.kind == nccl_kind::send) give(peer, c, mine, true);
      if (c.kind == nccl_kind::receive) expect(peer, i);
      for (std::size_t j = 0; j < n(); ++j) {
        if (j == me() || c.kind == nccl_kind::send || c.kind == nccl_kind::receive) continue;
        const bool rooted = c.kind == nccl_kind::broadcast || c.kind == nccl_kind::reduce;
        const bool from_root = c.kind == nccl_kind::broadcast;
        if (!rooted || (from_root ? peer == me() : peer == j))
          give(j, c, mine + (c.kind == nccl_kind::reduce_scatter ? j * whole : 0));
        if (!rooted || (from_root ? peer == j : peer == me())) expect(j, i);
      }
    }
    for (const nccl_call& c : calls_)
      if (const std::size_t size = bytes_out(c, comm_->rank, comm_->n); size > 0) std::memset(c.out, 0xff, size);
  }

  bool push() {
    bool moved = false;
    for (std::size_t j = 0; j < n(); ++j) {
      outgoing& o = outgoing_[j];
      const std::size_t went = comm_->line->write(static_cast<int>(j), o.data.data() + o.sent, o.data.size() - o.sent);
      o.sent += went;
      moved = moved || went > 0;
    }
    return moved;
  }

  bool pull() {
    bool moved = false;
    for (std::size_t j = 0; j < n(); ++j)
      for (incoming& i : incoming_[j]) {
        const auto read_to = [&](std::size_t end) {
          const std::size_t came = comm_->line->read(static_cast<int>(j), i.data.data() + i.come, end - i.come);
          i.come += came;
          moved = moved || came > 0;
        };
        if (i.come < sizeof(heading)) {
          read_to(sizeof(heading));
          if (i.come < sizeof(heading)) break;  // what follows has not come either
          if (std::memcmp(i.data.data(), &i.expected, sizeof(heading)) != 0) {
            complain("members of a communicator call different things; NCCL would hang, and so does this");
            wrong_ = true;
            return false;
          }
        }
        read_to(i.data.size());
        if (i.come < i.data.size()) break;
      }
    return moved;
  }

  bool is_complete() const {
    for (std::size_t j = 0; j < n(); ++j) {
      const outgoing& o = outgoing_[j];
      if (o.sent < o.data.size() || comm_->line->taken(static_cast<int>(j)) < o.taken_at) return false;
      for (const incoming& i : incoming_[j])
        if (i.come < i.data.size()) return false;
    }
    return true;
  }

  const std::byte* from(std::size_t j, std::size_t call) const {
    for (const incoming& i : incoming_[j])
      if (i.call == call) return i.data.data() + sizeof(heading);
    return nullptr;
  }

  void end() {
    machine& m = machine::it();
    const arena::opened now(m.memory(comm_->device));
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const nccl_call& c = calls_[i];
      const std::size_t whole = c.count * size_of(c.type), peer = static_cast<std::size_t>(c.peer);
      if (whole == 0 || bytes_out(c, comm_->rank, comm_->n) == 0) continue;
      std::vector<const std::byte*> all;
      for (std::size_t j = 0; j < n(); ++j) all.push_back(j == me() ? inputs_[i].data() : from(j, i));
      switch (c.kind) {
        case nccl_kind::all_gather:
          for (std::size_t j = 0; j < n(); ++j) std::memcpy(c.out + j * whole, all[j], whole);
          break;
        case nccl_kind::reduce_scatter:
          all[me()] += me() * whole;
          std::memcpy(c.out, reduce(c, all, me() * c.count).data(), whole);
          break;
        case nccl_kind::all_reduce:
        case nccl_kind::reduce:
          std::memcpy(c.out, reduce(c, all, 0).data(), whole);
          break;
        case nccl_kind::broadcast:
          std::memcpy(c.out, all[peer], whole);
          break;
        case nccl_kind::receive:
          std::memcpy(c.out, from(peer, i), whole);
          break;
        case nccl_kind::send:
          break;
      }
    }
  }

  communicator comm_;
  std::vector<nccl_call> calls_;
  std::uint64_t number_ = 0;
  bool begun_ = false, wrong_ = false;
  std::vector<bytes> inputs_;                    // by call
  std::vector<outgoing> outgoing_;               // by member
  std::vector<std::vector<incoming>> incoming_;  // by member, in the order of calls
};

}  // namespace

operation exchange_of(communicator comm, std::vector<nccl_call> calls) {
  auto made = std::make_shared<exchange>(std::move(comm), std::move(calls));
  return [made] { return made->go_on(); };
}

}  // namespace simulated
