// SPDX-License-Identifier: Apache-2.0
// Kernels whose source runs on a GPU and on the host alike. A kernel is a sequence of steps between barriers: on the
// GPU every thread of a block takes a step and waits for the others (__syncthreads); on the host the threads of a block
// take each step one after another. What outlives a step is explicit: `state` per thread, `shared` per block.
//
//   template <class T>
//   struct scale_kernel {
//     static constexpr int threads = 256;
//     struct arguments { T* x; num size; T factor; };
//     struct shared {};
//     struct state {};
//     SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 1; }
//     SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num, const place& at, state&, shared&) {
//       const num i = at.block * threads + at.thread;
//       if (i < a.size) a.x[i] *= a.factor;
//     }
//   };
//
// Threads of one step must not read what another thread of it writes, nor write what another writes: the host can run
// the threads of a step in either order, and a test holds both orders to the same bits.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_KERNEL_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_KERNEL_HPP

#include <cstring>  // memset
#include <memory>   // make_unique
#include <shardplan/meta.hpp>
#include <type_traits>  // is_trivially_copyable_v
#include <vector>

#ifdef __CUDACC__
#define SHARDPLAN_HOST_DEVICE __host__ __device__
#else
#define SHARDPLAN_HOST_DEVICE
#endif

namespace shardplan::runtime::cuda {

/// Where a thread stands: which block of how many, which thread of the block.
struct place {
  num block, blocks;
  int thread;
};

/// Runs kernels on the host. `reversed`: the last thread of a block first, the last block first.
class host_launcher {
 public:
  explicit host_launcher(bool reversed = false) : reversed_(reversed) {}

  template <class Kernel>
  void launch(num blocks, const typename Kernel::arguments& arguments) const {
    using shared = typename Kernel::shared;
    using state = typename Kernel::state;
    static_assert(std::is_trivially_copyable_v<shared> && std::is_trivially_copyable_v<state>);
    static_assert(std::is_trivially_copyable_v<typename Kernel::arguments>);
    const auto of_block = std::make_unique<shared>();
    std::vector<state> of_thread(static_cast<std::size_t>(Kernel::threads));
    for (num b = 0; b < blocks; ++b) {
      const num block = reversed_ ? blocks - 1 - b : b;
      // Memory of a GPU holds anything at first: NaN in floating point shows what reads it unwritten.
      std::memset(static_cast<void*>(of_block.get()), 0xff, sizeof(shared));
      std::memset(static_cast<void*>(of_thread.data()), 0xff, sizeof(state) * of_thread.size());
      const num steps = Kernel::steps(arguments, block);
      for (num s = 0; s < steps; ++s)
        for (int t = 0; t < Kernel::threads; ++t) {
          const int thread = reversed_ ? Kernel::threads - 1 - t : t;
          Kernel::step(arguments, s, place{block, blocks, thread}, of_thread[static_cast<std::size_t>(thread)],
                       *of_block);
        }
    }
  }

 private:
  bool reversed_;
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_KERNEL_HPP
