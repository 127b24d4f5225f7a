// SPDX-License-Identifier: Apache-2.0
// Targets and logits are both cut, into shares of the same size, but not the same tokens.
// expect-error: no matching function for call to [^a-z]*cross_entropy
// expect-error: zigzag
// expect-error: contiguous
// expect-errors: 1
#include <shardplan/sequence.hpp>
#include <vector>

using namespace shardplan;

/// As the runtime's: logits and targets of one layout.
template <Layout L>
sequence<token_losses, L, std::vector<double>> cross_entropy(const sequence<logits, L, std::vector<double>>& scores,
                                                             const sequence<targets, L, std::vector<num>>&) {
  return sequence<token_losses, L, std::vector<double>>(scores, 1);
}

void loss(const sequence<logits, zigzag, std::vector<double>>& scores,
          const sequence<targets, full, std::vector<num>>& whole, const std::vector<std::vector<num>>& documents) {
#ifdef SHARDPLAN_FIXED
  cross_entropy(scores, cut<zigzag>(whole, documents, 2, 0));
#else
  cross_entropy(scores, cut<contiguous>(whole, documents, 2, 0));
#endif
}
