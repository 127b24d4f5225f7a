// SPDX-License-Identifier: Apache-2.0
// The i-th token of a rank is not the i-th token of the row.
// expect-error: local_scope
// expect-error: global_scope
// expect-errors: 1
#include <shardplan/layout.hpp>
#include <vector>

using namespace shardplan;

padded_offset place(local_offset token, const std::vector<num>& documents) {
#ifdef SHARDPLAN_FIXED
  return to_global(token, layout_kind::zigzag, documents, 8, 2, 0);
#else
  (void)documents;
  return token;
#endif
}
