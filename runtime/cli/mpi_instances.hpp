// SPDX-License-Identifier: Apache-2.0
// The executor on the engine of MPI, compiled once per type: whoever includes this does not instantiate it again.
#ifndef SHARDPLAN_RUNTIME_CLI_MPI_INSTANCES_HPP
#define SHARDPLAN_RUNTIME_CLI_MPI_INSTANCES_HPP

#include "runtime/engine/mpi/mpi.hpp"
#include "runtime/sharded/run.hpp"

namespace shardplan::runtime {

extern template gathered_result<float> run_sharded<float, planned_methods>(mpi_communicator&, const checkpoint&,
                                                                           const plan_spec&, num, const row_loader&,
                                                                           const run_options&, const cpu_device&);
extern template gathered_result<double> run_sharded<double, planned_methods>(mpi_communicator&, const checkpoint&,
                                                                             const plan_spec&, num, const row_loader&,
                                                                             const run_options&, const cpu_device&);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CLI_MPI_INSTANCES_HPP
