// SPDX-License-Identifier: Apache-2.0
// Targets of the whole row beside logits of a rank's share under zigzag: with a pipeline elsewhere a crash, without one
// a wrong loss, here no program.
// expect-error: no matching function for call to [^a-z]*cross_entropy
// expect-error: zigzag
// expect-error: full
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

void loss(const sequence<logits, zigzag, std::vector<double>>& scores, const std::vector<std::vector<num>>& documents) {
  const sequence<targets, unpadded, std::vector<num>> wanted =
      shift(sequence<labels, unpadded, std::vector<num>>(8, 1));
  const sequence<targets, full, std::vector<num>> whole = pad(wanted, documents, {1, 4}, 8);
#ifdef SHARDPLAN_FIXED
  cross_entropy(scores, cut<zigzag>(whole, documents, 2, 0));
#else
  cross_entropy(scores, whole);
#endif
}
