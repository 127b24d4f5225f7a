// SPDX-License-Identifier: Apache-2.0
// Rows that lie together before and after an exchange.
#ifndef SHARDPLAN_RUNTIME_DEVICE_ROW_BLOCK_HPP
#define SHARDPLAN_RUNTIME_DEVICE_ROW_BLOCK_HPP

#include <shardplan/meta.hpp>

namespace shardplan::runtime {

/// Rows that lie together in both orders: the first as received and the first by expert.
struct row_block {
  num received, place, rows;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_ROW_BLOCK_HPP
