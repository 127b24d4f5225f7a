// SPDX-License-Identifier: Apache-2.0
// Rows are padded before they are cut, or ranks would hold unequal shares.
// expect-error: no matching function for call to [^a-z]*cut
// expect-error: unpadded
// expect-errors: 1
#include <shardplan/sequence.hpp>
#include <vector>

using namespace shardplan;

void cut_them(const sequence<token_ids, unpadded, std::vector<num>>& given,
              const std::vector<std::vector<num>>& documents) {
#ifdef SHARDPLAN_FIXED
  cut<zigzag>(pad(given, documents, {1, 4}, 8), documents, 2, 0);
#else
  cut<zigzag>(given, documents, 2, 0);
#endif
}
