// SPDX-License-Identifier: Apache-2.0
// Which tokens of a row a context-parallel rank holds, in what order, and to what multiple a row must be padded so
// that every rank holds equally many. Everything that cuts a sequence asks here; nothing else knows a cut.
#ifndef SHARDPLAN_LAYOUT_HPP
#define SHARDPLAN_LAYOUT_HPP

#include <compare>   // <=>
#include <concepts>  // same_as
#include <shardplan/meta.hpp>

namespace shardplan {

enum class layout_kind : unsigned char { full, contiguous, zigzag, zigzag_documents };

constexpr text_view name_of(layout_kind k) {
  constexpr text_view names[] = {"full", "contiguous", "zigzag", "zigzag_documents"};
  return names[static_cast<std::size_t>(k)];
}

// The layouts as types: what a sequence carries (sequence.hpp), and what a plan type names.
struct full final {  ///< every token, in order
  static constexpr layout_kind kind = layout_kind::full;
};
struct contiguous final {  ///< rank r of n holds slice r of n
  static constexpr layout_kind kind = layout_kind::contiguous;
};
struct zigzag final {  ///< rank r of n holds slices r and 2n-1-r of 2n: causal work is balanced
  static constexpr layout_kind kind = layout_kind::zigzag;
};
struct zigzag_documents final {  ///< zigzag of every packed document by itself
  static constexpr layout_kind kind = layout_kind::zigzag_documents;
};

template <class L>
concept Layout = requires {
  { L::kind } -> std::same_as<const layout_kind&>;
};

/// Offsets [begin, end) of consecutive tokens in a padded row.
struct token_range {
  num begin = 0, end = 0;
  constexpr num size() const { return end - begin; }
  friend constexpr bool operator==(const token_range&, const token_range&) = default;
};

/// What lengths must be multiples of. Documents first, each by itself, then the row that they fill.
struct padding_multiple {
  num document = 1, row = 1;
  friend constexpr bool operator==(const padding_multiple&, const padding_multiple&) = default;
};

/// The one owner of the padding multiple. `sequence_parallel` is tp under sequence parallelism, else 1: the tokens a
/// context-parallel rank holds are then cut once more, and that cut may straddle the two halves of a zigzag.
constexpr padding_multiple needed_multiple(layout_kind kind, num cp, num sequence_parallel) {
  // lcm(2, sequence_parallel); <numeric> alone would be a tenth of what the whole library costs to include.
  const num even = sequence_parallel % 2 == 0 ? sequence_parallel : 2 * sequence_parallel;
  switch (kind) {
    case layout_kind::zigzag:
      return {1, cp * even};
    case layout_kind::zigzag_documents:
      return {2 * cp, cp * even};
    case layout_kind::full:
    case layout_kind::contiguous:
      break;
  }
  return {1, cp * sequence_parallel};
}

/// Length of a row of these documents once padded. `Documents` is anything with size() and [], holding real lengths.
/// post: result % m.row == 0, result >= the sum of the documents
template <class Documents>
constexpr num padded_length(const Documents& documents, padding_multiple m) {
  num sum = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) sum += round_up(documents[i], m.document);
  return round_up(sum, m.row);
}

/// Calls `f(token_range)` for each range of the padded row that rank `r` of `cp` holds, in the order it holds them.
/// `row` is the padded length; `documents` are the real lengths, asked for by zigzag_documents alone. What is left of
/// the row after the documents is cut like one more document.
/// post: over all r the ranges are disjoint and cover [0, row), and every r holds row / cp tokens
template <class Documents, class F>
constexpr void for_each_range(layout_kind kind, const Documents& documents, num row, num cp, num r, F&& f) {
  const auto two_slices = [&](num begin, num length) {
    const num slice = length / (2 * cp);
    if (slice == 0) return;
    f(token_range{begin + r * slice, begin + (r + 1) * slice});
    f(token_range{begin + (2 * cp - 1 - r) * slice, begin + (2 * cp - r) * slice});
  };
  switch (kind) {
    case layout_kind::full:
      f(token_range{0, row});
      return;
    case layout_kind::contiguous:
      f(token_range{r * (row / cp), (r + 1) * (row / cp)});
      return;
    case layout_kind::zigzag:
      two_slices(0, row);
      return;
    case layout_kind::zigzag_documents: {
      num begin = 0;
      for (std::size_t i = 0; i < documents.size(); ++i) {
        const num length = round_up(documents[i], 2 * cp);
        two_slices(begin, length);
        begin += length;
      }
      two_slices(begin, row - begin);
      return;
    }
  }
}

/// Tokens of a row of padded length `row` that each of `cp` ranks holds.
constexpr num local_length(layout_kind kind, num row, num cp) { return kind == layout_kind::full ? row : row / cp; }

// ---- offsets: four kinds of number that look alike and may not be mixed

struct real_space final {};    ///< counts the tokens the caller gave
struct padded_space final {};  ///< counts padding too
struct global_scope final {};  ///< in the whole row
struct local_scope final {};   ///< in what one rank holds

/// An offset into a row. Two offsets of different space or scope neither convert nor compare.
template <class Space, class Scope>
struct offset final {
  num value = 0;
  constexpr explicit offset(num v) : value(v) {}
  friend constexpr auto operator<=>(const offset&, const offset&) = default;
};
using real_offset = offset<real_space, global_scope>;
using padded_offset = offset<padded_space, global_scope>;
using local_offset = offset<padded_space, local_scope>;

/// Where the token at `at` of the caller's row stands once documents are padded.
template <class Documents>
constexpr padded_offset to_padded(real_offset at, const Documents& documents, padding_multiple m) {
  num real = 0, padded = 0;
  for (std::size_t i = 0; i < documents.size(); ++i) {
    if (at.value < real + documents[i]) return padded_offset(padded + at.value - real);
    real += documents[i];
    padded += round_up(documents[i], m.document);
  }
  return padded_offset(padded + at.value - real);
}

/// Where the token at local offset `at` of rank `r` stands in the padded row.
template <class Documents>
constexpr padded_offset to_global(local_offset at, layout_kind kind, const Documents& documents, num row, num cp,
                                  num r) {
  num seen = 0, found = -1;
  for_each_range(kind, documents, row, cp, r, [&](token_range range) {
    if (found < 0 && at.value < seen + range.size()) found = range.begin + at.value - seen;
    seen += range.size();
  });
  return padded_offset(found);
}

}  // namespace shardplan
#endif  // SHARDPLAN_LAYOUT_HPP
