// SPDX-License-Identifier: Apache-2.0
// Labels that are padded before they are shifted lose the last target of every document.
// expect-error: shardplan: labels must be shifted before they are padded
// expect-errors: 1
#include <shardplan/sequence.hpp>
#include <vector>

using namespace shardplan;

void pad_them(const sequence<labels, unpadded, std::vector<num>>& given,
              const std::vector<std::vector<num>>& documents) {
#ifdef SHARDPLAN_FIXED
  pad(shift(given), documents, {1, 4}, 8);
#else
  pad(given, documents, {1, 4}, 8);
#endif
}
