// SPDX-License-Identifier: Apache-2.0
// The losses: cross-entropy of the tokens, and the auxiliary loss that keeps the load of the experts even.
#include <cmath>  // log

#include "runtime/reference/ops.hpp"
#include "runtime/reference/rows.hpp"

namespace shardplan::runtime::reference {

// ---- cross-entropy

template <class T>
void cross_entropy(read_view<T> logits, std::span<const num> targets, std::span<T> token_loss) {
  for (num i = 0; i < logits.rows; ++i) {
    token_loss[i] = 0;
    if (targets[i] == reference_batch::ignored_label) continue;
    const auto row = array_of(logits.data + i * logits.stride, logits.cols);
    const T largest = row.maxCoeff();  // taken out, so that no exp overflows
    token_loss[i] = std::log((row - largest).exp().sum()) + largest - row[targets[i]];
  }
}

template <class T>
void cross_entropy_backward(read_view<T> logits, std::span<const num> targets, std::type_identity_t<T> d_token_loss,
                            matrix_view<T> d_logits) {
  for (num i = 0; i < logits.rows; ++i) {
    if (targets[i] == reference_batch::ignored_label) continue;
    const auto row = array_of(logits.data + i * logits.stride, logits.cols);
    auto d_row = array_of(d_logits.data + i * d_logits.stride, logits.cols);
    const T largest = row.maxCoeff(), sum = (row - largest).exp().sum();
    d_row += (row - largest).exp() * (d_token_loss / sum);
    d_row[targets[i]] -= d_token_loss;
  }
}

// ---- balance of the experts

balance_sums::balance_sums(const token_info& tokens, num num_experts)
    : rows(tokens.num_micro_batches),
      chosen(tokens.num_micro_batches, num_experts),
      probability(tokens.num_micro_batches, num_experts) {}

template <class T>
void balance_sums::add(const token_info& tokens, const routing<T>& routes) {
  for (num i = 0; i < tokens.num_tokens(); ++i) {
    if (tokens.hidden(i)) continue;
    const num g = tokens.micro_batch[i / tokens.length];
    ++rows[g];
    for (num j = 0; j < routes.top_k; ++j) ++chosen.row(g)[routes.experts[i * routes.top_k + j]];
    array_of(probability.row(g), probability.cols()) +=
        array_of(routes.probabilities.row(i), probability.cols()).template cast<double>();
  }
}

double balance_loss(const balance_sums& sums) {
  const num G = sums.chosen.rows(), E = sums.chosen.cols();
  double loss = 0;
  for (num g = 0; g < G; ++g) {
    if (sums.rows[g] == 0) continue;  // all hidden: nothing to balance
    const double n = double(sums.rows[g]);
    loss += double(E) * (array_of(sums.chosen.row(g), E) / n * (array_of(sums.probability.row(g), E) / n)).sum();
  }
  return loss / double(G);
}

template <class T>
void balance_loss_backward(const token_info& tokens, const balance_sums& sums, double d_loss,
                           tensor<T>& d_probabilities) {
  const num G = sums.chosen.rows(), E = sums.chosen.cols();
  for (num i = 0; i < tokens.num_tokens(); ++i) {
    if (tokens.hidden(i)) continue;
    const num g = tokens.micro_batch[i / tokens.length];
    const double n = double(sums.rows[g]);
    array_of(d_probabilities.row(i), E) +=
        (d_loss / double(G) * double(E) * (array_of(sums.chosen.row(g), E) / n) / n).template cast<T>();
  }
}

template void cross_entropy<float>(read_view<float>, std::span<const num>, std::span<float>);
template void cross_entropy<double>(read_view<double>, std::span<const num>, std::span<double>);
template void cross_entropy_backward<float>(read_view<float>, std::span<const num>, float, matrix_view<float>);
template void cross_entropy_backward<double>(read_view<double>, std::span<const num>, double, matrix_view<double>);
template void balance_sums::add<float>(const token_info&, const routing<float>&);
template void balance_sums::add<double>(const token_info&, const routing<double>&);
template void balance_loss_backward<float>(const token_info&, const balance_sums&, double, tensor<float>&);
template void balance_loss_backward<double>(const token_info&, const balance_sums&, double, tensor<double>&);

}  // namespace shardplan::runtime::reference
