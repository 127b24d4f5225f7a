// SPDX-License-Identifier: Apache-2.0
// The calls of NCCL. Those of one group are put on their streams at its end; on those of a communicator that does not
// block, some time after: ncclCommGetAsyncError says when. A communicator that is used before is refused.
#include <unistd.h>  // gethostname

#include <cstdlib>  // getenv
#include <stdexcept>
#include <thread>  // sleep_for

#include "tests/simulated_gpu/collective.hpp"

using namespace simulated;

namespace {

std::map<ncclComm_t, communicator>& communicators() {
  static auto& all = *new std::map<ncclComm_t, communicator>;
  return all;
}

std::string& last_error() {
  thread_local std::string text;
  return text;
}

ncclResult_t refuse(ncclResult_t code, const std::string& why) {
  last_error() = why;
  return code;
}

communicator find(ncclComm_t comm) {
  const auto found = communicators().find(comm);
  return found == communicators().end() ? nullptr : found->second;
}

/// What two ranks must not both have.
std::string name_of_gpu(int device) {
  char name[64] = {};
  gethostname(name, sizeof name - 1);
  const char* const host = std::getenv("NCCL_HOSTID");
  return std::string(host != nullptr ? host : name).substr(0, 100) + " " + std::to_string(device);
}

/// Brings the state up to date, a look at a time.
void look(machine& m, ncclComm& c) {
  if (!c.all_met) {
    if (!c.line->all_there() || (!c.blocking && m.by_chance(2))) return;
    c.all_met = true;
    const auto [first, second] = c.line->duplicate();
    c.state = first < 0 ? ncclSuccess
                        : refuse(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(second) +
                                                       " and rank " + std::to_string(first) + " both on one device");
  } else if (c.state == ncclInProgress && (c.blocking || m.by_chance(2))) {
    for (const auto& start : std::exchange(c.to_start, {})) start();
    c.state = ncclSuccess;
  }
}

// ---- groups

struct grouped {
  communicator comm;
  CUstream_st* stream;
  nccl_call call;
};
struct group {
  int depth = 0;
  ncclResult_t wrong = ncclSuccess;
  std::vector<grouped> calls;
};
group& this_group() {
  thread_local group g;
  return g;
}

bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

/// Whether input and output lie as NCCL allows it in place.
bool lies_in_place(const nccl_call& c, int rank) {
  const std::size_t part = static_cast<std::size_t>(rank) * c.count * size_of(c.type);
  return c.kind == nccl_kind::all_gather       ? c.in == c.out + part
         : c.kind == nccl_kind::reduce_scatter ? c.out == c.in + part
                                               : c.in == c.out;
}

ncclResult_t start(group& g) {
  const std::vector<grouped> all = std::exchange(g.calls, {});
  const ncclResult_t wrong = std::exchange(g.wrong, ncclSuccess);
  if (wrong != ncclSuccess) return wrong;
  for (const grouped& a : all)
    for (const grouped& b : all) {
      const auto [rank, n] = std::pair(a.comm->rank, a.comm->n);
      const bool same = &a == &b;
      const std::size_t out = bytes_out(a.call, rank, n);
      if ((overlap(a.call.out, out, b.call.in, bytes_in(b.call, b.comm->rank, b.comm->n)) &&
           !(same && lies_in_place(a.call, rank))) ||
          (!same && overlap(a.call.out, out, b.call.out, bytes_out(b.call, b.comm->rank, b.comm->n))))
        return refuse(ncclInvalidArgument, "buffers of one group overlap, and not in place");
    }
  machine& m = machine::it();
  ncclResult_t result = ncclSuccess;
  std::map<std::pair<ncclComm_t, CUstream_st*>, std::vector<nccl_call>> by_stream;
  for (const grouped& a : all) by_stream[{a.comm.get(), a.stream}].push_back(a.call);
  for (const auto& [where, calls] : by_stream) {
    const communicator comm = find(where.first);
    comm->to_start.push_back([&m, comm, on = where.second, what = calls] { m.enqueue(on, exchange_of(comm, what)); });
    comm->state = ncclInProgress;
    if (comm->blocking) look(m, *comm);
    if (comm->state == ncclInProgress) result = ncclInProgress;
  }
  return result;
}

std::string obstacle(machine& m, const ncclComm& comm, const nccl_call& c, const CUstream_st* stream) {
  const auto lies_there = [&](const void* at, std::size_t bytes) {
    return bytes == 0 || (m.place_of(at, bytes) == place::device && m.device_of(at) == comm.device);
  };
  if (comm.state == ncclInProgress)
    return "Attempt to use communicator before the previous operation returned ncclSuccess";
  if (comm.state != ncclSuccess) return "the communicator has failed";
  if (stream == nullptr || stream->device != comm.device) return "the stream is of no use for the communicator";
  if (size_of(c.type) == 0 || (c.op != ncclSum && c.op != ncclMax && c.op != ncclMin)) return "this is not simulated";
  if (c.peer < -1 || c.peer >= comm.n) return "Invalid root or peer";
  if (!lies_there(c.in, bytes_in(c, comm.rank, comm.n)) || !lies_there(c.out, bytes_out(c, comm.rank, comm.n)))
    return "a buffer is no allocation of the communicator's device";
  return "";
}

ncclResult_t put(nccl_call c, ncclComm_t comm, cudaStream_t on) {
  machine& m = machine::it();
  const auto held = m.lock();
  group& g = this_group();
  const communicator found = find(comm);
  CUstream_st* const stream = m.find(on);
  const std::string wrong = found == nullptr ? "no such communicator" : obstacle(m, *found, c, stream);
  if (!wrong.empty()) return g.wrong = refuse(ncclInvalidArgument, wrong);
  if (m.has_failed()) return g.wrong = ncclUnhandledCudaError;
  g.calls.push_back({found, stream, c});
  return g.depth > 0 ? ncclSuccess : start(g);
}

const std::byte* in(const void* at) { return static_cast<const std::byte*>(at); }
std::byte* out(void* at) { return static_cast<std::byte*>(at); }

}  // namespace

ncclResult_t ncclGroupStart() {
  ++this_group().depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  const auto held = machine::it().lock();
  if (this_group().depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  return --this_group().depth == 0 ? start(this_group()) : ncclSuccess;
}

// ---- communicators

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  for (char& c : id->internal) c = static_cast<char>(random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int n, ncclUniqueId id, int rank, ncclConfig_t* config) {
  machine& m = machine::it();
  auto held = m.lock();
  *comm = nullptr;
  if (n < 1 || n > 64 || rank < 0 || rank >= n) return refuse(ncclInvalidArgument, "Invalid rank requested");
  if (config != nullptr && config->magic != 0xcafebeef)
    return refuse(ncclInvalidArgument, "config was not initialized");
  std::string name;
  for (int i = 0; i < 16; ++i) {
    constexpr char digits[] = "0123456789abcdef";
    name += digits[static_cast<unsigned char>(id.internal[i]) / 16];
    name += digits[static_cast<unsigned char>(id.internal[i]) % 16];
  }
  auto made = std::make_shared<ncclComm>();
  made->n = n, made->rank = rank, made->device = machine::current_device();
  made->blocking = config == nullptr || config->blocking != 0;
  try {
    made->line = std::make_unique<rings>(name, n, rank, name_of_gpu(made->device));
  } catch (const std::runtime_error& e) {
    return refuse(ncclSystemError, e.what());
  }
  communicators()[made.get()] = made;
  *comm = made.get();
  while (made->blocking && !made->all_met) {
    look(m, *made);
    held.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    held.lock();
  }
  return made->state;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  machine& m = machine::it();
  const auto held = m.lock();
  const communicator found = find(comm);
  if (found == nullptr) return refuse(ncclInvalidArgument, "no such communicator");
  look(m, *found);
  *state = m.has_failed() ? ncclUnhandledCudaError : found->state;
  return ncclSuccess;
}

/// What is on streams ends without having done anything, here alone: others wait on.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const auto held = machine::it().lock();
  const communicator found = find(comm);
  if (found == nullptr) return refuse(ncclInvalidArgument, "no such communicator");
  found->aborted = true;
  found->to_start.clear();
  communicators().erase(comm);
  return ncclSuccess;
}

// ---- collectives

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return put({nccl_kind::all_reduce, in(from), out(to), count, type, op, -1}, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return put({nccl_kind::all_gather, in(from), out(to), count, type, ncclSum, -1}, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return put({nccl_kind::reduce_scatter, in(from), out(to), count, type, op, -1}, comm, stream);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return put({nccl_kind::broadcast, in(from), out(to), count, type, ncclSum, root}, comm, stream);
}
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return put({nccl_kind::reduce, in(from), out(to), count, type, op, root}, comm, stream);
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return put({nccl_kind::send, in(from), nullptr, count, type, ncclSum, peer}, comm, stream);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return put({nccl_kind::receive, nullptr, out(to), count, type, ncclSum, peer}, comm, stream);
}

// ---- errors

const char* ncclGetLastError(ncclComm_t) { return last_error().c_str(); }
const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}
