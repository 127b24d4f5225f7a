// SPDX-License-Identifier: Apache-2.0
// Labels that are cut before they are shifted lose a target at every border of the cut.
// expect-error: shardplan: labels must be shifted before they are cut
// expect-errors: 1
#include <shardplan/sequence.hpp>
#include <vector>

using namespace shardplan;

void cut_them(const sequence<labels, full, std::vector<num>>& given,
              const sequence<targets, full, std::vector<num>>& shifted,
              const std::vector<std::vector<num>>& documents) {
#ifdef SHARDPLAN_FIXED
  cut<contiguous>(shifted, documents, 2, 0);
  (void)given;
#else
  cut<contiguous>(given, documents, 2, 0);
  (void)shifted;
#endif
}
