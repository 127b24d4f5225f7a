// SPDX-License-Identifier: Apache-2.0
// Every collective over NCCL itself, on all ranks and on halves of them, with buffers of the host and of the device.
// Without a GPU it says so, and ends with status 77. Started once per rank, as docs/gpu.md says.
#include <cstdio>
#include <cstdlib>

#include "../unit/collective_checks.hpp"
#include "runtime/device/cuda/memory.hpp"
#include "runtime/engine/nccl/process.hpp"
#include "tests/nccl/ranks.hpp"

namespace {

using namespace shardplan;
using namespace shardplan::runtime;
using namespace collective_checks;

/// One ring and one sum in the memory of the device.
void check_device_buffers(nccl_process& process, const nccl_group& g) {
  nccl_communicator& c = process.world();
  const cuda::stream stream(process.device());
  constexpr num size = 1000;
  const std::vector<double> mine = values<double>(c.rank(), size);
  cuda::device_memory<double> x(size, stream), y(size, stream);
  cuda::copy_to_device(x.data(), mine.data(), size * num{sizeof(double)}, stream);
  c.send(g, std::span<const double>(x.span()), (g.index() + 1) % g.size());
  c.receive(g, y.span(), (g.index() + g.size() - 1) % g.size());
  c.all_reduce(g, x.span());
  std::vector<double> sum(size), ring(size);
  cuda::copy_to_host(sum.data(), x.data(), size * num{sizeof(double)}, stream);
  cuda::copy_to_host(ring.data(), y.data(), size * num{sizeof(double)}, stream);
  for (num e = 0; e < size; ++e) require(sum[at(e)] == reduced<double>(g, reduce_op::sum, e), "sum on the device");
  require(ring == values<double>(g.member((g.index() + g.size() - 1) % g.size()), size), "ring on the device");
}

int check_all() {
  if (const std::string obstacle = nccl_obstacle(); !obstacle.empty()) {
    std::printf("skipped: %s\n", obstacle.c_str());
    return 77;
  }
  nccl_process process(std::chrono::seconds(60));
  nccl_communicator& c = process.world();
  const num n = c.world_size(), r = c.rank();
  const auto all = c.group(everybody(n, r), {});
  ranks::do_and_tell(c, [&] {
    check_types(c, all);
    check_device_buffers(process, all);
    if (n % 2 != 0) return;
    rank_group half;
    half.first = r < n / 2 ? 0 : n / 2;
    half.index = r - half.first;
    half.steps.push_back({n / 2, 1});
    check_collectives<double>(c, c.group(half, axis::tp));
  });
  if (r == 0) std::printf("every collective over NCCL on %lld ranks\n", static_cast<long long>(n));
  process.finish(0);
  return 0;
}

}  // namespace

int main() {
  try {
    return check_all();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "nccl_collectives: %s\n", e.what());
  } catch (const run_aborted&) {
    std::fprintf(stderr, "nccl_collectives: another rank has failed\n");
  }
  std::_Exit(engine_error::exit_code);
}
