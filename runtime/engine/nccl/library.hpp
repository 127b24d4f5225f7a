// SPDX-License-Identifier: Apache-2.0
// What the engine asks of NCCL and CUDA, so that all that needs neither can be built and tested without them.
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_LIBRARY_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_LIBRARY_HPP

#include <array>
#include <memory>

#include "runtime/engine/nccl/steps.hpp"

namespace shardplan::runtime {

/// What the members of a communicator know it by.
using communicator_id = std::array<char, 128>;

/// The buffers of one collective, of the host or of the device, and what is done with them.
struct device_call {
  element_type type{};
  reduce_op reduce{};
  const std::byte* in = nullptr;
  num in_size = 0;
  std::byte* out = nullptr;
  num out_size = 0;
};

/// A communicator of NCCL with a stream of its own. No call waits for another process, and all but abort() throw
/// engine_error when NCCL or the device has failed.
class device_communicator {
 public:
  virtual ~device_communicator() = default;
  /// Whether all members have connected, and all that was begun is on its way.
  virtual bool ready() = 0;
  /// Whether a buffer is the host's, so that start() copies it, which waits for what was begun before.
  virtual bool stages(const device_call& call) = 0;
  /// Begins the steps, after those begun before. Buffers must stay until it is done(). pre: ready()
  virtual void start(const device_call& call, const std::vector<nccl_step>& steps) = 0;
  /// Whether all that was begun has ended.
  virtual bool done() = 0;
  /// Ends what is under way, wherever it is.
  virtual void abort() noexcept = 0;
};

class device_library {
 public:
  virtual ~device_library() = default;
  virtual communicator_id make_id() = 0;
  /// Begins to connect as member `index` of n.
  virtual std::unique_ptr<device_communicator> connect(const communicator_id& id, num n, num index) = 0;
  /// A copy for a later start(), of a buffer of the host or the device. On return `from` is the caller's again: what
  /// the device is given to do with it later comes after the copy.
  virtual std::shared_ptr<std::byte> keep(const std::byte* from, num bytes) = 0;
  /// Between any two buffers, which are the caller's again on return in the same way.
  virtual void copy(const std::byte* from, num bytes, std::byte* to) = 0;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_LIBRARY_HPP
