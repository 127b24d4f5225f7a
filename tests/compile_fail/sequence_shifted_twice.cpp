// SPDX-License-Identifier: Apache-2.0
// Targets are labels already shifted: a second shift would train every token on the one after the next.
// expect-error: no matching function for call to [^a-z]*shift
// expect-error: targets
// expect-errors: 1
#include <shardplan/sequence.hpp>
#include <vector>

using namespace shardplan;

sequence<targets, unpadded, std::vector<num>> shift_them(const sequence<labels, unpadded, std::vector<num>>& given) {
#ifdef SHARDPLAN_FIXED
  return shift(given);
#else
  return shift(shift(given));
#endif
}
