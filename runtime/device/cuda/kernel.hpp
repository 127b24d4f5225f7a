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

#include <algorithm>  // copy
#include <cstring>    // memset
#include <memory>     // make_unique
#include <shardplan/meta.hpp>
#include <span>
#include <type_traits>  // is_trivially_copyable_v, integral_constant
#include <vector>

#ifdef __CUDACC__
#define SHARDPLAN_HOST_DEVICE __host__ __device__
#else
#define SHARDPLAN_HOST_DEVICE
#endif

// Loops over what a thread holds are unrolled, so that it is held in registers.
#ifdef __CUDA_ARCH__
#define SHARDPLAN_UNROLL _Pragma("unroll")
#elif defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define SHARDPLAN_UNROLL _Pragma("GCC unroll 16")
#else
#define SHARDPLAN_UNROLL
#endif

namespace shardplan::runtime::cuda {

/// Where a thread stands: which block of how many, which thread of the block.
struct place {
  num block, blocks;
  int thread;
};

/// What kernels read and write: `allocate` gives it holding anything. On the host.
template <class T>
class host_memory {
 public:
  host_memory() = default;
  /// NaN in floating point and no sensible index, so that a test sees what was never written.
  explicit host_memory(num size) : values_(static_cast<std::size_t>(size)) {
    if (size > 0)
      std::memset(static_cast<void*>(values_.data()), std::is_integral_v<T> ? 0x5a : 0xff, values_.size() * sizeof(T));
  }
  num size() const { return static_cast<num>(values_.size()); }
  T* data() { return values_.data(); }
  std::span<T> span() { return values_; }
  std::span<const T> span() const { return values_; }

 private:
  std::vector<T> values_;
};

/// What an operation needs of the thing it runs on. `launch<Kernel>(blocks, arguments)` runs a kernel after all those
/// launched before; `allocate<T>(size)` gives memory that lives as long as its owner and any kernel that reads it;
/// `upload` and `download` copy from and to the host.
template <class L>
concept Launcher = requires(const L& on, std::span<const float> from, std::span<float> to) {
  on.template allocate<float>(num{1}).span();
  on.upload(from).span();
  on.download(from, to);
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

  template <class T>
  host_memory<T> allocate(num size) const {
    return host_memory<T>(size);
  }
  template <class T>
  host_memory<T> upload(std::span<const T> from) const {
    host_memory<T> memory(static_cast<num>(from.size()));
    std::copy(from.begin(), from.end(), memory.data());
    return memory;
  }
  template <class T>
  void download(std::span<const T> from, std::span<T> to) const {
    std::copy(from.begin(), from.end(), to.begin());
  }

 private:
  bool reversed_;
};

/// Base of kernels whose threads do not meet.
struct one_step {
  struct shared {};
  struct state {};
  template <class Arguments>
  SHARDPLAN_HOST_DEVICE static num steps(const Arguments&, num) {
    return 1;
  }
};

/// Calls `f` with the number of threads, a constant, that suits rows of `width` values: a warp, or 256.
template <class F>
void with_threads_for(num width, F&& f) {
  if (width <= 128)
    f(std::integral_constant<int, 32>{});
  else
    f(std::integral_constant<int, 256>{});
}

/// Threads of a block that has several rows, unless one of them needs all.
inline constexpr int threads_of_rows = 256;

/// The row that a thread works on with others, `Lanes` in all, in a block of threads_of_rows.
template <int Lanes>
struct row_of_block {
  static constexpr int rows = threads_of_rows / Lanes;  ///< of a block
  static_assert(threads_of_rows % Lanes == 0);
  int within;  ///< which row of the block
  int lane;    ///< which thread of the row
  num row;
  SHARDPLAN_HOST_DEVICE row_of_block(num block, int thread)
      : within(thread / Lanes), lane(thread % Lanes), row(block * rows + within) {}
  static num blocks(num rows_of_all) { return ceil_div(rows_of_all, num{rows}); }
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_KERNEL_HPP
