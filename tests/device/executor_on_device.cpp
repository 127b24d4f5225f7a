// SPDX-License-Identifier: Apache-2.0
#include "tests/device/executor_on_device.hpp"

namespace shardplan::runtime {

static_assert(Device<cpu_device> && Device<kernels_on_host> && Communicator<guarded::communicator>);

template gathered_result<double> run_sharded<double, planned_methods>(thread_communicator&, const checkpoint&,
                                                                      const plan_spec&, num, const row_loader&,
                                                                      const run_options&, const kernels_on_host&);
template gathered_result<float> run_sharded<float, planned_methods>(guarded::communicator&, const checkpoint&,
                                                                    const plan_spec&, num, const row_loader&,
                                                                    const run_options&, const kernels_on_guarded&);
template gathered_result<float> run_sharded<bf16, planned_methods>(guarded::communicator&, const checkpoint&,
                                                                   const plan_spec&, num, const row_loader&,
                                                                   const run_options&, const kernels_on_guarded&);

}  // namespace shardplan::runtime
