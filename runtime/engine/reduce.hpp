// SPDX-License-Identifier: Apache-2.0
// The sum, max or min of the members' buffers, in member order.
#ifndef SHARDPLAN_RUNTIME_ENGINE_REDUCE_HPP
#define SHARDPLAN_RUNTIME_ENGINE_REDUCE_HPP

#include "runtime/engine/request.hpp"

namespace shardplan::runtime::detail {

/// out[e] = ((in[0][first + e] op in[1][first + e]) op ...) for e in [0, count), in elements of `type`.
/// `out` may be exactly one of the inputs at `first`; bf16 is computed with in float and rounded once; integers wrap; a
/// NaN survives max and min.
void reduce(element_type type, reduce_op op, std::span<const std::byte* const> in, num first, num count,
            std::byte* out);

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_REDUCE_HPP
