// SPDX-License-Identifier: Apache-2.0
// Sequences whose type says what they hold and which tokens. A sequence is made whole from the caller's rows, then
// goes one way: labels are shifted, rows are padded, a layout cuts them. Two sequences of different layouts cannot
// meet, so whole labels next to zigzag logits are a compile error and not a wrong loss.
#ifndef SHARDPLAN_SEQUENCE_HPP
#define SHARDPLAN_SEQUENCE_HPP

#include <shardplan/layout.hpp>
#include <utility>  // move

namespace shardplan {

/// The caller's rows, before padding: every token, in order.
struct unpadded final {
  static constexpr layout_kind kind = layout_kind::full;
};
/// The tokens of layout L cut once more over tp, as sequence parallelism does between tensor-parallel regions.
template <Layout L>
struct tensor_split final {};

// ---- what a sequence holds. `padding` is the value of a padding token.
struct token_ids final {
  static constexpr num padding = 0;
};
struct embeddings final {  ///< inputs_embeds, hidden_size wide
  static constexpr num padding = 0;
};
struct labels final {};  ///< as the caller has them: label i is token i. Only shift() leads on from here
struct targets final {   ///< shifted labels: target i is what token i must predict
  static constexpr num padding = -100;
};
struct key_mask final {  ///< 1: may be attended to, 0: not
  static constexpr num padding = 0;
};
struct positions final {};   ///< for rotary tables; padding continues the document it follows
struct document_ids final {  ///< which document of the row, counted from 0
  static constexpr num padding = -1;
};
struct rotary_table final {};
struct hidden_states final {};
struct logits final {};
struct token_losses final {};

/// The value of targets that count for nothing.
inline constexpr num ignored_target = -100;

/// `rows` rows of `length` tokens, `width` values each. Stored token by token, the rows of a token together, so that
/// a cut of tokens is one piece of memory: (length, rows, width). `Storage` is a vector-like type.
template <class What, class L, class Storage>
class sequence {
 public:
  using layout = L;
  using storage = Storage;

  /// Whole sequences are made by anyone; cut ones by cut(), adopt() or an operation that keeps the layout.
  constexpr sequence(num length, num rows, num width = 1) requires(std::same_as<L, unpadded> || std::same_as<L, full>)
      : sequence(length, rows, width, made{}) {}

  /// A sequence of the same tokens as `like`, holding something else.
  template <class OtherWhat, class OtherStorage>
  constexpr sequence(const sequence<OtherWhat, L, OtherStorage>& like, num width)
      : sequence(like.length(), like.rows(), width, made{}) {}

  /// The same, from its values.
  template <class OtherWhat, class OtherStorage>
  constexpr sequence(const sequence<OtherWhat, L, OtherStorage>& like, num width, Storage&& values)
      : data_(std::move(values)), length_(like.length()), rows_(like.rows()), width_(width) {}

  constexpr num length() const { return length_; }
  constexpr num rows() const { return rows_; }
  constexpr num width() const { return width_; }
  constexpr num tokens() const { return length_ * rows_; }
  constexpr Storage& data() { return data_; }
  constexpr const Storage& data() const { return data_; }
  constexpr auto& at(num token, num row, num i = 0) { return data_[index(token, row, i)]; }
  constexpr const auto& at(num token, num row, num i = 0) const { return data_[index(token, row, i)]; }

  /// For the operations of this header and for those that move tokens between ranks: the only ways to change a layout.
  struct made {};
  constexpr sequence(num length, num rows, num width, made)
      : data_(static_cast<std::size_t>(length * rows * width), typename Storage::value_type{}),
        length_(length),
        rows_(rows),
        width_(width) {}
  /// From its values.
  constexpr sequence(num length, num rows, num width, Storage&& values, made)
      : data_(std::move(values)), length_(length), rows_(rows), width_(width) {}

 private:
  constexpr std::size_t index(num token, num row, num i) const {
    return static_cast<std::size_t>((token * rows_ + row) * width_ + i);
  }
  Storage data_;
  num length_, rows_, width_;
};

/// Labels become targets: target i is label i + 1, and the last token has none. The caller's rows only, so that no
/// label can be lost at the border of a cut, and once only, because targets do not shift.
template <class Storage>
constexpr sequence<targets, unpadded, Storage> shift(const sequence<labels, unpadded, Storage>& from) {
  sequence<targets, unpadded, Storage> to(from.length(), from.rows());
  for (num i = 0; i < from.length(); ++i)
    for (num row = 0; row < from.rows(); ++row)
      to.at(i, row) = i + 1 < from.length() ? from.at(i + 1, row) : ignored_target;
  return to;
}

/// Rows padded to `length`: each document to its multiple, then the row. `documents[row]` holds real lengths.
/// Labels cannot be padded: they are shifted first, or a document's last target would be lost in its padding.
template <class What, class Storage, class Rows>
constexpr sequence<What, full, Storage> pad(const sequence<What, unpadded, Storage>& from, const Rows& documents,
                                            padding_multiple m, num length) {
  static_assert(!std::same_as<What, labels>, "shardplan: labels must be shifted before they are padded");
  sequence<What, full, Storage> to(length, from.rows(), from.width());
  for (num row = 0; row < from.rows(); ++row) {
    num next = 0;  // first padded offset not yet written
    const auto fill_up_to = [&](num end) {
      for (; next < end; ++next)
        for (num i = 0; i < from.width(); ++i) {
          if constexpr (std::same_as<What, positions>)
            to.at(next, row, i) = next > 0 ? to.at(next - 1, row, i) + 1 : 0;
          else if constexpr (!std::same_as<What, labels>)  // told above: once is enough
            to.at(next, row, i) = What::padding;
        }
    };
    for (num real = 0; real < from.length(); ++real) {
      const num at = to_padded(real_offset(real), documents[static_cast<std::size_t>(row)], m).value;
      fill_up_to(at);
      for (num i = 0; i < from.width(); ++i) to.at(at, row, i) = from.at(real, row, i);
      next = at + 1;
    }
    fill_up_to(length);
  }
  return to;
}

/// What rank `r` of `cp` holds of padded rows under layout `To`.
template <Layout To, class What, class Storage, class Rows>
constexpr sequence<What, To, Storage> cut(const sequence<What, full, Storage>& from, const Rows& documents, num cp,
                                          num r) {
  static_assert(!std::same_as<What, labels>, "shardplan: labels must be shifted before they are cut");
  using result = sequence<What, To, Storage>;
  result to(local_length(To::kind, from.length(), cp), from.rows(), from.width(), typename result::made{});
  for (num row = 0; row < from.rows(); ++row) {
    num next = 0;
    for_each_range(To::kind, documents[static_cast<std::size_t>(row)], from.length(), cp, r, [&](token_range range) {
      for (num at = range.begin; at < range.end; ++at, ++next)
        for (num i = 0; i < from.width(); ++i) to.at(next, row, i) = from.at(at, row, i);
    });
  }
  return to;
}

/// Puts what rank `r` holds back in its place in whole rows: the inverse of cut().
template <class What, Layout From, class Storage, class Rows>
constexpr void put_back(const sequence<What, From, Storage>& part, sequence<What, full, Storage>& whole,
                        const Rows& documents, num cp, num r) {
  for (num row = 0; row < whole.rows(); ++row) {
    num next = 0;
    for_each_range(From::kind, documents[static_cast<std::size_t>(row)], whole.length(), cp, r, [&](token_range range) {
      for (num at = range.begin; at < range.end; ++at, ++next)
        for (num i = 0; i < whole.width(); ++i) whole.at(at, row, i) = part.at(next, row, i);
    });
  }
}

/// Where a caller's claim about a layout fails first: token `token` of row `row` is at `claimed` but belongs
/// `expected`.
struct misplaced_token {
  bool any = false;
  num row = 0, token = 0, claimed = 0, expected = 0;
};

/// Compares where the caller says its tokens stand in the padded row (`claimed(token, row)`) with where layout L puts
/// them. A sequence that was cut elsewhere enters only through this door.
template <Layout L, class Claim, class Rows>
constexpr misplaced_token find_misplaced(const Claim& claimed, num length, num rows, const Rows& documents,
                                         num padded_row, num cp, num r) {
  for (num row = 0; row < rows; ++row) {
    num next = 0;
    misplaced_token wrong;
    for_each_range(L::kind, documents[static_cast<std::size_t>(row)], padded_row, cp, r, [&](token_range range) {
      for (num at = range.begin; at < range.end; ++at, ++next)
        if (!wrong.any && (next >= length || claimed(next, row) != at))
          wrong = {true, row, next, next >= length ? -1 : claimed(next, row), at};
    });
    if (!wrong.any && next < length) wrong = {true, row, next, claimed(next, row), -1};
    if (wrong.any) return wrong;
  }
  return {};
}

}  // namespace shardplan
#endif  // SHARDPLAN_SEQUENCE_HPP
