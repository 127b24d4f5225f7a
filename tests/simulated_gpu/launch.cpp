// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>  // sysconf

#include "tests/simulated_gpu/launcher.hpp"
#include "tests/simulated_gpu/machine.hpp"

namespace simulated {
namespace {

/// Whether the word is an address of this process: of its memory, its code or a stack, and not of a device.
bool is_of_host(std::uint64_t word) {
  if (word < std::uint64_t{1} << 40 || word >= std::uint64_t{1} << 47) return false;
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  unsigned char there = 0;
  return mincore(reinterpret_cast<void*>(word / page * page), page, &there) == 0;
}

/// -1, or at which byte of the arguments there is memory of the host.
int host_address_in(const machine& m, std::span<const std::byte> arguments) {
  for (std::size_t i = 0; i + 8 <= arguments.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, arguments.data() + i, 8);
    const void* const at = reinterpret_cast<const void*>(word);
    if (m.device_of(at) < 0 && m.place_of(at, 1) != place::pinned && is_of_host(word)) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

cudaError_t launch(CUstream_st* on, const std::type_info& kernel, std::span<const std::byte> arguments,
                   std::function<void(bool)> run) {
  machine& m = machine::it();
  const auto held = m.lock();
  if (m.has_failed()) return report(cudaErrorIllegalAddress);
  CUstream_st* const stream = m.find(on);
  if (stream == nullptr || stream->device != machine::current_device()) return report(cudaErrorInvalidResourceHandle);
  const bool reversed = m.by_chance(2);
  const int wrong = host_address_in(m, arguments);
  const std::string name = shardplan::runtime::cuda::name_of(kernel);
  m.enqueue(stream, [&m, stream, run = std::move(run), name, wrong, reversed] {
    if (wrong >= 0) {
      m.fail(name + " is given memory of the host, at byte " + std::to_string(wrong) + " of its arguments");
      return step::done;
    }
    const arena::opened now(m.memory(stream->device));
    run(reversed);
    return step::done;
  });
  return cudaSuccess;
}

}  // namespace simulated
