// SPDX-License-Identifier: Apache-2.0
// Offsets that count real tokens and offsets that count padding too look alike, and differ behind the first document.
// expect-error: real_space
// expect-error: padded_space
// expect-errors: 1
#include <shardplan/layout.hpp>
#include <vector>

using namespace shardplan;

bool is_before(real_offset token, padded_offset document_end, const std::vector<num>& documents) {
#ifdef SHARDPLAN_FIXED
  return to_padded(token, documents, {4, 4}) < document_end;
#else
  (void)documents;
  return token < document_end;
#endif
}
