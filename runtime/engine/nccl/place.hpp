// SPDX-License-Identifier: Apache-2.0
// Which rank a process is, and where it meets the others: what launchers say in variables of the environment.
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_PLACE_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_PLACE_HPP

#include <functional>
#include <shardplan/meta.hpp>
#include <string>
#include <utility>  // pair
#include <vector>

namespace shardplan::runtime {

struct process_place {
  num rank = 0;
  num world_size = 1;
  num local_rank = 0;      ///< among the processes of this machine
  std::string address;     ///< of rank 0's machine: a name, or an address of IPv4 or IPv6
  num port = 0;            ///< which rank 0 listens on
  bool share_gpu = false;  ///< several ranks may use one GPU
};

/// The text of a variable, null where it is not set: as std::getenv.
using variable_reader = std::function<const char*(const char*)>;

/// RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, as torchrun sets them, or the first three as an mpirun names
/// them; SHARDPLAN_MASTER_PORT goes before MASTER_PORT, and SHARDPLAN_SHARE_GPU=1 lets ranks share a GPU. Without any
/// rank or world size: a world of one. input_error naming the variable and its value.
process_place read_place(const variable_reader& variable);

/// The GPU of a process where there are `num_devices`. engine_error when there are none, or too few for this rank.
num device_of(const process_place& place, num num_devices);

/// What NCCL must find in the environment so that ranks which share a GPU connect: it refuses two ranks with one GPU
/// on one host, hence each gets a host of its own by name, and talks to the others by sockets. Empty where nothing is
/// shared.
std::vector<std::pair<std::string, std::string>> shared_gpu_variables(const process_place& place);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_PLACE_HPP
