// SPDX-License-Identifier: Apache-2.0
// On what a plan is asked to run: rows, their length, the documents packed in a row, micro-batches.
#ifndef SHARDPLAN_BATCH_HPP
#define SHARDPLAN_BATCH_HPP

#include <shardplan/meta.hpp>

namespace shardplan {

/// Lengths of the documents packed in one row, in order; empty means one document, the row.
using document_lengths = fixed_vector<num, 64>;

struct batch_spec {
  num length = 0;         ///< tokens of one row before padding; 0: not said, and no rule about it is asked
  num rows = 0;           ///< rows of the global batch; 0: not said
  num micro_batches = 0;  ///< 0: as many as pipeline stages (pp)
  document_lengths documents{};

  friend constexpr bool operator==(const batch_spec&, const batch_spec&) = default;
};

}  // namespace shardplan
#endif  // SHARDPLAN_BATCH_HPP
