// SPDX-License-Identifier: Apache-2.0
// Sequences: labels are shifted, rows padded, layouts cut, and what is put back is what was cut.
#include <doctest/doctest.h>

#include <numeric>  // accumulate
#include <random>
#include <shardplan/sequence.hpp>
#include <vector>

namespace {

using namespace shardplan;

using numbers = std::vector<num>;
using rows_of_documents = std::vector<numbers>;
template <class What, class L>
using num_sequence = sequence<What, L, numbers>;

/// Rows of one length with unequal documents in each.
const rows_of_documents packed = {{5, 7, 1}, {13}, {1, 1, 11}, {6, 7}};
constexpr num length = 13;

/// Every value differs from every other.
template <class What, class L>
void number(num_sequence<What, L>& s) {
  for (num i = 0; i < s.length(); ++i)
    for (num row = 0; row < s.rows(); ++row)
      for (num w = 0; w < s.width(); ++w) s.at(i, row, w) = 10000 * row + 100 * i + w + 1;
}

/// Where the real tokens of a row stand once its documents are padded, and for each padded place what it is.
struct padded_row {
  numbers place;     // of each real token
  numbers real;      // which real token stands there, -1 for padding
  numbers position;  // counted on from the last real token of the row
};
padded_row lay_out(const numbers& documents, num multiple, num row_length) {
  padded_row out;
  for (num d : documents) {
    for (num i = 0; i < d; ++i) {
      out.place.push_back(static_cast<num>(out.real.size()));
      out.real.push_back(static_cast<num>(out.place.size()) - 1);
    }
    while (static_cast<num>(out.real.size()) % multiple != 0) out.real.push_back(-1);
  }
  while (static_cast<num>(out.real.size()) < row_length) out.real.push_back(-1);
  return out;
}

template <Layout L, class F>
void for_cuts(F&& f) {
  for (num cp : {1, 2, 3})
    for (num sp : {1, 2, 3}) {
      const padding_multiple m = needed_multiple(L::kind, cp, sp);
      num row = 0;
      for (const numbers& documents : packed) row = std::max(row, padded_length(documents, m));
      f(cp, m, row);
    }
}

TEST_CASE("tokens are stored together, rows of a token next to each other") {
  num_sequence<embeddings, unpadded> s(3, 2, 4);
  number(s);
  CHECK(s.tokens() == 6);
  CHECK(s.data().size() == 24);
  std::size_t at = 0;
  for (num i = 0; i < 3; ++i)
    for (num row = 0; row < 2; ++row)
      for (num w = 0; w < 4; ++w) CHECK(s.data()[at++] == 10000 * row + 100 * i + w + 1);
}

TEST_CASE("a shift makes the next label of the same row the target, and the last token has none") {
  num_sequence<labels, unpadded> s(4, 3);
  number(s);
  const num_sequence<targets, unpadded> t = shift(s);
  CHECK(t.length() == 4);
  CHECK(t.rows() == 3);
  for (num row = 0; row < 3; ++row) {
    for (num i = 0; i < 3; ++i) CHECK(t.at(i, row) == s.at(i + 1, row));
    CHECK(t.at(3, row) == ignored_target);
  }
  CHECK(shift(num_sequence<labels, unpadded>(1, 1)).at(0, 0) == ignored_target);
  CHECK(shift(num_sequence<labels, unpadded>(0, 2)).tokens() == 0);
}

TEST_CASE("padding ends every document and the row, and is what its kind says") {
  const auto check = [&]<class What, Layout L>(What, L, num padding, num width) {
    num_sequence<What, unpadded> s(length, static_cast<num>(packed.size()), width);
    number(s);
    for_cuts<L>([&](num, padding_multiple m, num row_length) {
      const num_sequence<What, full> p = pad(s, packed, m, row_length);
      CHECK(p.length() == row_length);
      for (num row = 0; row < p.rows(); ++row) {
        const padded_row where = lay_out(packed[static_cast<std::size_t>(row)], m.document, row_length);
        for (num i = 0; i < row_length; ++i)
          for (num w = 0; w < width; ++w) {
            const num real = where.real[static_cast<std::size_t>(i)];
            CHECK(p.at(i, row, w) == (real < 0 ? padding : s.at(real, row, w)));
          }
      }
    });
  };
  const auto check_layouts = [&](auto what, num padding, num width) {
    check(what, contiguous{}, padding, width);
    check(what, zigzag{}, padding, width);
    check(what, zigzag_documents{}, padding, width);
  };
  check_layouts(token_ids{}, 0, 1);
  check_layouts(embeddings{}, 0, 3);
  check_layouts(targets{}, -100, 1);
  check_layouts(key_mask{}, 0, 1);
  check_layouts(document_ids{}, -1, 1);
}

TEST_CASE("positions of padding go on from the document it follows") {
  num_sequence<positions, unpadded> s(length, static_cast<num>(packed.size()));
  for (num row = 0; row < s.rows(); ++row) {
    num i = 0;
    for (num d : packed[static_cast<std::size_t>(row)])
      for (num k = 0; k < d; ++k) s.at(i++, row) = k;
  }
  for_cuts<zigzag_documents>([&](num, padding_multiple m, num row_length) {
    const num_sequence<positions, full> p = pad(s, packed, m, row_length);
    for (num row = 0; row < p.rows(); ++row) {
      const padded_row where = lay_out(packed[static_cast<std::size_t>(row)], m.document, row_length);
      for (num i = 0; i < row_length; ++i) {
        const num real = where.real[static_cast<std::size_t>(i)];
        CHECK(p.at(i, row) == (real < 0 ? p.at(i - 1, row) + 1 : s.at(real, row)));
      }
    }
  });
  const num_sequence<positions, full> nothing =
      pad(num_sequence<positions, unpadded>(0, 1), rows_of_documents{{}}, {}, 3);
  CHECK(nothing.data() == numbers{0, 1, 2});
}

TEST_CASE("a shift before padding keeps the last target of every document but the row's") {
  num_sequence<labels, unpadded> s(length, static_cast<num>(packed.size()));
  number(s);
  for_cuts<zigzag_documents>([&](num, padding_multiple m, num row_length) {
    const num_sequence<targets, full> t = pad(shift(s), packed, m, row_length);
    for (num row = 0; row < t.rows(); ++row) {
      num kept = 0;
      for (num i = 0; i < row_length; ++i) kept += t.at(i, row) != ignored_target;
      CHECK(kept == length - 1);
    }
  });
}

template <Layout L>
void cut_and_put_back() {
  for (num width : {1, 3}) {
    num_sequence<embeddings, unpadded> s(length, static_cast<num>(packed.size()), width);
    number(s);
    for_cuts<L>([&](num cp, padding_multiple m, num row_length) {
      const num_sequence<embeddings, full> whole = pad(s, packed, m, row_length);
      num_sequence<embeddings, full> again(row_length, whole.rows(), width);
      for (num& value : again.data()) value = -7;
      for (num r = 0; r < cp; ++r) {
        const num_sequence<embeddings, L> part = cut<L>(whole, packed, cp, r);
        CHECK(part.length() == row_length / cp);
        for (num row = 0; row < part.rows(); ++row) {
          num next = 0;
          const numbers& documents = packed[static_cast<std::size_t>(row)];
          for_each_range(L::kind, documents, row_length, cp, r, [&](token_range range) {
            for (num i = range.begin; i < range.end; ++i, ++next)
              for (num w = 0; w < width; ++w) CHECK(part.at(next, row, w) == whole.at(i, row, w));
          });
          CHECK(next == part.length());
        }
        put_back(part, again, packed, cp, r);
      }
      CHECK(again.data() == whole.data());
    });
  }
}

TEST_CASE("what is cut and put back is whole again") {
  cut_and_put_back<contiguous>();
  cut_and_put_back<zigzag>();
  cut_and_put_back<zigzag_documents>();
}

TEST_CASE("an operation's result has the layout, length and rows of what it is made like") {
  const num_sequence<token_ids, full> whole =
      pad(num_sequence<token_ids, unpadded>(8, 2), rows_of_documents{{8}, {8}}, {}, 8);
  const num_sequence<token_ids, zigzag> ids = cut<zigzag>(whole, rows_of_documents{{8}, {8}}, 2, 1);
  const sequence<hidden_states, zigzag, std::vector<double>> hidden(ids, 5);
  CHECK(hidden.length() == 4);
  CHECK(hidden.rows() == 2);
  CHECK(hidden.data().size() == 40);
}

// ---- sequences that were cut elsewhere

/// Where each token of rank r stands, as a caller with the right layout would say it: claims[row][token].
template <Layout L>
rows_of_documents right_claims(num row_length, num cp, num r) {
  rows_of_documents out;
  for (const numbers& documents : packed) {
    numbers& claim = out.emplace_back();
    for_each_range(L::kind, documents, row_length, cp, r, [&](token_range range) {
      for (num i = range.begin; i < range.end; ++i) claim.push_back(i);
    });
  }
  return out;
}

template <Layout L>
void claims_of_one_layout() {
  for_cuts<L>([&](num cp, padding_multiple, num row_length) {
    for (num r = 0; r < cp; ++r) {
      rows_of_documents claims = right_claims<L>(row_length, cp, r);
      const num local = static_cast<num>(claims[0].size());
      const auto found = [&](num tokens) {
        const auto claim = [&](num i, num row) {
          return claims[static_cast<std::size_t>(row)][static_cast<std::size_t>(i)];
        };
        return find_misplaced<L>(claim, tokens, static_cast<num>(packed.size()), packed, row_length, cp, r);
      };
      CHECK(!found(local).any);
      // Every transposition of two tokens of one row is found, at the first of them.
      for (num row = 0; row < static_cast<num>(packed.size()); ++row)
        for (num i = 0; i < local; ++i)
          for (num j = i + 1; j < local; ++j) {
            numbers& claim = claims[static_cast<std::size_t>(row)];
            std::swap(claim[static_cast<std::size_t>(i)], claim[static_cast<std::size_t>(j)]);
            const misplaced_token wrong = found(local);
            CHECK((wrong.any && wrong.row == row && wrong.token == i));
            CHECK(wrong.claimed == claim[static_cast<std::size_t>(i)]);
            CHECK(wrong.expected == claim[static_cast<std::size_t>(j)]);
            std::swap(claim[static_cast<std::size_t>(i)], claim[static_cast<std::size_t>(j)]);
          }
      // Too few and too many tokens.
      const misplaced_token few = found(local - 1);
      CHECK((few.any && few.token == local - 1 && few.claimed == -1));
      for (numbers& claim : claims) claim.push_back(row_length);
      const misplaced_token many = found(local + 1);
      CHECK((many.any && many.token == local && many.claimed == row_length && many.expected == -1));
    }
  });
}

TEST_CASE("a claim about a layout is held against every token") {
  claims_of_one_layout<contiguous>();
  claims_of_one_layout<zigzag>();
  claims_of_one_layout<zigzag_documents>();
}

TEST_CASE("tokens of another layout or another rank are found") {
  const auto found = [&]<Layout L>(L, const rows_of_documents& claims, num row_length, num cp, num r) {
    const auto claim = [&](num i, num row) {
      return claims[static_cast<std::size_t>(row)][static_cast<std::size_t>(i)];
    };
    return find_misplaced<L>(claim, static_cast<num>(claims[0].size()), static_cast<num>(packed.size()), packed,
                             row_length, cp, r)
        .any;
  };
  const num row_length = 24;  // enough for every layout on 2 ranks
  CHECK(found(zigzag{}, right_claims<contiguous>(row_length, 2, 0), row_length, 2, 0));
  CHECK(found(contiguous{}, right_claims<zigzag>(row_length, 2, 1), row_length, 2, 1));
  CHECK(found(zigzag_documents{}, right_claims<zigzag>(row_length, 2, 0), row_length, 2, 0));
  CHECK(found(zigzag{}, right_claims<zigzag>(row_length, 2, 0), row_length, 2, 1));
}

// ---- what does not compile

template <class What, class L>
concept Shifts = requires(num_sequence<What, L> s) {
  shift(s);
};
static_assert(Shifts<labels, unpadded>);
static_assert(!Shifts<targets, unpadded>, "shifted once only");
static_assert(!Shifts<labels, full> && !Shifts<labels, zigzag>, "before padding and cuts");
static_assert(!Shifts<token_ids, unpadded>, "labels alone");

template <class L>
concept MadeByAnyone = std::is_constructible_v<num_sequence<token_ids, L>, num, num>;
static_assert(MadeByAnyone<unpadded> && MadeByAnyone<full>);
static_assert(!MadeByAnyone<contiguous> && !MadeByAnyone<zigzag> && !MadeByAnyone<zigzag_documents>);
static_assert(!MadeByAnyone<tensor_split<zigzag>>);

template <class L, class From>
concept Cuts = requires(num_sequence<token_ids, From> s, rows_of_documents d) {
  cut<L>(s, d, num{2}, num{0});
};
static_assert(Cuts<zigzag, full>);
static_assert(!Cuts<zigzag, unpadded>, "padding comes first");
static_assert(!Cuts<zigzag, contiguous> && !Cuts<zigzag, zigzag>, "cut once");

template <class From>
concept Pads = requires(num_sequence<token_ids, From> s, rows_of_documents d) {
  pad(s, d, padding_multiple{}, num{8});
};
static_assert(Pads<unpadded> && !Pads<full> && !Pads<contiguous>);

/// Layouts differ in type, so none becomes another.
static_assert(!std::is_convertible_v<num_sequence<targets, full>, num_sequence<targets, zigzag>>);
static_assert(!std::is_convertible_v<num_sequence<targets, contiguous>, num_sequence<targets, zigzag>>);
static_assert(!std::is_convertible_v<num_sequence<labels, zigzag>, num_sequence<targets, zigzag>>);
static_assert(!std::is_constructible_v<num_sequence<logits, zigzag>, const num_sequence<targets, full>&, num>);

}  // namespace
