// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDPLAN_RUNTIME_ENGINE_MPI_OPTIONS_HPP
#define SHARDPLAN_RUNTIME_ENGINE_MPI_OPTIONS_HPP

#include <chrono>
#include <shardplan/meta.hpp>

namespace shardplan::runtime {

struct mpi_options {
  std::chrono::milliseconds timeout{60000};  ///< of each single wait, and of the beginning and the end of MPI
  num chunk_bytes = num{1} << 26;            ///< no more is given to MPI at once, whose counts are int; at most 2^30
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_MPI_OPTIONS_HPP
