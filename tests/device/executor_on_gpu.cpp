// SPDX-License-Identifier: Apache-2.0
// The executor with a GPU's launcher. Nobody calls it: the engine of threads reads and writes memory of the host. What
// it shows is that the executor compiles for a GPU, and that it launches no kernel that no .cu file names: that would
// not link.
#include "runtime/device/cuda/device.hpp"
#include "runtime/device/cuda/launcher.hpp"
#include "runtime/engine/threads/threads.hpp"
#include "runtime/sharded/run.hpp"

namespace shardplan::runtime {

using gpu = cuda::cuda_device<cuda::gpu_launcher>;
static_assert(Device<gpu>);

template gathered_result<float> run_sharded<float, planned_methods>(thread_communicator&, const checkpoint&,
                                                                    const plan_spec&, num, const row_loader&,
                                                                    const run_options&, const gpu&);
template gathered_result<double> run_sharded<double, planned_methods>(thread_communicator&, const checkpoint&,
                                                                      const plan_spec&, num, const row_loader&,
                                                                      const run_options&, const gpu&);

}  // namespace shardplan::runtime
