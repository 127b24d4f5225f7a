// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <shardplan/question.hpp>

#include "runtime/error.hpp"
#include "runtime/verify/inputs.hpp"

namespace shardplan::runtime {
namespace {

/// Splitmix64: the standard library's distributions differ between implementations.
class generator {
 public:
  explicit generator(std::uint64_t seed) : state_(seed) {}
  /// A number in [0, n).
  num below(num n) { return static_cast<num>(next() % static_cast<std::uint64_t>(n)); }

 private:
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

constexpr num least_length = 13;  // odd: no multiple of any degree that is a power of two

}  // namespace

random_sizes complete_sizes(const model_spec& model, const plan_spec& plan, random_sizes sizes) {
  if (sizes.micro_batches == 0) sizes.micro_batches = plan.pp;
  if (!sizes.documents.empty()) {
    sizes.length = real_length({0, 0, 0, sizes.documents});
  } else if (sizes.length == 0) {
    // Every rank gets a token, and some get padding.
    const num multiple = needed_multiple(plan).row;
    sizes.length = std::max(least_length, multiple + 1);
    while (plan.cp > 1 && sizes.length % plan.cp == 0) ++sizes.length;
  }
  if (sizes.rows == 0) {
    const num least = checked_product(num_data_shards(plan), sizes.micro_batches);
    const num two = checked_product(2, least);
    const num numbers = checked_product(checked_product(two, sizes.length), model.vocab_size);
    sizes.rows = numbers < 0 || numbers > max_logits ? least : two;
  }
  return sizes;
}

batch_rows random_rows(const model_spec& model, const plan_spec& plan, const random_sizes& open, std::uint64_t seed) {
  const random_sizes sizes = complete_sizes(model, plan, open);
  const num numbers = checked_product(checked_product(sizes.rows, sizes.length), model.vocab_size);
  if (numbers < 0 || numbers > max_logits)
    throw input_error(
        fmt::format("{} rows of {} tokens with {} logits each are more than the {} numbers that are "
                    "compared: give fewer (--batch, --micro-batches) or shorter ones (--seq)",
                    sizes.rows, sizes.length, model.vocab_size, max_logits));
  batch_rows out;
  out.rows = sizes.rows, out.length = sizes.length;
  generator random(seed);
  for (num row = 0; row < out.rows; ++row) {
    const num ignored = row % 4 == 3 ? 4 : row % 4;  // in four: none, a quarter, a half, all
    const num jump = 1 + random.below(std::max(num{1}, out.length - 1)), gap = 2 + random.below(4);
    num position = random.below(3), document = 0, left = sizes.documents.empty() ? out.length : sizes.documents[0];
    if (!sizes.documents.empty()) position = 0;
    for (num i = 0; i < out.length; ++i, ++position, --left) {
      if (left == 0) {
        left = sizes.documents[static_cast<std::size_t>(++document)];
        position = 0;
      }
      if (sizes.documents.empty() && i == jump) position += gap;
      out.input_ids.push_back(random.below(model.vocab_size));
      const num label = random.below(model.vocab_size);
      out.labels.push_back(random.below(4) < ignored ? num{-100} : label);
      out.position_ids.push_back(position);
    }
  }
  if (sizes.documents.empty()) out.attention_mask.assign(out.input_ids.size(), 1);
  return out;
}

std::vector<char> real_tokens(const batch_rows& rows) {
  std::vector<char> real(static_cast<std::size_t>(rows.rows * rows.length), 1);
  for (std::size_t i = 0; i < rows.attention_mask.size(); ++i) real[i] = rows.attention_mask[i] != 0;
  return real;
}

}  // namespace shardplan::runtime
