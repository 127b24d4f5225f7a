// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_REMOTE_ERROR_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_REMOTE_ERROR_HPP

#include "runtime/error.hpp"

namespace shardplan::runtime {

/// A failure of the library that may well be another rank's, which then has more to say.
class remote_error : public engine_error {
 public:
  using engine_error::engine_error;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_REMOTE_ERROR_HPP
