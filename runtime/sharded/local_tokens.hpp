// SPDX-License-Identifier: Apache-2.0
// From the caller's rows to what one context-parallel rank holds of a micro-batch: labels shifted, rows padded, every
// sequence cut by the one layout that its type names.
#ifndef SHARDPLAN_RUNTIME_SHARDED_LOCAL_TOKENS_HPP
#define SHARDPLAN_RUNTIME_SHARDED_LOCAL_TOKENS_HPP

#include <fmt/format.h>

#include <optional>
#include <shardplan/plan.hpp>
#include <shardplan/sequence.hpp>
#include <vector>

#include "runtime/device/attention.hpp"
#include "runtime/error.hpp"
#include "runtime/sharded/batch_rows.hpp"

namespace shardplan::runtime {

template <class What, class L>
using num_sequence = sequence<What, L, std::vector<num>>;

struct padded_offsets final {};  ///< where a token stands in its padded row
struct real_offsets final {      ///< where it stands in the caller's row; -1: padding
  static constexpr num padding = -1;
};

/// One micro-batch as one rank holds it, in layout L, on the host.
template <Layout L>
struct local_tokens {
  std::optional<num_sequence<token_ids, L>> ids;                       // (s, rows), or
  std::optional<sequence<embeddings, L, std::vector<double>>> embeds;  // (s, rows, hidden)
  num_sequence<targets, L> wanted;                // (s, rows); ignored_target everywhere without labels
  num_sequence<positions, L> at;                  // (s, rows)
  num_sequence<real_offsets, L> real;             // (s, rows)
  std::vector<std::vector<token_places>> places;  // [cp rank][row]: where every cp peer's tokens stand
};

/// Cuts rows (the micro-batch of one data shard) for context-parallel rank `r`. `padded` is the row length that all
/// ranks agreed on.
template <Layout L>
local_tokens<L> cut_rows(const batch_rows& rows, const plan_spec& plan, num hidden, num padded, num r) {
  const std::vector<std::vector<num>> documents = find_documents(rows);
  const padding_multiple multiple = needed_multiple(plan);

  const auto whole = [&]<class What, class V>(What, const std::vector<V>& values, num width, auto absent) {
    sequence<What, unpadded, std::vector<V>> out(rows.length, rows.rows, width);
    for (num i = 0; i < rows.length; ++i)
      for (num row = 0; row < rows.rows; ++row)
        for (num w = 0; w < width; ++w)
          out.at(i, row, w) =
              values.empty() ? absent(i, row) : values[static_cast<std::size_t>((row * rows.length + i) * width + w)];
    return out;
  };
  const auto constant = [](num value) { return [value](num, num) { return value; }; };
  const auto token = [](num i, num) { return i; };
  const auto local = [&](const auto& from) {
    return cut<L>(pad(from, documents, multiple, padded), documents, plan.cp, r);
  };

  const std::vector<num> none;
  local_tokens<L> out{
      {},
      {},
      // Labels become targets on whole rows, before any cut, or a target would be lost at every border.
      local(!rows.shift_labels.empty() ? whole(targets{}, rows.shift_labels, 1, constant(0))
                                       : shift(whole(labels{}, rows.labels, 1, constant(ignored_target)))),
      local(whole(positions{}, rows.position_ids, 1, token)),
      local(whole(real_offsets{}, none, 1, token)),
      {},
  };
  if (!rows.input_ids.empty()) out.ids = local(whole(token_ids{}, rows.input_ids, 1, constant(0)));
  if (!rows.inputs_embeds.empty())
    out.embeds = local(whole(embeddings{}, rows.inputs_embeds, hidden, [](num, num) { return 0.0; }));

  num_sequence<document_ids, unpadded> which(rows.length, rows.rows);
  for (num row = 0; row < rows.rows; ++row) {
    num i = 0, document = 0;
    for (num length : documents[static_cast<std::size_t>(row)]) {
      for (const num end = i + length; i < end; ++i) which.at(i, row) = document;
      ++document;
    }
  }
  const auto padded_which = pad(which, documents, multiple, padded);
  const auto padded_mask = pad(whole(key_mask{}, rows.attention_mask, 1, constant(1)), documents, multiple, padded);
  num_sequence<padded_offsets, full> padded_at(padded, rows.rows);
  for (num i = 0; i < padded; ++i)
    for (num row = 0; row < rows.rows; ++row) padded_at.at(i, row) = i;
  for (num peer = 0; peer < plan.cp; ++peer) {
    const auto offset = cut<L>(padded_at, documents, plan.cp, peer);
    const auto document = cut<L>(padded_which, documents, plan.cp, peer);
    const auto key = cut<L>(padded_mask, documents, plan.cp, peer);
    std::vector<token_places> of_peer(static_cast<std::size_t>(rows.rows));
    for (num i = 0; i < offset.length(); ++i)
      for (num row = 0; row < rows.rows; ++row) {
        token_places& p = of_peer[static_cast<std::size_t>(row)];
        p.offset.push_back(offset.at(i, row));
        p.document.push_back(document.at(i, row));
        p.key.push_back(static_cast<char>(key.at(i, row)));
      }
    out.places.push_back(std::move(of_peer));
  }
  return out;
}

/// Adopts tokens that the caller says are already cut: `claimed(token, row)` is where each stands in its padded row.
/// Throws input_error naming the first token that stands elsewhere under layout L.
template <Layout L, class What, class V, class Claim, class Rows>
sequence<What, L, std::vector<V>> adopt(std::vector<V> values, num rows, num width, const Claim& claimed,
                                        const Rows& documents, num padded, num cp, num r) {
  using result = sequence<What, L, std::vector<V>>;
  const num length = static_cast<num>(values.size()) / (rows * width);
  if (length * rows * width != static_cast<num>(values.size()))
    throw input_error(fmt::format("{} values are not {} rows of {} each", values.size(), rows, width));
  const misplaced_token wrong = find_misplaced<L>(claimed, length, rows, documents, padded, cp, r);
  if (wrong.any)
    throw input_error(
        fmt::format("rank {} of {} holds token {} of row {} at local offset {} in a {} layout, but was given token {}",
                    r, cp, wrong.expected, wrong.row, wrong.token, name_of(L::kind), wrong.claimed));
  result out(length, rows, width, typename result::made{});
  out.data() = std::move(values);
  return out;
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_LOCAL_TOKENS_HPP
