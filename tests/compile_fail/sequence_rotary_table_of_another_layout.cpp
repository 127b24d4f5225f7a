// SPDX-License-Identifier: Apache-2.0
// A rotary table of the first tokens of the row, for a rank that holds others: silent elsewhere, and wrong.
// expect-error: no matching function for call to [^a-z]*rotate
// expect-error: zigzag
// expect-error: contiguous
// expect-errors: 1
#include <shardplan/sequence.hpp>
#include <vector>

using namespace shardplan;

/// As the runtime's: heads are turned by a table of the same tokens.
template <Layout L>
void rotate(sequence<hidden_states, L, std::vector<double>>&, const sequence<rotary_table, L, std::vector<double>>&) {}

void turn(sequence<hidden_states, zigzag, std::vector<double>>& heads,
          const sequence<positions, full, std::vector<num>>& whole, const std::vector<std::vector<num>>& documents) {
#ifdef SHARDPLAN_FIXED
  const auto mine = cut<zigzag>(whole, documents, 2, 1);
#else
  const auto mine = cut<contiguous>(whole, documents, 2, 1);
#endif
  rotate(heads, sequence<rotary_table, std::remove_cvref_t<decltype(mine)>::layout, std::vector<double>>(mine, 8));
}
