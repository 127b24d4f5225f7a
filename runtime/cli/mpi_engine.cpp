// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/mpi_engine.hpp"

#include "runtime/cli/mpi_instances.hpp"
#include "runtime/cli/process_engine.hpp"

namespace shardplan::cli {

std::unique_ptr<plan_engine> make_mpi_engine(std::chrono::milliseconds timeout, printer print) {
  runtime::mpi_options options;
  options.timeout = timeout;
  return std::make_unique<process_engine<runtime::mpi_process>>(
      engine_kind::mpi, std::make_unique<runtime::mpi_process>(options), std::move(print));
}

}  // namespace shardplan::cli
