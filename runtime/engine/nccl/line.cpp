// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/line.hpp"

#include <chrono>
#include <cstring>  // memcpy
#include <future>
#include <thread>

#include "runtime/device/cuda/error.hpp"
#include "runtime/engine/nccl/nccl_error.hpp"

namespace shardplan::runtime::detail {

namespace {

/// NCCL may wait for its own threads when it gives up; the process must end all the same.
constexpr std::chrono::milliseconds abort_patience{500};

ncclDataType_t type_of(element_type t) {
  constexpr ncclDataType_t types[] = {ncclFloat32, ncclFloat64, ncclInt64, ncclUint64, ncclInt32, ncclBfloat16};
  return types[static_cast<std::size_t>(t)];
}

ncclRedOp_t operator_of(reduce_op op) {
  constexpr ncclRedOp_t operators[] = {ncclSum, ncclMax, ncclMin};
  return operators[static_cast<std::size_t>(op)];
}

}  // namespace

bool is_on_device(const void* address) {
  cudaPointerAttributes what{};
  cuda::check(cudaPointerGetAttributes(&what, address), "cudaPointerGetAttributes");
  return what.type == cudaMemoryTypeDevice || what.type == cudaMemoryTypeManaged;
}

void put_after(CUstream_st* earlier, CUstream_st* later) {
  if (earlier == nullptr) return;
  cudaEvent_t event = nullptr;
  cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  const cudaError_t recorded = cudaEventRecord(event, earlier);
  const cudaError_t waits = recorded == cudaSuccess ? cudaStreamWaitEvent(later, event, 0) : recorded;
  static_cast<void>(cudaEventDestroy(event));  // freed when it has been reached
  cuda::check(recorded, "cudaEventRecord");
  cuda::check(waits, "cudaStreamWaitEvent");
}

nccl_line::nccl_line(const communicator_id& id, num n, num index, int device, CUstream_st* const& producer)
    : producer_(producer), stream_(device) {
  cuda::check(cudaEventCreateWithFlags(&reached_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  ncclUniqueId key;
  static_assert(sizeof key.internal == sizeof id);
  std::memcpy(key.internal, id.data(), sizeof key.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t code = ncclCommInitRankConfig(&comm_, static_cast<int>(n), key, static_cast<int>(index), &config);
  if (code == ncclSuccess || code == ncclInProgress) return;
  abort();
  static_cast<void>(cudaEventDestroy(reached_));
  check(code, "ncclCommInitRankConfig");
}

nccl_line::~nccl_line() {
  abort();
  static_cast<void>(cudaEventDestroy(reached_));
}

bool nccl_line::ready() {
  if (comm_ == nullptr) throw engine_error("the communicator was aborted");
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
  check(state, enqueuing_ ? "NCCL, in a collective" : "NCCL", comm_);
  return state == ncclSuccess;
}

bool nccl_line::stages(const device_call& call) {
  return (call.in_size > 0 && !is_on_device(call.in)) || (call.out_size > 0 && !is_on_device(call.out));
}

/// Puts buffers of the device in the place of those of the host.
void nccl_line::stage(device_call& call) {
  const num unit = size_of(call.type);
  const num in_bytes = call.in_size * unit, out_bytes = call.out_size * unit;
  const bool in_place = call.in == call.out && call.in_size == call.out_size;
  const bool stage_in = in_bytes > 0 && !is_on_device(call.in), stage_out = out_bytes > 0 && !is_on_device(call.out);
  if (!stage_in && !stage_out) return;
  staged& s = staged_.emplace_back();
  if (stage_out) {
    s.out = cuda::device_bytes(out_bytes, stream_);
    s.out_to = call.out;
    s.out_bytes = out_bytes;
    call.out = static_cast<std::byte*>(s.out.data());
  }
  if (!stage_in) return;
  if (!in_place) s.in = cuda::device_bytes(in_bytes, stream_);
  void* const to = in_place ? s.out.data() : s.in.data();
  cuda::copy_to_device(to, call.in, in_bytes, stream_);
  call.in = static_cast<const std::byte*>(to);
}

void nccl_line::enqueue(const device_call& call, const nccl_step& s) {
  const num unit = size_of(call.type);
  const void* const from = s.from < 0 ? nullptr : call.in + s.from * unit;
  void* const to = s.to < 0 ? nullptr : call.out + s.to * unit;
  const auto count = static_cast<std::size_t>(s.count);
  const int peer = static_cast<int>(s.peer);
  const ncclDataType_t type = type_of(call.type);
  const ncclRedOp_t op = operator_of(call.reduce);
  const auto enqueued = [&]() -> ncclResult_t {
    switch (s.kind) {
      case nccl_function::all_reduce:
        return ncclAllReduce(from, to, count, type, op, comm_, stream_.get());
      case nccl_function::all_gather:
        return ncclAllGather(from, to, count, type, comm_, stream_.get());
      case nccl_function::reduce_scatter:
        return ncclReduceScatter(from, to, count, type, op, comm_, stream_.get());
      case nccl_function::broadcast:
        return ncclBroadcast(from, to, count, type, peer, comm_, stream_.get());
      case nccl_function::reduce:
        return ncclReduce(from, to, count, type, op, peer, comm_, stream_.get());
      case nccl_function::send:
        return ncclSend(from, count, type, peer, comm_, stream_.get());
      case nccl_function::receive:
        return ncclRecv(to, count, type, peer, comm_, stream_.get());
      case nccl_function::copy:
        break;
    }
    return ncclSuccess;
  };
  check(enqueued(), name_of(s.kind), comm_);
}

void nccl_line::enqueue_copies(const device_call& call, const std::vector<nccl_step>& steps) {
  const num unit = size_of(call.type);
  for (const nccl_step& s : steps) {
    if (s.kind != nccl_function::copy) continue;
    const std::byte* const from = call.in + s.from * unit;
    std::byte* const to = call.out + s.to * unit;
    if (from == to) continue;  // the part lies where it belongs in the whole
    cuda::check(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(s.count * unit), cudaMemcpyDeviceToDevice, stream_.get()),
        "cudaMemcpyAsync", s.count * unit, "bytes on the device");
  }
}

void nccl_line::start(const device_call& asked, const std::vector<nccl_step>& steps) {
  device_call call = asked;
  put_after(producer_, stream_.get());
  stage(call);
  enqueue_copies(call, steps);
  check(ncclGroupStart(), "ncclGroupStart");
  try {
    for (const nccl_step& s : steps) enqueue(call, s);
  } catch (...) {
    static_cast<void>(ncclGroupEnd());
    throw;
  }
  check(ncclGroupEnd(), "ncclGroupEnd", comm_);
  enqueuing_ = true;
}

bool nccl_line::done() {
  if (!ready()) return false;
  if (enqueuing_) {
    enqueuing_ = false;
    cuda::check(cudaEventRecord(reached_, stream_.get()), "cudaEventRecord");
    running_ = true;
  }
  if (!running_) return true;
  const cudaError_t state = cudaEventQuery(reached_);
  if (state == cudaErrorNotReady) return false;
  cuda::check(state, "cudaEventQuery");
  running_ = false;
  // Only now: a copy to the host's memory waits for the stream, and NCCL may never end.
  for (const staged& s : staged_)
    if (s.out_to != nullptr) cuda::copy_to_host(s.out_to, s.out.data(), s.out_bytes, stream_);
  staged_.clear();
  return true;
}

void nccl_line::abort() noexcept {
  if (comm_ == nullptr) return;
  const ncclComm_t comm = std::exchange(comm_, nullptr);
  try {
    std::packaged_task<void()> give_up([comm] { static_cast<void>(ncclCommAbort(comm)); });
    const std::future<void> given_up = give_up.get_future();
    std::thread(std::move(give_up)).detach();
    static_cast<void>(given_up.wait_for(abort_patience));
  } catch (...) {  // no thread: the end of the process is what is left
  }
}

}  // namespace shardplan::runtime::detail
