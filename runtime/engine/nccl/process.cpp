// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/process.hpp"

#include <cstdio>   // fprintf
#include <cstdlib>  // getenv, setenv, _Exit

#include "runtime/engine/nccl/cuda_library.hpp"

namespace shardplan::runtime {

namespace {

/// Before anything of CUDA: as many queues as it allows, unless the variable says how many. Streams that share a queue
/// wait for each other, and every communicator has one.
void ask_for_queues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

}  // namespace

std::string nccl_obstacle() {
  ask_for_queues();
  try {
    static_cast<void>(device_of({}, cuda::count_devices()));
  } catch (const engine_error& e) {
    return e.what();
  }
  return "";
}

nccl_process::nccl_process(std::chrono::milliseconds timeout) {
  ask_for_queues();
  const process_place place = read_place([](const char* name) { return std::getenv(name); });
  device_ = static_cast<int>(device_of(place, cuda::count_devices()));
  for (const auto& [name, value] : shared_gpu_variables(place)) setenv(name.c_str(), value.c_str(), 0);
  if (place.share_gpu && place.rank == 0)
    std::fprintf(stderr,
                 "shardplan: SHARDPLAN_SHARE_GPU=1: ranks may share a GPU and talk by sockets; this is for "
                 "verification, and says nothing about speed\n");
  library_ = std::make_shared<cuda_library>(device_);
  world_ = std::make_unique<nccl_communicator>(place, timeout, library_);
}

nccl_process::~nccl_process() = default;

void nccl_process::follow(CUstream_st* producer) { library_->follow(producer); }

void nccl_process::finish(int) { world_.reset(); }

void nccl_process::abort(int exit_code) {
  world_->leave();
  std::_Exit(exit_code);
}

}  // namespace shardplan::runtime
