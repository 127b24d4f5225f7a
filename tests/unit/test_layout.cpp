// SPDX-License-Identifier: Apache-2.0
// Layouts against the definition of each, written out token by token; every `// post:` of layout.hpp literally.
#include <doctest/doctest.h>

#include <algorithm>  // max
#include <numeric>    // lcm, accumulate
#include <shardplan/layout.hpp>
#include <type_traits>
#include <vector>

namespace {

using namespace shardplan;

using lengths = std::vector<num>;
const layout_kind every_kind[] = {layout_kind::full, layout_kind::contiguous, layout_kind::zigzag,
                                  layout_kind::zigzag_documents};
/// Rows of documents: none, one token, odd and even lengths, many short ones, one that fills everything.
const lengths every_row[] = {{}, {1}, {7}, {16}, {5, 7}, {7, 5}, {1, 1, 1, 1, 1}, {8, 16, 4}, {3, 12, 1, 30}};

num sum(const lengths& v) { return std::accumulate(v.begin(), v.end(), num{0}); }

/// The offsets that rank r holds, in order.
lengths tokens_of(layout_kind kind, const lengths& documents, num row, num cp, num r) {
  lengths out;
  for_each_range(kind, documents, row, cp, r, [&](token_range range) {
    CHECK(range.size() > 0);
    for (num i = range.begin; i < range.end; ++i) out.push_back(i);
  });
  return out;
}

/// Which rank of cp holds token i of n under zigzag: 2 * cp slices, dealt forth and back.
num zigzag_owner(num i, num n, num cp) {
  const num slice = i / (n / (2 * cp));
  return slice < cp ? slice : 2 * cp - 1 - slice;
}

TEST_CASE("the padding multiple of each layout") {
  for (num cp = 1; cp <= 8; ++cp)
    for (num sp = 1; sp <= 8; ++sp) {
      CHECK(needed_multiple(layout_kind::full, cp, sp) == padding_multiple{1, cp * sp});
      CHECK(needed_multiple(layout_kind::contiguous, cp, sp) == padding_multiple{1, cp * sp});
      CHECK(needed_multiple(layout_kind::zigzag, cp, sp) == padding_multiple{1, cp * std::lcm(num{2}, sp)});
      CHECK(needed_multiple(layout_kind::zigzag_documents, cp, sp) ==
            padding_multiple{2 * cp, cp * std::lcm(num{2}, sp)});
    }
}

TEST_CASE("a padded row is the shortest that every rank can share, also once more over tp") {
  for (layout_kind kind : every_kind)
    for (const lengths& documents : every_row)
      for (num cp : {1, 2, 3, 4})
        for (num sp : {1, 2, 3, 4}) {
          const padding_multiple m = needed_multiple(kind, cp, sp);
          const num length = padded_length(documents, m);
          CHECK(length % m.row == 0);
          CHECK(length >= sum(documents));
          CHECK(length % (cp * sp) == 0);
          num padded_documents = 0;
          for (num d : documents) {
            num padded = d;
            while (padded % m.document != 0) ++padded;
            padded_documents += padded;
          }
          CHECK(length >= padded_documents);
          CHECK(length - padded_documents < m.row);
          const bool halves = kind == layout_kind::zigzag || kind == layout_kind::zigzag_documents;
          if (halves) CHECK(length % (2 * cp) == 0);
        }
}

TEST_CASE("ranges are disjoint, cover the row, and every rank holds equally many tokens") {
  for (layout_kind kind : {layout_kind::contiguous, layout_kind::zigzag, layout_kind::zigzag_documents})
    for (const lengths& documents : every_row)
      for (num cp : {1, 2, 3, 4, 8})
        for (num sp : {1, 2, 3}) {
          const num row = padded_length(documents, needed_multiple(kind, cp, sp));
          std::vector<int> holders(static_cast<std::size_t>(row));
          for (num r = 0; r < cp; ++r) {
            if (row == 0) continue;  // there is nothing to hold
            const lengths held = tokens_of(kind, documents, row, cp, r);
            CHECK(static_cast<num>(held.size()) == row / cp);
            CHECK(local_length(kind, row, cp) == row / cp);
            for (num i : held) ++holders.at(static_cast<std::size_t>(i));
          }
          for (int n : holders) CHECK(n == 1);
        }
}

TEST_CASE("full leaves every rank the whole row") {
  for (num r = 0; r < 4; ++r) CHECK(tokens_of(layout_kind::full, {}, 5, 4, r) == lengths{0, 1, 2, 3, 4});
  CHECK(local_length(layout_kind::full, 12, 4) == 12);
}

TEST_CASE("contiguous and zigzag give tokens to the ranks that their definitions name") {
  for (num cp : {1, 2, 3, 4})
    for (num slices : {1, 2, 5}) {
      const num row = 2 * cp * slices;
      for (num r = 0; r < cp; ++r) {
        lengths block, zig;
        for (num i = 0; i < row; ++i) {
          if (i * cp / row == r) block.push_back(i);
          if (zigzag_owner(i, row, cp) == r) zig.push_back(i);
        }
        CHECK(tokens_of(layout_kind::contiguous, {}, row, cp, r) == block);
        CHECK(tokens_of(layout_kind::zigzag, {}, row, cp, r) == zig);
        CHECK(tokens_of(layout_kind::zigzag, {3, 4}, row, cp, r) == zig);  // documents change nothing
      }
    }
  CHECK(tokens_of(layout_kind::zigzag, {}, 8, 2, 0) == lengths{0, 1, 6, 7});
  CHECK(tokens_of(layout_kind::zigzag, {}, 8, 2, 1) == lengths{2, 3, 4, 5});
}

TEST_CASE("zigzag balances causal work") {
  for (num cp : {2, 3, 4, 8}) {
    const num row = 2 * cp * 3;
    std::vector<num> work(static_cast<std::size_t>(cp));
    for (num r = 0; r < cp; ++r)
      for (num i : tokens_of(layout_kind::zigzag, {}, row, cp, r)) work[static_cast<std::size_t>(r)] += i + 1;
    for (num w : work) CHECK(w == work[0]);
  }
}

TEST_CASE("of a row of 4096 tokens on 4 ranks, no rank attends more than 1.05 of the mean under zigzag") {
  const auto largest_share = [](layout_kind kind) {
    num largest = 0, all = 0;
    for (num r = 0; r < 4; ++r) {
      num work = 0;  // (query, key) pairs
      for (num i : tokens_of(kind, {}, 4096, 4, r)) work += i + 1;
      largest = std::max(largest, work), all += work;
    }
    CHECK(all == num{4096} * 4097 / 2);
    return 4.0 * static_cast<double>(largest) / static_cast<double>(all);
  };
  MESSAGE("largest share of the mean: zigzag ", largest_share(layout_kind::zigzag), ", contiguous ",
          largest_share(layout_kind::contiguous));
  CHECK(largest_share(layout_kind::zigzag) <= 1.05);
  CHECK(largest_share(layout_kind::contiguous) > 1.7);
}

TEST_CASE("zigzag_documents cuts every document by itself, and the rest of the row like one more") {
  for (const lengths& documents : every_row)
    for (num cp : {1, 2, 3}) {
      const num row = padded_length(documents, needed_multiple(layout_kind::zigzag_documents, cp, 5));
      std::vector<lengths> expected(static_cast<std::size_t>(cp));
      num begin = 0;
      const auto deal = [&](num n) {
        for (num i = 0; i < n; ++i) expected[static_cast<std::size_t>(zigzag_owner(i, n, cp))].push_back(begin + i);
        begin += n;
      };
      for (num d : documents) deal((d + 2 * cp - 1) / (2 * cp) * (2 * cp));
      if (begin < row) deal(row - begin);
      for (num r = 0; r < cp; ++r)
        CHECK(tokens_of(layout_kind::zigzag_documents, documents, row, cp, r) == expected[static_cast<std::size_t>(r)]);
    }
  // 5 and 3 tokens on 2 ranks: 8 and 4 once padded.
  CHECK(tokens_of(layout_kind::zigzag_documents, {5, 3}, 12, 2, 0) == lengths{0, 1, 6, 7, 8, 11});
  CHECK(tokens_of(layout_kind::zigzag_documents, {5, 3}, 12, 2, 1) == lengths{2, 3, 4, 5, 9, 10});
}

TEST_CASE("to_padded puts a document's tokens where its padded predecessors end") {
  for (layout_kind kind : every_kind)
    for (const lengths& documents : every_row)
      for (num cp : {1, 2, 3}) {
        const padding_multiple m = needed_multiple(kind, cp, 2);
        num real = 0, padded = 0;
        for (num d : documents) {
          for (num i = 0; i < d; ++i)
            CHECK(to_padded(real_offset(real + i), documents, m) == padded_offset(padded + i));
          real += d;
          padded += d;
          while (padded % m.document != 0) ++padded;  // documents before it are whole multiples
        }
        CHECK(to_padded(real_offset(real), documents, m) == padded_offset(padded));  // the first of the row's padding
        CHECK(padded <= padded_length(documents, m));
      }
}

TEST_CASE("to_global undoes the cut") {
  for (layout_kind kind : every_kind)
    for (const lengths& documents : every_row)
      for (num cp : {1, 2, 4}) {
        const num row = padded_length(documents, needed_multiple(kind, cp, 3));
        for (num r = 0; r < cp && row > 0; ++r) {
          const lengths held = tokens_of(kind, documents, row, cp, r);
          for (num i = 0; i < static_cast<num>(held.size()); ++i)
            CHECK(to_global(local_offset(i), kind, documents, row, cp, r) ==
                  padded_offset(held[static_cast<std::size_t>(i)]));
        }
      }
}

TEST_CASE("every real token is held once, by to_padded and to_global together") {
  for (layout_kind kind : {layout_kind::contiguous, layout_kind::zigzag, layout_kind::zigzag_documents})
    for (const lengths& documents : every_row)
      for (num cp : {1, 2, 4}) {
        const padding_multiple m = needed_multiple(kind, cp, 2);
        const num row = padded_length(documents, m);
        lengths found(static_cast<std::size_t>(row));
        for (num r = 0; r < cp; ++r)
          for (num i = 0; i < local_length(kind, row, cp); ++i)
            ++found.at(static_cast<std::size_t>(to_global(local_offset(i), kind, documents, row, cp, r).value));
        for (num i = 0; i < sum(documents); ++i)
          CHECK(found.at(static_cast<std::size_t>(to_padded(real_offset(i), documents, m).value)) == 1);
      }
}

TEST_CASE("layouts answer in constant expressions too") {
  constexpr auto first_of = [](layout_kind kind, num r) {
    num first = -1;
    const num documents[] = {5, 3};
    struct view {
      const num* items;
      constexpr std::size_t size() const { return 2; }
      constexpr num operator[](std::size_t i) const { return items[i]; }
    };
    for_each_range(kind, view{documents}, 12, 2, r,
                   [&](token_range range) { first = first < 0 ? range.begin : first; });
    return first;
  };
  static_assert(first_of(layout_kind::contiguous, 1) == 6);
  static_assert(first_of(layout_kind::zigzag, 1) == 3);
  static_assert(first_of(layout_kind::zigzag_documents, 1) == 2);
}

// ---- offsets that look alike do not mix

template <class A, class B>
concept Compares = requires(A a, B b) {
  a == b;
}
|| requires(A a, B b) { a < b; }
|| requires(A a, B b) { a <=> b; };

static_assert(Compares<real_offset, real_offset> && Compares<padded_offset, padded_offset>);
static_assert(Compares<local_offset, local_offset>);
template <class A, class B>
inline constexpr bool unrelated =
    !Compares<A, B> && !Compares<B, A> && !std::is_convertible_v<A, B> && !std::is_convertible_v<B, A> &&
    !std::is_constructible_v<A, B> && !std::is_constructible_v<B, A> && !std::is_assignable_v<A&, B> &&
    !std::is_assignable_v<B&, A>;
using real_local_offset = offset<real_space, local_scope>;
static_assert(unrelated<real_offset, padded_offset> && unrelated<real_offset, local_offset>);
static_assert(unrelated<real_offset, real_local_offset> && unrelated<padded_offset, local_offset>);
static_assert(unrelated<padded_offset, real_local_offset> && unrelated<local_offset, real_local_offset>);
// Nor with plain numbers, but by name.
static_assert(!std::is_convertible_v<num, real_offset> && !std::is_convertible_v<real_offset, num>);
static_assert(std::is_constructible_v<real_offset, num> && !Compares<real_offset, num>);
static_assert(real_offset(1) < real_offset(2) && real_offset(2) == real_offset(2));

template <class Offset>
concept HasPaddedPlace = requires(Offset at, lengths documents, padding_multiple m) {
  to_padded(at, documents, m);
};
static_assert(HasPaddedPlace<real_offset> && !HasPaddedPlace<padded_offset> && !HasPaddedPlace<local_offset>);
template <class Offset>
concept HasGlobalPlace = requires(Offset at, lengths documents) {
  to_global(at, layout_kind::zigzag, documents, num{8}, num{2}, num{0});
};
static_assert(HasGlobalPlace<local_offset> && !HasGlobalPlace<padded_offset> && !HasGlobalPlace<real_offset>);

}  // namespace
