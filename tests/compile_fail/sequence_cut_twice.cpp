// SPDX-License-Identifier: Apache-2.0
// What a rank holds is no row: cut again, it would be a share of a share.
// expect-error: no matching function for call to [^a-z]*cut
// expect-errors: 1
#include <shardplan/sequence.hpp>
#include <vector>

using namespace shardplan;

void cut_them(const sequence<token_ids, full, std::vector<num>>& whole,
              const std::vector<std::vector<num>>& documents) {
  const sequence<token_ids, contiguous, std::vector<num>> mine = cut<contiguous>(whole, documents, 2, 0);
#ifdef SHARDPLAN_FIXED
  cut<zigzag>(whole, documents, 2, 0);
#else
  cut<zigzag>(mine, documents, 2, 0);
#endif
  (void)mine;
}
