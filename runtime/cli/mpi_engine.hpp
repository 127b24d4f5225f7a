// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDPLAN_RUNTIME_CLI_MPI_ENGINE_HPP
#define SHARDPLAN_RUNTIME_CLI_MPI_ENGINE_HPP

#include "runtime/cli/plan_engine.hpp"

namespace shardplan::cli {

/// Begins MPI; each process of its world is one rank.
std::unique_ptr<plan_engine> make_mpi_engine(std::chrono::milliseconds timeout, printer print);

}  // namespace shardplan::cli
#endif  // SHARDPLAN_RUNTIME_CLI_MPI_ENGINE_HPP
