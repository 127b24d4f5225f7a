// SPDX-License-Identifier: Apache-2.0
// What launchers say in the environment: read, or refused naming the variable and its value.
#include <doctest/doctest.h>

#include <map>

#include "ranks.hpp"

namespace {

using namespace ranks;
using variables = std::map<std::string, std::string>;

variable_reader reader(const variables& set) {
  return [&set](const char* name) {
    const auto found = set.find(name);
    return found == set.end() ? nullptr : found->second.c_str();
  };
}

const variables torchrun{{"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"MASTER_ADDR", "node0.example"},
                         {"MASTER_PORT", "29500"}};

std::string refusal(variables set, const std::string& name, const char* value) {
  if (value == nullptr)
    set.erase(name);
  else
    set[name] = value;
  try {
    read_place(reader(set));
  } catch (const input_error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("place: as torchrun says") {
  const process_place p = read_place(reader(torchrun));
  CHECK(p.rank == 5);
  CHECK(p.world_size == 8);
  CHECK(p.local_rank == 1);
  CHECK(p.address == "node0.example");
  CHECK(p.port == 29500);
  CHECK(!p.share_gpu);
}

TEST_CASE("place: as an mpirun says, unless torchrun does") {
  variables set{{"OMPI_COMM_WORLD_RANK", "2"},
                {"OMPI_COMM_WORLD_SIZE", "4"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                {"MASTER_ADDR", "node0.example"},
                {"MASTER_PORT", "29600"}};
  const process_place p = read_place(reader(set));
  CHECK(p.rank == 2);
  CHECK(p.world_size == 4);
  CHECK(p.local_rank == 0);
  CHECK(p.port == 29600);
  CHECK(refusal(set, "MASTER_ADDR", nullptr) == "MASTER_ADDR: is not set, although OMPI_COMM_WORLD_RANK is");
  CHECK(refusal(set, "OMPI_COMM_WORLD_LOCAL_RANK", "x").starts_with("OMPI_COMM_WORLD_LOCAL_RANK: must be"));
  set.insert(torchrun.begin(), torchrun.end());
  CHECK(read_place(reader(set)).rank == 5);
  const variables mpich{
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  CHECK(read_place(reader(mpich)).local_rank == 1);
  // The process of a batch script is alone.
  const variables slurm{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}};
  CHECK(read_place(reader(slurm)).world_size == 1);
}

TEST_CASE("place: alone without any variable") {
  const process_place p = read_place(reader({}));
  CHECK(p.world_size == 1);
  CHECK(p.rank == 0);
  CHECK(p.local_rank == 0);
  const variables second_gpu{{"LOCAL_RANK", "1"}};
  CHECK(read_place(reader(second_gpu)).local_rank == 1);
  // A world of one meets nobody, so that it needs no port.
  const variables one{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}};
  CHECK(read_place(reader(one)).world_size == 1);
}

TEST_CASE("place: another port than the launcher's own") {
  variables set = torchrun;
  set["SHARDPLAN_MASTER_PORT"] = "31000";
  CHECK(read_place(reader(set)).port == 31000);
  CHECK(contains(refusal(set, "SHARDPLAN_MASTER_PORT", "0"), "SHARDPLAN_MASTER_PORT: must be a whole number"));
}

TEST_CASE("place: each variable is refused by name") {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
    CHECK(refusal(torchrun, name, nullptr).starts_with(std::string(name) + ": is not set"));
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"})
    for (const char* value : {"", "x", "-1", "1.5", " 1", "99999999999999999999"}) {
      const std::string text = refusal(torchrun, name, value);
      CHECK(text.starts_with(std::string(name) + ": must be a whole number from "));
      CHECK(contains(text, "not '" + std::string(value)));
    }
  CHECK(refusal(torchrun, "RANK", "8") == "RANK: must be a whole number from 0 to 7, not '8'");
  CHECK(contains(refusal(torchrun, "WORLD_SIZE", "0"), "WORLD_SIZE"));
  CHECK(contains(refusal(torchrun, "LOCAL_RANK", "8"), "LOCAL_RANK"));
  CHECK(contains(refusal(torchrun, "MASTER_PORT", "65536"), "65535"));
  CHECK(contains(refusal(torchrun, "MASTER_ADDR", ""), "MASTER_ADDR: must not be empty"));
  CHECK(contains(refusal(torchrun, "SHARDPLAN_SHARE_GPU", "yes"), "SHARDPLAN_SHARE_GPU: must be"));
}

TEST_CASE("place: which GPU") {
  process_place p = place_of(5, 8, 1);
  p.local_rank = 1;
  CHECK(device_of(p, 2) == 1);
  CHECK_THROWS_WITH_AS(device_of(p, 0), "the engine nccl needs a GPU, and CUDA finds none here; use --engine threads",
                       engine_error);
  CHECK_THROWS_WITH_AS(device_of(p, 1),
                       "rank 5 has LOCAL_RANK 1, but there are only 1 GPUs; ranks share them, for verification alone, "
                       "with SHARDPLAN_SHARE_GPU=1",
                       engine_error);
  CHECK(shared_gpu_variables(p).empty());
  p.share_gpu = true;
  CHECK(device_of(p, 1) == 0);
  CHECK_THROWS_AS(device_of(p, 0), engine_error);
  // Every rank is a host of its own to NCCL.
  const variables set = [](const auto& pairs) {
    return variables(pairs.begin(), pairs.end());
  }(shared_gpu_variables(p));
  CHECK(set.at("NCCL_HOSTID") == "shardplan-rank-5");
  CHECK(set.at("NCCL_SOCKET_IFNAME") == "lo");
  CHECK(set.at("NCCL_P2P_DISABLE") == "1");
  CHECK(set.at("NCCL_SHM_DISABLE") == "1");
}
