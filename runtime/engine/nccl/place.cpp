// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/place.hpp"

#include "runtime/error.hpp"

namespace shardplan::runtime {

namespace {

constexpr num most_ranks = num{1} << 20;

/// How launchers call a rank's place: torchrun, Open MPI's mpirun, that of MPICH and Intel. Not Slurm, which sets its
/// variables for the one process of a batch script as well.
struct launcher_variables {
  const char *rank, *world_size, *local_rank;
};
constexpr launcher_variables launchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
};

/// The first that has set a rank or a world size; null where none has.
const launcher_variables* launcher_of(const variable_reader& variable) {
  for (const launcher_variables& l : launchers)
    if (variable(l.rank) != nullptr || variable(l.world_size) != nullptr) return &l;
  return nullptr;
}

/// pre: there is a launcher, or the variable is set
std::string text_of(const variable_reader& variable, const char* name) {
  const char* const text = variable(name);
  if (text != nullptr) return text;
  const launcher_variables& by = *launcher_of(variable);
  throw input_error(std::string(name) + ": is not set, although " +
                    (variable(by.rank) != nullptr ? by.rank : by.world_size) + " is");
}

num number_of(const variable_reader& variable, const char* name, num least, num most) {
  const std::string text = text_of(variable, name);
  num value = 0;
  bool good = !text.empty() && text.size() <= 9;
  for (char c : text) {
    good = good && c >= '0' && c <= '9';
    if (good) value = value * 10 + (c - '0');
  }
  if (!good || value < least || value > most)
    throw input_error(std::string(name) + ": must be a whole number from " + std::to_string(least) + " to " +
                      std::to_string(most) + ", not '" + text.substr(0, 40) + "'");
  return value;
}

}  // namespace

process_place read_place(const variable_reader& variable) {
  const auto is_set = [&](const char* name) { return variable(name) != nullptr; };
  process_place place;
  if (is_set("SHARDPLAN_SHARE_GPU")) place.share_gpu = number_of(variable, "SHARDPLAN_SHARE_GPU", 0, 1) == 1;
  const launcher_variables* const by = launcher_of(variable);
  if (by == nullptr) {
    if (is_set("LOCAL_RANK")) place.local_rank = number_of(variable, "LOCAL_RANK", 0, most_ranks - 1);
    return place;
  }
  place.world_size = number_of(variable, by->world_size, 1, most_ranks);
  place.rank = number_of(variable, by->rank, 0, place.world_size - 1);
  place.local_rank = number_of(variable, by->local_rank, 0, place.world_size - 1);
  if (place.world_size == 1) return place;
  place.address = text_of(variable, "MASTER_ADDR");
  if (place.address.empty()) throw input_error("MASTER_ADDR: must not be empty");
  place.port = number_of(variable, is_set("SHARDPLAN_MASTER_PORT") ? "SHARDPLAN_MASTER_PORT" : "MASTER_PORT", 1, 65535);
  return place;
}

num device_of(const process_place& place, num num_devices) {
  if (num_devices == 0)
    throw engine_error("the engine nccl needs a GPU, and CUDA finds none here; use --engine threads");
  if (place.share_gpu) return place.local_rank % num_devices;
  if (place.local_rank < num_devices) return place.local_rank;
  throw engine_error("rank " + std::to_string(place.rank) + " has LOCAL_RANK " + std::to_string(place.local_rank) +
                     ", but there are only " + std::to_string(num_devices) +
                     " GPUs; ranks share them, for verification alone, with SHARDPLAN_SHARE_GPU=1");
}

std::vector<std::pair<std::string, std::string>> shared_gpu_variables(const process_place& place) {
  if (!place.share_gpu) return {};
  return {{"NCCL_HOSTID", "shardplan-rank-" + std::to_string(place.rank)},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_P2P_DISABLE", "1"},
          {"NCCL_SHM_DISABLE", "1"},
          {"NCCL_IB_DISABLE", "1"}};
}

}  // namespace shardplan::runtime
