// SPDX-License-Identifier: Apache-2.0
// Streams and events of the CUDA runtime.
#include <algorithm>  // find_if
#include <list>

#include "tests/simulated_gpu/machine.hpp"

using namespace simulated;

namespace {

std::list<CUevent_st>& events() {
  static auto& all = *new std::list<CUevent_st>;
  return all;
}

bool is_event(cudaEvent_t event) {
  return std::any_of(events().begin(), events().end(), [&](const CUevent_st& e) { return &e == event; });
}

cudaError_t outcome(const machine& m, cudaError_t otherwise) {
  return report(m.has_failed() ? cudaErrorIllegalAddress : otherwise);
}

}  // namespace

// ---- streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  machine& m = machine::it();
  const auto held = m.lock();
  if (m.num_devices() == 0) return report(cudaErrorNoDevice);
  *stream = m.create_stream((flags & cudaStreamNonBlocking) == 0);
  return outcome(m, cudaSuccess);
}

/// Returns at once; what is on the stream still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  machine& m = machine::it();
  const auto held = m.lock();
  CUstream_st* const found = m.find(stream);
  if (found == nullptr || found->is_default) return report(cudaErrorInvalidResourceHandle);
  m.destroy(found);
  return outcome(m, cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  machine& m = machine::it();
  auto held = m.lock();
  CUstream_st* const found = m.find(stream);
  if (found == nullptr) return report(cudaErrorInvalidResourceHandle);
  const auto end = m.record(found);  // what others put there meanwhile is not waited for
  m.run_until(
      held, [&] { return end->reached; }, found);
  return outcome(m, cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  machine& m = machine::it();
  const auto held = m.lock();
  CUstream_st* const found = m.find(stream);
  if (found == nullptr) return report(cudaErrorInvalidResourceHandle);
  m.pass_time([&] { return found->queue.empty(); });
  return outcome(m, found->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  machine& m = machine::it();
  const auto held = m.lock();
  CUstream_st* const found = m.find(stream);
  if (found == nullptr || !is_event(event)) return report(cudaErrorInvalidResourceHandle);
  if (event->last != nullptr)
    m.enqueue(found, [what = event->last] { return what->reached ? step::done : step::blocked; });
  return outcome(m, cudaSuccess);
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  machine& m = machine::it();
  const auto held = m.lock();
  if (m.num_devices() == 0) return report(cudaErrorNoDevice);
  events().push_back({machine::current_device(), (flags & cudaEventDisableTiming) == 0, nullptr});
  *event = &events().back();
  return outcome(m, cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

/// Who waits for it goes on waiting.
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  machine& m = machine::it();
  const auto held = m.lock();
  if (!is_event(event)) return report(cudaErrorInvalidResourceHandle);
  events().remove_if([&](const CUevent_st& e) { return &e == event; });
  return outcome(m, cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  machine& m = machine::it();
  const auto held = m.lock();
  CUstream_st* const found = m.find(stream);
  if (found == nullptr || !is_event(event) || event->device != found->device)
    return report(cudaErrorInvalidResourceHandle);
  event->last = m.record(found);
  return outcome(m, cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  machine& m = machine::it();
  const auto held = m.lock();
  if (!is_event(event)) return report(cudaErrorInvalidResourceHandle);
  const auto what = event->last;
  if (what != nullptr) m.pass_time([&] { return what->reached; });
  return outcome(m, what == nullptr || what->reached ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  machine& m = machine::it();
  auto held = m.lock();
  if (!is_event(event)) return report(cudaErrorInvalidResourceHandle);
  const auto what = event->last;
  if (what != nullptr) m.run_until(held, [&] { return what->reached; });
  return outcome(m, cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  machine& m = machine::it();
  const auto held = m.lock();
  if (!is_event(begin) || !is_event(end) || !begin->timed || !end->timed || begin->last == nullptr ||
      end->last == nullptr)
    return report(cudaErrorInvalidResourceHandle);
  if (!begin->last->reached || !end->last->reached) return report(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->last->when - begin->last->when).count();
  return outcome(m, cudaSuccess);
}
