// SPDX-License-Identifier: Apache-2.0
// shardplan 0.1.0, the library in one file: parallelism plans as compile-time types.
// Generated from include/shardplan: do not edit, run `python3 cmake/amalgamate.py`.
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

// ---- shardplan/text_view.hpp ----
// SPDX-License-Identifier: Apache-2.0
// A piece of text that somebody else keeps. The library's own, because <string_view> alone would be more than half of
// what all of its other headers cost to include; it converts from and to the standard's types where those are known.
#ifndef SHARDPLAN_TEXT_VIEW_HPP
#define SHARDPLAN_TEXT_VIEW_HPP

namespace shardplan {

/// std::string, std::string_view and their like.
template <class S>
concept StringLike = requires(const S& s, typename S::traits_type::char_type c) {
  static_cast<const char*>(s.data());
  static_cast<std::size_t>(s.size());
  static_cast<const char*>(&c);
};

/// Those that keep nothing themselves, such as std::string_view.
template <class S>
concept StringViewLike = StringLike<S> && !requires {
  typename S::allocator_type;
};

class text_view {
 public:
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);

  constexpr text_view() = default;
  constexpr text_view(const char* data, std::size_t size) : data_(data), size_(size) {}
  constexpr text_view(const char* text) : data_(text) {  // NOLINT: a literal is text
    while (text[size_] != '\0') ++size_;
  }
  template <StringLike S>
  constexpr text_view(const S& s) : data_(s.data()), size_(s.size()) {}  // NOLINT
  template <StringViewLike S>
  constexpr operator S() const {  // NOLINT
    return S(data_, size_);
  }

  constexpr const char* data() const { return data_; }
  constexpr std::size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr const char* begin() const { return data_; }
  constexpr const char* end() const { return data_ + size_; }
  constexpr char operator[](std::size_t i) const { return data_[i]; }
  constexpr char front() const { return data_[0]; }
  constexpr char back() const { return data_[size_ - 1]; }

  /// Of at most `count` characters from `first` <= size() on.
  constexpr text_view substr(std::size_t first, std::size_t count = npos) const {
    return {data_ + first, count < size_ - first ? count : size_ - first};
  }
  constexpr void remove_prefix(std::size_t count) { *this = substr(count); }
  constexpr void remove_suffix(std::size_t count) { size_ -= count; }

  constexpr std::size_t find(char c, std::size_t from = 0) const {
    for (std::size_t i = from; i < size_; ++i)
      if (data_[i] == c) return i;
    return npos;
  }
  constexpr std::size_t find(text_view part, std::size_t from = 0) const {
    for (std::size_t i = from; i + part.size_ <= size_; ++i)
      if (substr(i, part.size_) == part) return i;
    return npos;
  }
  constexpr bool starts_with(text_view part) const { return substr(0, part.size_) == part; }
  constexpr bool ends_with(text_view part) const { return size_ >= part.size_ && substr(size_ - part.size_) == part; }

  friend constexpr bool operator==(text_view a, text_view b) {
    if (a.size_ != b.size_) return false;
    for (std::size_t i = 0; i < a.size_; ++i)
      if (a.data_[i] != b.data_[i]) return false;
    return true;
  }
  // An exact match, or the standard's own comparison would be as good.
  template <StringLike S>
  friend constexpr bool operator==(text_view a, const S& b) {
    return a == text_view(b);
  }
  friend constexpr bool operator<(text_view a, text_view b) {
    const std::size_t common = a.size_ < b.size_ ? a.size_ : b.size_;
    for (std::size_t i = 0; i < common; ++i)
      if (a.data_[i] != b.data_[i])
        return static_cast<unsigned char>(a.data_[i]) < static_cast<unsigned char>(b.data_[i]);
    return a.size_ < b.size_;
  }
  template <StringLike S>
  friend constexpr bool operator<(text_view a, const S& b) {
    return a < text_view(b);
  }
  template <StringLike S>
  friend constexpr bool operator<(const S& a, text_view b) {
    return text_view(a) < b;
  }
  template <class Stream>
  requires requires(Stream& out, const char* data) { out.write(data, 0).flush(); }
  friend Stream& operator<<(Stream& out, text_view text) {
    out.write(text.data_, static_cast<decltype(out.tellp() - out.tellp())>(text.size_));
    return out;
  }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace shardplan
#endif  // SHARDPLAN_TEXT_VIEW_HPP

// ---- shardplan/meta.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The few tools of the language that everything else uses: the number type, type lists, and containers of fixed
// capacity that are structural types, so that a whole plan can be a template argument.
#ifndef SHARDPLAN_META_HPP
#define SHARDPLAN_META_HPP

namespace shardplan {

/// Every count, size, degree and rank: signed, so that a negative input is a value that a rule can refuse.
using num = std::int64_t;

/// A list of types.
template <class...>
struct list {};

/// A vector of at most `Capacity` values, usable in constant expressions and as part of a template argument.
/// Unused slots always hold `T{}`, so that equality is memberwise.
template <class T, std::size_t Capacity>
struct fixed_vector {
  T items[Capacity]{};
  std::size_t count = 0;

  static constexpr std::size_t capacity() { return Capacity; }
  constexpr std::size_t size() const { return count; }
  constexpr bool empty() const { return count == 0; }
  constexpr bool full() const { return count == Capacity; }
  constexpr const T& operator[](std::size_t i) const { return items[i]; }
  constexpr T& operator[](std::size_t i) { return items[i]; }
  constexpr const T* begin() const { return items; }
  constexpr const T* end() const { return items + count; }
  constexpr T* begin() { return items; }
  constexpr T* end() { return items + count; }
  /// Appends `value`; false, and nothing changed, when there is no room.
  constexpr bool push_back(const T& value) {
    if (full()) return false;
    items[count++] = value;
    return true;
  }
  friend constexpr bool operator==(const fixed_vector&, const fixed_vector&) = default;
};

/// Text of at most `Capacity` characters, for constant expressions (std::string is not usable there on every
/// compiler). What does not fit is dropped, and `truncated` says so.
template <std::size_t Capacity>
struct fixed_text {
  char items[Capacity + 1]{};
  std::size_t count = 0;
  bool truncated = false;

  constexpr fixed_text() = default;
  constexpr fixed_text(text_view text) { add(text); }  // NOLINT: a string is a fixed_text

  constexpr fixed_text& add(text_view text) {
    for (char c : text) push_back(c);
    return *this;
  }
  constexpr fixed_text& push_back(char c) {
    if (count == Capacity)
      truncated = true;
    else
      items[count++] = c;
    return *this;
  }
  constexpr fixed_text& add(num value) {
    char digits[20]{};
    std::size_t n = 0;
    // The magnitude is taken in the unsigned type: the smallest num has no positive twin.
    std::uint64_t rest = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
    do digits[n++] = static_cast<char>('0' + rest % 10);
    while ((rest /= 10) != 0);
    if (value < 0) add("-");
    while (n > 0) push_back(digits[--n]);
    return *this;
  }
  constexpr text_view view() const { return {items, count}; }
  constexpr const char* c_str() const { return items; }
  constexpr std::size_t size() const { return count; }
  friend constexpr bool operator==(const fixed_text& a, const fixed_text& b) { return a.view() == b.view(); }
  template <class Stream>
  requires requires(Stream& out, text_view text) { out << text; }
  friend Stream& operator<<(Stream& out, const fixed_text& text) {
    out << text.view();
    return out;
  }
};

namespace detail {
/// A string literal as a template argument.
template <std::size_t Size>
struct literal_text {
  char items[Size]{};
  consteval literal_text(const char (&text)[Size]) {  // NOLINT: a literal is a literal_text
    for (std::size_t i = 0; i < Size; ++i) items[i] = text[i];
  }
  constexpr text_view view() const { return {items, Size - 1}; }
};
}  // namespace detail

constexpr num ceil_div(num a, num b) { return (a + b - 1) / b; }
constexpr num round_up(num a, num multiple) { return ceil_div(a, multiple) * multiple; }

/// a * b, or -1 when either is negative or the product does not fit: a degree product is never wrapped.
constexpr num checked_product(num a, num b) {
  if (a < 0 || b < 0) return -1;
  if (a != 0 && b > INT64_MAX / a) return -1;
  return a * b;
}

}  // namespace shardplan
#endif  // SHARDPLAN_META_HPP

// ---- shardplan/axes.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The axes of a mesh. An axis is of a mesh, a dim is of a tensor; the two words are never mixed.
#ifndef SHARDPLAN_AXES_HPP
#define SHARDPLAN_AXES_HPP

namespace shardplan {

/// A named dimension of a mesh. The sub-axes are factors of cp (`cp_ring` x `cp_ulysses`, Ulysses fastest) and of
/// tp (`tp_heads` x `tp_copies`, the copies of one key/value head fastest).
enum class axis : unsigned char {
  pp,
  dp_replicate,
  fsdp,
  cp,
  tp,
  efsdp,
  ep,
  etp,
  fsdp_cp,
  cp_ring,
  cp_ulysses,
  tp_heads,
  tp_copies,
};
inline constexpr std::size_t num_axes = 13;

constexpr text_view name_of(axis a) {
  constexpr text_view names[num_axes] = {"pp",  "dp_replicate", "fsdp",    "cp",         "tp",       "efsdp",    "ep",
                                         "etp", "fsdp_cp",      "cp_ring", "cp_ulysses", "tp_heads", "tp_copies"};
  return names[static_cast<std::size_t>(a)];
}

/// A set of axes: the subject of a collective, or the cut of a tensor dim.
struct axis_set {
  unsigned bits = 0;

  constexpr axis_set() = default;
  constexpr axis_set(axis a) : bits(1u << static_cast<unsigned>(a)) {}  // NOLINT: one axis is a set of axes
  constexpr bool has(axis a) const { return (bits >> static_cast<unsigned>(a)) & 1u; }
  constexpr bool empty() const { return bits == 0; }
  friend constexpr axis_set operator|(axis_set a, axis_set b) {
    axis_set both;
    both.bits = a.bits | b.bits;
    return both;
  }
  friend constexpr bool operator==(axis_set, axis_set) = default;
};
constexpr axis_set operator|(axis a, axis b) { return axis_set(a) | axis_set(b); }

/// Every axis of the dense view: a group over them is the world.
inline constexpr axis_set world_axes = axis::pp | axis::dp_replicate | axis::fsdp | axis::cp | axis::tp;

}  // namespace shardplan
#endif  // SHARDPLAN_AXES_HPP

// ---- shardplan/batch.hpp ----
// SPDX-License-Identifier: Apache-2.0
// On what a plan is asked to run: rows, their length, the documents packed in a row, micro-batches.
#ifndef SHARDPLAN_BATCH_HPP
#define SHARDPLAN_BATCH_HPP

namespace shardplan {

/// Lengths of the documents packed in one row, in order; empty means one document, the row.
using document_lengths = fixed_vector<num, 64>;

struct batch_spec {
  num length = 0;         ///< tokens of one row before padding; 0: not said, and no rule about it is asked
  num rows = 0;           ///< rows of the global batch; 0: not said
  num micro_batches = 0;  ///< 0: as many as pipeline stages (pp)
  document_lengths documents{};

  friend constexpr bool operator==(const batch_spec&, const batch_spec&) = default;
};

}  // namespace shardplan
#endif  // SHARDPLAN_BATCH_HPP

// ---- shardplan/facts.hpp ----
// SPDX-License-Identifier: Apache-2.0
// What a rule is made of: a sentence and operands. Each is written once and serves both the compiler's message and the
// run-time report; the macros are for users' own rules too, in any namespace:
//
//   SHARDPLAN_OPERAND(hidden_size, q.model.hidden_size);      // q is the question; makes hidden_size_operand
//   struct hidden_is_whole_tiles {
//     SHARDPLAN_SENTENCE("hidden_size must be a multiple of 128");
//     static constexpr shardplan::rule_kind kind = shardplan::rule_kind::math;
//     using operands = shardplan::list<hidden_size_operand>;
//     static constexpr bool holds(shardplan::num hidden) { return hidden % 128 == 0; }
//   };
//
// A rule may also have: `source` (a string), `using presumes = list<Rules...>` (it is asked only when they hold),
// `applies(question)` (it is asked only then), and `fix(question)` (text: what to write instead).
#ifndef SHARDPLAN_FACTS_HPP
#define SHARDPLAN_FACTS_HPP

namespace shardplan {

enum class rule_kind : unsigned char {
  math,    ///< no program can do it with equal cuts, or the schedule is undefined: refused
  engine,  ///< the limit of a named engine: refused when an engine is named
  advice,  ///< right, but slow, wasteful or without effect: reported, accepted
};

constexpr text_view name_of(rule_kind k) {
  constexpr text_view names[] = {"math", "engine", "advice"};
  return names[static_cast<std::size_t>(k)];
}

/// What a rule tells to write instead.
using fix_text = fixed_text<512>;

namespace diag {

/// False for whatever facts, and printed with them: what a compiler shows of a broken rule.
template <class... Facts>
inline constexpr bool holds_with = false;

/// "num_heads<12>": the name of a type as the compiler spells it, without its namespaces.
template <class T>
constexpr text_view type_name() {
  text_view s = __PRETTY_FUNCTION__;
  s.remove_prefix(s.find("T = ") + 4);
  std::size_t first = 0, last = 0, arguments = s.size();
  for (; s[last] != ';' && s[last] != ']'; ++last) {
    if (s[last] == '<' && last < arguments) arguments = last;
    if (s[last] == ':' && last < arguments) first = last + 1;
  }
  return s.substr(first, last - first);
}

/// A message for static_assert where that takes an object.
struct message {
  fixed_text<512> text{};
  constexpr const char* data() const { return text.items; }
  constexpr std::size_t size() const { return text.count; }
};
template <class... Facts>
constexpr message explain(text_view sentence) {
  message m;
  m.text.add(sentence).add(" [");
  std::size_t n = 0;
  ((m.text.add(n++ == 0 ? "" : ", ").add(type_name<Facts>())), ...);
  m.text.add("]");
  return m;
}

}  // namespace diag
}  // namespace shardplan

// Compilers that take an object as the message of static_assert get the facts in it; the others print them beside it.
#if defined(__cpp_static_assert) && __cpp_static_assert >= 202306L
#define SHARDPLAN_DETAIL_TEXT(LITERAL) ::shardplan::diag::explain<Facts...>(LITERAL)
#else
#define SHARDPLAN_DETAIL_TEXT(LITERAL) LITERAL
#endif
#if defined(__clang__) && __clang_major__ >= 17
#define SHARDPLAN_DETAIL_QUIET \
  _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Wc++26-extensions\"")
#define SHARDPLAN_DETAIL_LOUD _Pragma("clang diagnostic pop")
#else
#define SHARDPLAN_DETAIL_QUIET
#define SHARDPLAN_DETAIL_LOUD
#endif

/// The sentence of a rule, a string literal with "must": `sentence` for run time, and `broken_with<Facts...>`, whose
/// instantiation is the compile error.
#define SHARDPLAN_SENTENCE(LITERAL)                                                                       \
  static constexpr ::shardplan::text_view sentence{LITERAL, sizeof(LITERAL) - 1};                         \
  SHARDPLAN_DETAIL_QUIET template <class... Facts>                                                        \
  struct broken_with {                                                                                    \
    static_assert(::shardplan::diag::holds_with<Facts...>, SHARDPLAN_DETAIL_TEXT("shardplan: " LITERAL)); \
  };                                                                                                      \
  SHARDPLAN_DETAIL_LOUD static_assert(true)

/// An operand of rules: its name, and its value as an expression over the question `q`. The fact that a compiler
/// prints is the type NAME<value>.
#define SHARDPLAN_OPERAND(NAME, EXPRESSION)                                                     \
  template <::shardplan::num>                                                                   \
  struct NAME;                                                                                  \
  struct NAME##_operand {                                                                       \
    static constexpr ::shardplan::num of(const ::shardplan::question& q) { return EXPRESSION; } \
    template <::shardplan::num Value>                                                           \
    using fact = NAME<Value>;                                                                   \
    static constexpr ::shardplan::text_view name{#NAME, sizeof(#NAME) - 1};                     \
  }

#endif  // SHARDPLAN_FACTS_HPP

// ---- shardplan/layout.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Which tokens of a row a context-parallel rank holds, in what order, and to what multiple a row must be padded so
// that every rank holds equally many. Everything that cuts a sequence asks here; nothing else knows a cut.
#ifndef SHARDPLAN_LAYOUT_HPP
#define SHARDPLAN_LAYOUT_HPP

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

// ---- shardplan/ledger.hpp ----
// SPDX-License-Identifier: Apache-2.0
// One line of an account of communication: what a plan predicts and what an engine records are lists of these.
#ifndef SHARDPLAN_LEDGER_HPP
#define SHARDPLAN_LEDGER_HPP

namespace shardplan {

enum class operation : unsigned char {
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  gather,
  send,
  receive,
  barrier,
};

/// Why something is communicated. `check` and `collect` belong to whoever runs a plan, the others to the plan.
enum class phase : unsigned char { parameters, forward, loss, backward, gradients, collect, check };

constexpr text_view name_of(operation o) {
  constexpr text_view names[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
                                 "gather",     "send",       "receive",        "barrier"};
  return names[static_cast<std::size_t>(o)];
}
constexpr text_view name_of(phase p) {
  constexpr text_view names[] = {"parameters", "forward", "loss", "backward", "gradients", "collect", "check"};
  return names[static_cast<std::size_t>(p)];
}

/// One collective call of one rank. Calls on groups of one rank send nothing and have no entry; nor have barriers.
struct ledger_entry {
  operation what{};
  axis_set axes{};
  num group_size = 1;
  /// Bytes of the buffer this rank handed over, before any algorithm:
  ///   all_reduce, broadcast  the whole inout buffer, on every member (so on those that only receive a broadcast too)
  ///   all_gather, gather     this rank's own part
  ///   reduce_scatter         the input: the parts of all members
  ///   all_to_all             the input: what goes to all members, this rank included
  ///   send                   the message
  ///   receive                the message (the buffer filled), so that a send and its receive say the same
  num bytes = 0;
  /// Of `bytes`, those that never leave this rank: its own part in reduce_scatter and all_to_all, all of a message to
  /// itself; the whole of a gather on the root; else 0.
  num kept = 0;
  bool root = false;  ///< this rank is the root of the broadcast or gather
  phase why{};
  num layer = -1;  ///< -1: none

  friend constexpr bool operator==(const ledger_entry&, const ledger_entry&) = default;
};

/// Bytes this rank puts on the wire with the usual bandwidth-optimal algorithm (n = group_size):
///   all_reduce      2 * (n - 1) / n * bytes, rounded up (ring: reduce_scatter, then all_gather)
///   all_gather      (n - 1) * bytes (ring: a rank forwards n - 1 parts; of its own size when parts are even)
///   broadcast       (n - 1) * bytes on the root, 0 elsewhere (the total is the same for every algorithm)
///   reduce_scatter, all_to_all, gather, send   bytes - kept
///   receive, barrier   0
constexpr num wire_bytes(const ledger_entry& e) {
  const num others = e.group_size - 1;
  switch (e.what) {
    case operation::all_reduce:
      return ceil_div(2 * others * e.bytes, e.group_size);
    case operation::all_gather:
      return others * e.bytes;
    case operation::broadcast:
      return e.root ? others * e.bytes : 0;
    case operation::reduce_scatter:
    case operation::all_to_all:
    case operation::gather:
    case operation::send:
      return e.bytes - e.kept;
    case operation::receive:
    case operation::barrier:
      return 0;
  }
  return 0;
}

}  // namespace shardplan
#endif  // SHARDPLAN_LEDGER_HPP

// ---- shardplan/methods.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The choices a plan makes beside its degrees: how attention crosses context-parallel ranks, how tokens reach
// experts, in which order a pipeline runs, and how much of a parameter's state is sharded.
#ifndef SHARDPLAN_METHODS_HPP
#define SHARDPLAN_METHODS_HPP

namespace shardplan {

/// Context-parallel attention. The first of each enumeration is the default of the plan text.
enum class cp_method : unsigned char {
  ulysses,       ///< all-to-all from tokens to heads and back: every rank attends whole rows with some heads
  ring,          ///< key/value blocks travel round the ranks, softmax is accumulated online
  all_gather,    ///< every rank gathers all keys and values
  ulysses_ring,  ///< Ulysses inside groups of U neighbours, a ring over the R groups
};
enum class dispatch_kind : unsigned char {
  dispatch,    ///< every (token, expert) pair travels to the expert and back: all-to-all with uneven counts
  all_reduce,  ///< rows are replicated, every rank adds what its experts contribute
  all_gather,  ///< rows are gathered, results are reduce-scattered
};
enum class schedule_kind : unsigned char { one_f_one_b, gpipe, interleaved };
enum class zero_stage : unsigned char {
  zero3,  ///< parameters, gradients and optimizer state sharded
  zero1,  ///< optimizer state sharded
  zero2,  ///< optimizer state and gradients sharded
};

constexpr text_view name_of(cp_method m) {
  constexpr text_view names[] = {"ulysses", "ring", "all_gather", "ulysses_ring"};
  return names[static_cast<std::size_t>(m)];
}
constexpr text_view name_of(dispatch_kind d) {
  constexpr text_view names[] = {"dispatch", "all_reduce", "all_gather"};
  return names[static_cast<std::size_t>(d)];
}
constexpr text_view name_of(schedule_kind s) {
  constexpr text_view names[] = {"1f1b", "gpipe", "interleaved"};
  return names[static_cast<std::size_t>(s)];
}
constexpr text_view name_of(zero_stage z) {
  constexpr text_view names[] = {"zero3", "zero1", "zero2"};
  return names[static_cast<std::size_t>(z)];
}

}  // namespace shardplan
#endif  // SHARDPLAN_METHODS_HPP

// ---- shardplan/model.hpp ----
// SPDX-License-Identifier: Apache-2.0
// What is computed: the dims of a Qwen3-MoE model. Real numbers (rotary base, epsilon) are not here: no cut depends
// on them, and they may not be part of a template argument on every compiler.
#ifndef SHARDPLAN_MODEL_HPP
#define SHARDPLAN_MODEL_HPP

namespace shardplan {

/// A set of layer indices below `capacity`.
struct layer_set {
  static constexpr num capacity = 512;
  std::uint64_t words[capacity / 64]{};

  constexpr bool has(num layer) const {
    return layer >= 0 && layer < capacity && ((words[layer / 64] >> (layer % 64)) & 1u) != 0;
  }
  constexpr layer_set& insert(num layer) {
    words[layer / 64] |= std::uint64_t{1} << (layer % 64);
    return *this;
  }
  friend constexpr bool operator==(const layer_set&, const layer_set&) = default;
};

/// The dims of a model, in the spelling of its Hugging Face configuration. Sizes are logical: `moe_intermediate_size`
/// is I although gate and up are stored fused as 2*I rows.
struct model_spec {
  num num_hidden_layers = 1;
  num hidden_size = 1;
  num num_attention_heads = 1;
  num num_key_value_heads = 1;
  num head_dim = 2;
  num intermediate_size = 1;      ///< of dense layers
  num moe_intermediate_size = 1;  ///< of one expert
  num num_experts = 0;            ///< 0: a dense model
  num num_experts_per_tok = 0;
  num vocab_size = 1;
  num max_position_embeddings = 1;
  num decoder_sparse_step = 1;
  num sliding_window = 0;             ///< 0: full attention; otherwise keys in (query - window, query]
  layer_set mlp_only_layers{};        ///< dense whatever decoder_sparse_step says
  layer_set full_attention_layers{};  ///< attend without the window, where there is one
  bool attention_bias = false;        ///< of q, k, v and o
  bool head_norm = true;              ///< q and k are normalised over head_dim (q_norm, k_norm)
  bool tie_word_embeddings = false;
  bool scaled_rotary = false;  ///< rotary scaling allows positions beyond max_position_embeddings

  friend constexpr bool operator==(const model_spec&, const model_spec&) = default;
};

/// Layer i holds experts iff it is not listed as dense and its turn has come: (i + 1) % decoder_sparse_step == 0.
constexpr bool is_moe_layer(const model_spec& m, num layer) {
  return m.num_experts > 0 && m.decoder_sparse_step > 0 && !m.mlp_only_layers.has(layer) &&
         (layer + 1) % m.decoder_sparse_step == 0;
}

/// Keys a query of that layer may look back over, itself included; 0: all.
constexpr num attention_window(const model_spec& m, num layer) {
  return m.full_attention_layers.has(layer) ? 0 : m.sliding_window;
}

constexpr num num_moe_layers(const model_spec& m) {
  num n = 0;
  for (num layer = 0; layer < m.num_hidden_layers; ++layer) n += is_moe_layer(m, layer) ? 1 : 0;
  return n;
}
constexpr num num_dense_layers(const model_spec& m) { return m.num_hidden_layers - num_moe_layers(m); }

}  // namespace shardplan
#endif  // SHARDPLAN_MODEL_HPP

// ---- shardplan/models.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The published Qwen3-MoE models by name.
#ifndef SHARDPLAN_MODELS_HPP
#define SHARDPLAN_MODELS_HPP

namespace shardplan::models {

inline constexpr model_spec qwen3_30b_a3b = [] {
  model_spec m;
  m.num_hidden_layers = 48;
  m.hidden_size = 2048;
  m.num_attention_heads = 32;
  m.num_key_value_heads = 4;
  m.head_dim = 128;
  m.intermediate_size = 6144;
  m.moe_intermediate_size = 768;
  m.num_experts = 128;
  m.num_experts_per_tok = 8;
  m.vocab_size = 151936;
  m.max_position_embeddings = 40960;
  return m;
}();

/// The 2507 release of the 30B model: the same dims, longer positions.
inline constexpr model_spec qwen3_30b_a3b_2507 = [] {
  model_spec m = qwen3_30b_a3b;
  m.max_position_embeddings = 262144;
  return m;
}();

inline constexpr model_spec qwen3_235b_a22b = [] {
  model_spec m = qwen3_30b_a3b;
  m.num_hidden_layers = 94;
  m.hidden_size = 4096;
  m.num_attention_heads = 64;
  m.intermediate_size = 12288;
  m.moe_intermediate_size = 1536;
  return m;
}();

inline constexpr model_spec qwen3_235b_a22b_2507 = [] {
  model_spec m = qwen3_235b_a22b;
  m.max_position_embeddings = 262144;
  return m;
}();

inline constexpr model_spec qwen3_coder_480b_a35b = [] {
  model_spec m = qwen3_30b_a3b;
  m.num_hidden_layers = 62;
  m.hidden_size = 6144;
  m.num_attention_heads = 96;
  m.num_key_value_heads = 8;
  m.intermediate_size = 8192;
  m.moe_intermediate_size = 2560;
  m.num_experts = 160;
  m.max_position_embeddings = 262144;
  return m;
}();

struct published_model {
  text_view name;
  model_spec spec;
  double rope_theta;  ///< rotary base, for whoever writes a checkpoint
};

/// Every published model, by the name a command line uses.
inline constexpr published_model published[] = {
    {"qwen3-30b-a3b", qwen3_30b_a3b, 1e6},
    {"qwen3-30b-a3b-2507", qwen3_30b_a3b_2507, 1e7},
    {"qwen3-235b-a22b", qwen3_235b_a22b, 1e6},
    {"qwen3-235b-a22b-2507", qwen3_235b_a22b_2507, 5e6},
    {"qwen3-coder-480b-a35b", qwen3_coder_480b_a35b, 1e7},
};

/// The published model of that name, or nullptr.
constexpr const published_model* find(text_view name) {
  for (const published_model& model : published)
    if (model.name == name) return &model;
  return nullptr;
}

}  // namespace shardplan::models
#endif  // SHARDPLAN_MODELS_HPP

// ---- shardplan/region.hpp ----
// SPDX-License-Identifier: Apache-2.0
// A part of a tensor: per dim, at most two ranges of indices (two where gate and up rows are stored in one dim).
#ifndef SHARDPLAN_REGION_HPP
#define SHARDPLAN_REGION_HPP

namespace shardplan {

/// Indices [begin, end) of a dim.
struct dim_range {
  num begin = 0, end = 0;
  constexpr num size() const { return end > begin ? end - begin : 0; }
  friend constexpr bool operator==(const dim_range&, const dim_range&) = default;
};

/// The indices of one dim that a part holds: the first range, then the second.
struct dim_part {
  dim_range ranges[2]{};

  constexpr dim_part() = default;
  constexpr dim_part(num begin, num end) : ranges{{begin, end}, {}} {}
  constexpr dim_part(dim_range first, dim_range second) : ranges{first, second} {}
  constexpr num size() const { return ranges[0].size() + ranges[1].size(); }
  /// Index, in the whole dim, of the i-th index held.
  constexpr num at(num i) const {
    return i < ranges[0].size() ? ranges[0].begin + i : ranges[1].begin + i - ranges[0].size();
  }
  constexpr bool has(num index) const {
    return (index >= ranges[0].begin && index < ranges[0].end) || (index >= ranges[1].begin && index < ranges[1].end);
  }
  /// The held indices number [begin, end): a cut of a cut.
  constexpr dim_part slice(num begin, num end) const {
    const auto clip = [&](dim_range r, num before) {
      const num from = begin > before ? begin - before : 0;
      const num to = end - before < r.size() ? end - before : r.size();
      return from < to ? dim_range{r.begin + from, r.begin + to} : dim_range{};
    };
    return {clip(ranges[0], 0), clip(ranges[1], ranges[0].size())};
  }
  friend constexpr bool operator==(const dim_part&, const dim_part&) = default;
};

/// A part of a tensor of at most three dims: the product of its dims' parts.
struct region {
  fixed_vector<dim_part, 3> dims{};

  constexpr num size() const {
    num n = dims.empty() ? 0 : 1;
    for (const dim_part& d : dims) n *= d.size();
    return n;
  }
  friend constexpr bool operator==(const region&, const region&) = default;
};

}  // namespace shardplan
#endif  // SHARDPLAN_REGION_HPP

// ---- shardplan/sequence.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Sequences whose type says what they hold and which tokens. A sequence is made whole from the caller's rows, then
// goes one way: labels are shifted, rows are padded, a layout cuts them. Two sequences of different layouts cannot
// meet, so whole labels next to zigzag logits are a compile error and not a wrong loss.
#ifndef SHARDPLAN_SEQUENCE_HPP
#define SHARDPLAN_SEQUENCE_HPP

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

// ---- shardplan/version.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The version of the library; the build reads it from here.
#ifndef SHARDPLAN_VERSION_HPP
#define SHARDPLAN_VERSION_HPP

#define SHARDPLAN_VERSION_MAJOR 0
#define SHARDPLAN_VERSION_MINOR 1
#define SHARDPLAN_VERSION_PATCH 0

#endif  // SHARDPLAN_VERSION_HPP

// ---- shardplan/parameters.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The parameters of a model: Hugging Face runtime names, shapes, class. Experts of a layer are two tensors, all
// gates and ups fused and all downs, as current releases of the model code hold them.
#ifndef SHARDPLAN_PARAMETERS_HPP
#define SHARDPLAN_PARAMETERS_HPP

namespace shardplan {

/// What a parameter is; layers hold those from input_layernorm to mlp_down.
enum class parameter_kind : unsigned char {
  embed_tokens,              ///< [vocab, hidden]
  input_layernorm,           ///< [hidden]
  q_proj,                    ///< [heads * head_dim, hidden]
  k_proj,                    ///< [kv_heads * head_dim, hidden]
  v_proj,                    ///< [kv_heads * head_dim, hidden]
  o_proj,                    ///< [hidden, heads * head_dim]
  q_bias,                    ///< [heads * head_dim]
  k_bias,                    ///< [kv_heads * head_dim]
  v_bias,                    ///< [kv_heads * head_dim]
  o_bias,                    ///< [hidden]
  q_norm,                    ///< [head_dim]
  k_norm,                    ///< [head_dim]
  post_attention_layernorm,  ///< [hidden]
  router,                    ///< [experts, hidden]
  experts_gate_up,           ///< [experts, 2 * moe_intermediate, hidden], gate rows first
  experts_down,              ///< [experts, hidden, moe_intermediate]
  mlp_gate,                  ///< [intermediate, hidden]
  mlp_up,                    ///< [intermediate, hidden]
  mlp_down,                  ///< [hidden, intermediate]
  final_norm,                ///< [hidden]
  lm_head,                   ///< [vocab, hidden]; none when tied
};
inline constexpr std::size_t num_parameter_kinds = 21;

/// Parameters of one class are reduced over the same axes.
enum class parameter_class : unsigned char { dense, norm, head_norm, router, expert, embedding, head };

/// Name of the tensor, without the prefix of its layer.
constexpr text_view name_of(parameter_kind k) {
  constexpr text_view names[num_parameter_kinds] = {
      "model.embed_tokens.weight",
      "input_layernorm.weight",
      "self_attn.q_proj.weight",
      "self_attn.k_proj.weight",
      "self_attn.v_proj.weight",
      "self_attn.o_proj.weight",
      "self_attn.q_proj.bias",
      "self_attn.k_proj.bias",
      "self_attn.v_proj.bias",
      "self_attn.o_proj.bias",
      "self_attn.q_norm.weight",
      "self_attn.k_norm.weight",
      "post_attention_layernorm.weight",
      "mlp.gate.weight",
      "mlp.experts.gate_up_proj",
      "mlp.experts.down_proj",
      "mlp.gate_proj.weight",
      "mlp.up_proj.weight",
      "mlp.down_proj.weight",
      "model.norm.weight",
      "lm_head.weight",
  };
  return names[static_cast<std::size_t>(k)];
}

constexpr parameter_class class_of(parameter_kind k) {
  switch (k) {
    case parameter_kind::embed_tokens:
      return parameter_class::embedding;
    case parameter_kind::lm_head:
      return parameter_class::head;
    case parameter_kind::router:
      return parameter_class::router;
    case parameter_kind::experts_gate_up:
    case parameter_kind::experts_down:
      return parameter_class::expert;
    case parameter_kind::q_norm:
    case parameter_kind::k_norm:
      return parameter_class::head_norm;
    case parameter_kind::input_layernorm:
    case parameter_kind::post_attention_layernorm:
    case parameter_kind::final_norm:
      return parameter_class::norm;
    default:
      return parameter_class::dense;
  }
}

/// Of keys or values: cut by key/value heads, which ranks may hold copies of.
constexpr bool is_key_value(parameter_kind k) {
  return k == parameter_kind::k_proj || k == parameter_kind::v_proj || k == parameter_kind::k_bias ||
         k == parameter_kind::v_bias;
}

struct parameter {
  static constexpr num no_layer = -1;
  parameter_kind kind{};
  num layer = no_layer;
  fixed_vector<num, 3> shape{};

  constexpr num size() const {
    num n = 1;
    for (num extent : shape) n *= extent;
    return n;
  }
  constexpr region whole() const {
    region all;
    for (num extent : shape) all.dims.push_back({0, extent});
    return all;
  }
  friend constexpr bool operator==(const parameter&, const parameter&) = default;
};

/// The full name, for example `model.layers.3.self_attn.q_proj.weight`.
constexpr fixed_text<96> name_of(const parameter& p) {
  fixed_text<96> text;
  if (p.layer != parameter::no_layer) text.add("model.layers.").add(p.layer).add(".");
  return text.add(name_of(p.kind));
}

/// The weight of the head: its own, or the embedding it is tied to.
constexpr parameter_kind head_weight(const model_spec& m) {
  return m.tie_word_embeddings ? parameter_kind::embed_tokens : parameter_kind::lm_head;
}

/// Shape of a parameter of that kind, whether or not the model has one.
constexpr parameter make_parameter(const model_spec& m, parameter_kind kind, num layer = parameter::no_layer) {
  parameter p{kind, layer, {}};
  const auto shape = [&](auto... extents) { (p.shape.push_back(extents), ...); };
  const num q = m.num_attention_heads * m.head_dim, kv = m.num_key_value_heads * m.head_dim;
  switch (kind) {
    case parameter_kind::embed_tokens:
    case parameter_kind::lm_head:
      shape(m.vocab_size, m.hidden_size);
      break;
    case parameter_kind::input_layernorm:
    case parameter_kind::post_attention_layernorm:
    case parameter_kind::final_norm:
    case parameter_kind::o_bias:
      shape(m.hidden_size);
      break;
    case parameter_kind::q_proj:
      shape(q, m.hidden_size);
      break;
    case parameter_kind::k_proj:
    case parameter_kind::v_proj:
      shape(kv, m.hidden_size);
      break;
    case parameter_kind::o_proj:
      shape(m.hidden_size, q);
      break;
    case parameter_kind::q_bias:
      shape(q);
      break;
    case parameter_kind::k_bias:
    case parameter_kind::v_bias:
      shape(kv);
      break;
    case parameter_kind::q_norm:
    case parameter_kind::k_norm:
      shape(m.head_dim);
      break;
    case parameter_kind::router:
      shape(m.num_experts, m.hidden_size);
      break;
    case parameter_kind::experts_gate_up:
      shape(m.num_experts, 2 * m.moe_intermediate_size, m.hidden_size);
      break;
    case parameter_kind::experts_down:
      shape(m.num_experts, m.hidden_size, m.moe_intermediate_size);
      break;
    case parameter_kind::mlp_gate:
    case parameter_kind::mlp_up:
      shape(m.intermediate_size, m.hidden_size);
      break;
    case parameter_kind::mlp_down:
      shape(m.hidden_size, m.intermediate_size);
      break;
  }
  return p;
}

/// Calls `f(parameter)` for each parameter of one layer, in the order in which the layer uses them.
template <class F>
constexpr void for_each_layer_parameter(const model_spec& m, num layer, F&& f) {
  for (int k = static_cast<int>(parameter_kind::input_layernorm); k <= static_cast<int>(parameter_kind::mlp_down);
       ++k) {
    const auto kind = static_cast<parameter_kind>(k);
    const bool bias = kind >= parameter_kind::q_bias && kind <= parameter_kind::o_bias;
    const bool moe = kind >= parameter_kind::router && kind <= parameter_kind::experts_down;
    const bool dense = kind >= parameter_kind::mlp_gate;
    const bool head_norm = kind == parameter_kind::q_norm || kind == parameter_kind::k_norm;
    if (bias && !m.attention_bias) continue;
    if (head_norm && !m.head_norm) continue;
    if (moe && !is_moe_layer(m, layer)) continue;
    if (dense && is_moe_layer(m, layer)) continue;
    f(make_parameter(m, kind, layer));
  }
}

/// Calls `f(parameter)` for each parameter of the model, in the order in which a forward uses them.
template <class F>
constexpr void for_each_parameter(const model_spec& m, F&& f) {
  f(make_parameter(m, parameter_kind::embed_tokens));
  for (num layer = 0; layer < m.num_hidden_layers; ++layer) for_each_layer_parameter(m, layer, f);
  f(make_parameter(m, parameter_kind::final_norm));
  if (!m.tie_word_embeddings) f(make_parameter(m, parameter_kind::lm_head));
}

constexpr num num_parameters(const model_spec& m) {
  num n = 0;
  for_each_parameter(m, [&](const parameter& p) { n += p.size(); });
  return n;
}

}  // namespace shardplan
#endif  // SHARDPLAN_PARAMETERS_HPP

// ---- shardplan/module_plan.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Which style cuts which module: tables from name patterns to styles, one each for tensor, expert and context
// parallelism, and a caller's overrides, which merge onto them. Ownership, reductions, collectives and execution ask
// here; nothing else knows how a module is cut.
#ifndef SHARDPLAN_MODULE_PLAN_HPP
#define SHARDPLAN_MODULE_PLAN_HPP

namespace shardplan {

enum class module_style : unsigned char {
  replicated,       ///< whole on every rank
  colwise,          ///< tp: output features cut: rows of the weight, and the bias
  rowwise,          ///< tp: input features cut: columns of the weight; a sum is owed, the bias is added once after it
  vocabulary,       ///< tp: rows of the vocabulary cut
  packed_colwise,   ///< ep, etp: experts over ep; gate rows and up rows each cut over etp
  grouped_rowwise,  ///< ep, etp: experts over ep; input features cut over etp, a sum is owed
  planned,          ///< cp: the method that the plan names
  ulysses,          ///< cp: this method, whatever the plan names
  ring,             ///< cp
  all_gather,       ///< cp
};
inline constexpr module_style module_styles[] = {
    module_style::replicated,     module_style::colwise,         module_style::rowwise, module_style::vocabulary,
    module_style::packed_colwise, module_style::grouped_rowwise, module_style::planned, module_style::ulysses,
    module_style::ring,           module_style::all_gather,
};

constexpr text_view name_of(module_style s) {
  constexpr text_view names[] = {"replicated",      "colwise", "rowwise", "vocabulary", "packed_colwise",
                                 "grouped_rowwise", "planned", "ulysses", "ring",       "all_gather"};
  return names[static_cast<std::size_t>(s)];
}
/// Does the style say how context is cut, and not how weights are?
constexpr bool is_of_context(module_style s) { return s >= module_style::planned; }

struct module_rule {
  text_view pattern;  ///< dotted name of a module; `*` stands for one component
  module_style style;
};

// How the families of this library (qwen3_moe, qwen3, mistral) are cut unless a caller says otherwise. What no pattern
// names is replicated.
inline constexpr module_rule tp_module_plan[] = {
    {"model.embed_tokens", module_style::vocabulary},
    {"model.layers.*.self_attn.q_proj", module_style::colwise},
    {"model.layers.*.self_attn.k_proj", module_style::colwise},
    {"model.layers.*.self_attn.v_proj", module_style::colwise},
    {"model.layers.*.self_attn.o_proj", module_style::rowwise},
    {"model.layers.*.mlp.gate_proj", module_style::colwise},
    {"model.layers.*.mlp.up_proj", module_style::colwise},
    {"model.layers.*.mlp.down_proj", module_style::rowwise},
    {"lm_head", module_style::vocabulary},
};
inline constexpr module_rule ep_module_plan[] = {
    {"model.layers.*.mlp.experts.gate_up_proj", module_style::packed_colwise},
    {"model.layers.*.mlp.experts.down_proj", module_style::grouped_rowwise},
};
inline constexpr module_rule cp_module_plan[] = {
    {"model.layers.*.self_attn", module_style::planned},
};

/// Does a pattern match a dotted name, component by component?
constexpr bool matches(text_view pattern, text_view name) {
  while (true) {
    const text_view p = pattern.substr(0, pattern.find('.')), n = name.substr(0, name.find('.'));
    if (p != "*" && p != n) return false;
    const bool pattern_ends = p.size() == pattern.size(), name_ends = n.size() == name.size();
    if (pattern_ends || name_ends) return pattern_ends && name_ends;
    pattern.remove_prefix(p.size() + 1);
    name.remove_prefix(n.size() + 1);
  }
}

/// The module a parameter belongs to: its name without `.weight` or `.bias`.
constexpr fixed_text<96> module_of(const parameter& p) {
  const fixed_text<96> name = name_of(p);
  text_view v = name.view();
  for (text_view leaf : {text_view(".weight"), text_view(".bias")})
    if (v.ends_with(leaf)) v.remove_suffix(leaf.size());
  return fixed_text<96>(v);
}

/// Style of the modules that hold parameters of that kind, as the tables say: a test compares the two, and matching
/// names in every question would cost more than all the rest of it.
constexpr module_style default_style(parameter_kind kind) {
  switch (kind) {
    case parameter_kind::embed_tokens:
    case parameter_kind::lm_head:
      return module_style::vocabulary;
    case parameter_kind::q_proj:
    case parameter_kind::k_proj:
    case parameter_kind::v_proj:
    case parameter_kind::q_bias:
    case parameter_kind::k_bias:
    case parameter_kind::v_bias:
    case parameter_kind::mlp_gate:
    case parameter_kind::mlp_up:
      return module_style::colwise;
    case parameter_kind::o_proj:
    case parameter_kind::o_bias:
    case parameter_kind::mlp_down:
      return module_style::rowwise;
    case parameter_kind::experts_gate_up:
      return module_style::packed_colwise;
    case parameter_kind::experts_down:
      return module_style::grouped_rowwise;
    default:
      return module_style::replicated;
  }
}

// ---- overrides

/// Some modules, one bit for each kind of parameter they hold, and one for self_attn as a whole.
using module_set = std::uint32_t;
constexpr module_set bit_of(parameter_kind k) { return module_set{1} << static_cast<unsigned>(k); }
inline constexpr module_set self_attn_bit = module_set{1} << 31;
static_assert(num_parameter_kinds < 31);

/// Another style for some modules: in one layer, or wherever they are.
struct module_override {
  static constexpr int every_layer = -1;
  module_set modules = 0;
  int layer = every_layer;
  module_style style{};

  constexpr bool names(parameter_kind k, num in_layer) const { return names(bit_of(k), in_layer); }
  constexpr bool names(module_set some, num in_layer) const {
    return (modules & some) != 0 && (layer == every_layer || layer == in_layer);
  }
  friend constexpr bool operator==(const module_override&, const module_override&) = default;
};
/// In order: of several for one module, the last one counts. A full list is one that may have lost some.
using module_overrides = fixed_vector<module_override, 25>;

/// Style of the modules of `layer` that hold parameters of that kind.
constexpr module_style style_of(const module_overrides& overrides, parameter_kind kind, num layer) {
  module_style style = default_style(kind);
  for (const module_override& o : overrides)
    if (o.names(kind, layer)) style = o.style;
  return style;
}
/// How attention of `layer` cuts context.
constexpr module_style context_style_of(const module_overrides& overrides, num layer) {
  module_style style = module_style::planned;
  for (const module_override& o : overrides)
    if (o.names(self_attn_bit, layer)) style = o.style;
  return style;
}

namespace detail {

/// The modules that a plan's text names as one, outer ones first. `#` stands for a layer.
struct module_group {
  text_view pattern;
  module_set modules;
};
constexpr module_set bits_of(std::initializer_list<parameter_kind> kinds) {
  module_set bits = 0;
  for (parameter_kind k : kinds) bits |= bit_of(k);
  return bits;
}
inline constexpr module_set q_bits = bits_of({parameter_kind::q_proj, parameter_kind::q_bias}),
                            k_bits = bits_of({parameter_kind::k_proj, parameter_kind::k_bias}),
                            v_bits = bits_of({parameter_kind::v_proj, parameter_kind::v_bias}),
                            o_bits = bits_of({parameter_kind::o_proj, parameter_kind::o_bias}),
                            attention_bits = q_bits | k_bits | v_bits | o_bits,
                            mlp_bits =
                                bits_of({parameter_kind::mlp_gate, parameter_kind::mlp_up, parameter_kind::mlp_down}),
                            expert_bits = bits_of({parameter_kind::experts_gate_up, parameter_kind::experts_down});
inline constexpr module_group module_groups[] = {
    {"model.layers.#", attention_bits | mlp_bits | expert_bits},
    {"model.layers.#.self_attn", attention_bits},
    {"model.layers.#.mlp", mlp_bits | expert_bits},
    {"model.layers.#.mlp.experts", expert_bits},
    {"model.embed_tokens", bit_of(parameter_kind::embed_tokens)},
    {"model.layers.#.self_attn.q_proj", q_bits},
    {"model.layers.#.self_attn.k_proj", k_bits},
    {"model.layers.#.self_attn.v_proj", v_bits},
    {"model.layers.#.self_attn.o_proj", o_bits},
    {"model.layers.#.mlp.gate_proj", bit_of(parameter_kind::mlp_gate)},
    {"model.layers.#.mlp.up_proj", bit_of(parameter_kind::mlp_up)},
    {"model.layers.#.mlp.down_proj", bit_of(parameter_kind::mlp_down)},
    {"model.layers.#.mlp.experts.gate_up_proj", bit_of(parameter_kind::experts_gate_up)},
    {"model.layers.#.mlp.experts.down_proj", bit_of(parameter_kind::experts_down)},
    {"lm_head", bit_of(parameter_kind::lm_head)},
    {"model.layers.#.self_attn", self_attn_bit},
};

/// What a pattern stands for. A pattern may leave out the leading `model.`, and one that ends early stands for all
/// modules below: `layers.*.mlp` is every module of it.
struct expanded_pattern {
  bool known = false;      ///< it names some module of the families
  module_set modules = 0;  ///< of those, what can be cut; norms and routers cannot
  int layer = module_override::every_layer;
};

/// Does the pattern stand for the module `name` or one around it? Sets `layer` where it names one.
constexpr bool covers(text_view pattern, text_view name, int& layer) {
  const auto first = [](text_view t) { return t.substr(0, t.find('.')); };
  if (first(name) == "model" && first(pattern) != "model" && first(pattern) != "*") name.remove_prefix(6);
  int number = module_override::every_layer;
  while (true) {
    const text_view p = first(pattern), n = first(name);
    if (n == "#" && p != "*") {
      number = 0;
      if (p.empty() || p.size() > 4) return false;
      for (char c : p) {
        if (c < '0' || c > '9') return false;
        number = number * 10 + (c - '0');
      }
    } else if (p != "*" && p != n) {
      return false;
    }
    if (p.size() == pattern.size()) break;
    if (n.size() == name.size()) return false;
    pattern.remove_prefix(p.size() + 1);
    name.remove_prefix(n.size() + 1);
  }
  layer = number;
  return true;
}

constexpr expanded_pattern expand(text_view pattern) {
  expanded_pattern out;
  for (const module_group& g : module_groups)
    if (covers(pattern, g.pattern, out.layer)) out.known = true, out.modules |= g.modules;
  int ignored = 0;
  for (text_view name : {text_view("model.norm"), text_view("model.layers.#.input_layernorm"),
                         text_view("model.layers.#.post_attention_layernorm"), text_view("model.layers.#.mlp.gate"),
                         text_view("model.layers.#.self_attn.q_norm"), text_view("model.layers.#.self_attn.k_norm")})
    out.known = out.known || covers(pattern, name, ignored);
  return out;
}

/// The kinds of which a module set is made.
template <class F>
constexpr void for_each_kind(module_set modules, F&& f) {
  for (std::size_t k = 0; k < num_parameter_kinds; ++k)
    if ((modules >> k & 1) != 0) f(static_cast<parameter_kind>(k));
}

/// The modules of the pattern that the style is for; 0 where it fits none of them or not all.
constexpr module_set fitting(const expanded_pattern& pattern, module_style style) {
  if (is_of_context(style)) return pattern.modules & self_attn_bit;
  const module_set weights = pattern.modules & ~self_attn_bit;
  if (style == module_style::replicated) return weights;
  bool fits = true;
  for_each_kind(weights, [&](parameter_kind k) { fits = fits && default_style(k) == style; });
  return fits ? weights : 0;
}

/// Splits an override into those that one pattern each can say, and appends them.
constexpr void append(module_overrides& to, module_override o) {
  for (const module_group& g : module_groups)
    if ((o.modules & g.modules) == g.modules) {
      to.push_back({g.modules, o.layer, o.style});
      o.modules &= ~g.modules;
    }
}

}  // namespace detail

enum class override_problem : unsigned char { none, unknown_pattern, unknown_style, style_does_not_fit };

/// Merges `pattern`=`style` onto the overrides. A replicated norm is one already, so naming it changes nothing.
constexpr override_problem merge(module_overrides& overrides, text_view pattern, module_style style) {
  const detail::expanded_pattern expanded = detail::expand(pattern);
  if (!expanded.known) return override_problem::unknown_pattern;
  const module_set modules = detail::fitting(expanded, style);
  if (modules == 0 && (style != module_style::replicated || expanded.modules != 0))
    return override_problem::style_does_not_fit;
  detail::append(overrides, {modules, expanded.layer, style});
  return override_problem::none;
}
constexpr override_problem merge(module_overrides& overrides, text_view pattern, text_view style) {
  for (module_style s : module_styles)
    if (name_of(s) == style) return merge(overrides, pattern, s);
  return detail::expand(pattern).known ? override_problem::unknown_style : override_problem::unknown_pattern;
}

/// The pattern of one of `overrides`, for example `model.layers.3.self_attn`.
constexpr fixed_text<96> pattern_of(const module_override& o) {
  fixed_text<96> out;
  for (const detail::module_group& g : detail::module_groups)
    if (g.modules == o.modules && out.size() == 0)
      for (char c : g.pattern) {
        if (c != '#')
          out.push_back(c);
        else if (o.layer == module_override::every_layer)
          out.add("*");
        else
          out.add(num{o.layer});
      }
  return out;
}

}  // namespace shardplan
#endif  // SHARDPLAN_MODULE_PLAN_HPP

// ---- shardplan/plan.hpp ----
// SPDX-License-Identifier: Apache-2.0
// How a model is cut: the value face of a plan, and every number that follows from it alone.
#ifndef SHARDPLAN_PLAN_HPP
#define SHARDPLAN_PLAN_HPP

namespace shardplan {

/// Layers of each pipeline stage, in order of depth; empty means an even split.
using stage_layer_counts = fixed_vector<num, 128>;

struct plan_spec {
  num pp = 1;            ///< pipeline stages' ranks
  num dp_replicate = 1;  ///< whole copies of everything, each on its own rows
  num fsdp = 1;          ///< data-parallel ranks that shard parameters
  num cp = 1;            ///< context parallel: tokens of a row
  num tp = 1;            ///< tensor parallel: widths and heads
  num ep = 1;            ///< expert parallel, of the same ranks: adds none
  num etp = 1;           ///< tensor parallel inside an expert

  schedule_kind schedule = schedule_kind::one_f_one_b;
  num virtual_stages = 1;  ///< stages per pipeline rank; above 1 iff interleaved
  stage_layer_counts stages{};
  zero_stage zero = zero_stage::zero3;
  cp_method method = cp_method::ulysses;
  num method_ulysses = 1, method_ring = 1;  ///< U and R as written, for cp_method::ulysses_ring alone
  layout_kind layout = layout_kind::contiguous;
  bool sequence_parallel = false;
  dispatch_kind dispatch = dispatch_kind::dispatch;
  bool kv_replicate = false;   ///< more ranks than key/value heads hold copies of them
  bool vocab_pad = false;      ///< the last tp rank may hold fewer vocabulary rows
  bool expert_pad = false;     ///< the last ep rank may hold fewer experts
  module_overrides modules{};  ///< other styles for some modules than the tables of module_plan.hpp say

  friend constexpr bool operator==(const plan_spec&, const plan_spec&) = default;
};

// What follows from degrees. These presume that every degree is at least 1 and that their product fits (a rule).

/// Ranks of the world; -1 when a degree is negative or the product does not fit.
constexpr num world_size(const plan_spec& p) {
  num world = 1;
  for (num degree : {p.pp, p.dp_replicate, p.fsdp, p.cp, p.tp}) {
    world = checked_product(world, degree);
    if (world < 0) return -1;
  }
  return world;
}

/// U and R with U * R == cp for every method: U ranks trade tokens for heads, R ranks trade keys and values.
constexpr num ulysses_degree(const plan_spec& p, cp_method method) {
  return method == cp_method::ulysses ? p.cp : method == cp_method::ulysses_ring ? p.method_ulysses : 1;
}
constexpr num ring_degree(const plan_spec& p, cp_method method) {
  return method == cp_method::ulysses ? 1 : method == cp_method::ulysses_ring ? p.method_ring : p.cp;
}
constexpr num ulysses_degree(const plan_spec& p) { return ulysses_degree(p, p.method); }
constexpr num ring_degree(const plan_spec& p) { return ring_degree(p, p.method); }
/// Style of the modules of `layer` that hold parameters of that kind, and whether they are cut at all.
constexpr module_style style_of(const plan_spec& p, parameter_kind kind, num layer = parameter::no_layer) {
  return style_of(p.modules, kind, layer);
}
constexpr bool is_cut(const plan_spec& p, parameter_kind kind, num layer = parameter::no_layer) {
  return style_of(p, kind, layer) != module_style::replicated;
}
/// Ranks over which tensor parallelism cuts those modules.
constexpr num tensor_degree(const plan_spec& p, parameter_kind kind, num layer = parameter::no_layer) {
  return is_cut(p, kind, layer) ? p.tp : 1;
}

/// The context method of the attention of `layer`.
constexpr cp_method method_in_layer(const plan_spec& p, num layer) {
  switch (context_style_of(p.modules, layer)) {
    case module_style::ulysses:
      return cp_method::ulysses;
    case module_style::ring:
      return cp_method::ring;
    case module_style::all_gather:
      return cp_method::all_gather;
    default:
      return p.method;
  }
}

/// The plan as one layer sees it: the context method of its attention, and, where its experts are whole on every rank,
/// no expert parallelism. Axes that both kinds of layers share are as they were.
constexpr plan_spec plan_in_layer(const plan_spec& p, num layer) {
  plan_spec in = p;
  in.method = method_in_layer(p, layer);
  if (!is_cut(p, parameter_kind::experts_gate_up, layer)) {
    in.ep = in.etp = 1;
    in.dispatch = dispatch_kind::dispatch;  // every row stays where it is
  }
  return in;
}

/// Ranks over which the tokens of one context-parallel rank are cut once more.
constexpr num sequence_parallel_degree(const plan_spec& p) { return p.sequence_parallel ? p.tp : 1; }
/// Expert view: efsdp * ep * etp == fsdp * cp * tp.
constexpr num efsdp_degree(const plan_spec& p) { return p.fsdp * p.cp * p.tp / (p.ep * p.etp); }
/// Distinct batches; ranks that differ only in cp or tp (or pp) read the same one.
constexpr num num_data_shards(const plan_spec& p) { return p.dp_replicate * p.fsdp; }
/// What a framework that averages gradients divides by: cp ranks count, whatever the parameter's class.
constexpr num gradient_divisor(const plan_spec& p) { return p.dp_replicate * p.fsdp * p.cp; }
/// Ranks holding a copy of the same key/value head within a tp group, and the groups of distinct heads.
constexpr num kv_copies(const plan_spec& p, const model_spec& m) {
  return p.tp > m.num_key_value_heads && p.tp % m.num_key_value_heads == 0 ? p.tp / m.num_key_value_heads : 1;
}
constexpr num num_stages(const plan_spec& p) { return p.pp * p.virtual_stages; }
constexpr num micro_batches(const plan_spec& p, const batch_spec& b) {
  return b.micro_batches == 0 ? p.pp : b.micro_batches;
}
constexpr padding_multiple needed_multiple(const plan_spec& p) {
  return needed_multiple(p.layout, p.cp, sequence_parallel_degree(p));
}
/// Length of a row of the batch once padded for the plan.
constexpr num padded_length(const plan_spec& p, const batch_spec& b) {
  if (!b.documents.empty()) return padded_length(b.documents, needed_multiple(p));
  return padded_length(fixed_vector<num, 1>{{b.length}, 1}, needed_multiple(p));
}
/// Experts per ep rank, padding slots included.
constexpr num expert_slots(const plan_spec& p, const model_spec& m) { return ceil_div(m.num_experts, p.ep); }

}  // namespace shardplan
#endif  // SHARDPLAN_PLAN_HPP

// ---- shardplan/mesh.hpp ----
// SPDX-License-Identifier: Apache-2.0
// A mesh factorises the ranks of the world, row-major, last axis fastest. Few free functions make one view from
// another; all views of one world share its root.
#ifndef SHARDPLAN_MESH_HPP
#define SHARDPLAN_MESH_HPP

namespace shardplan {

struct mesh_axis {
  axis name{};
  num degree = 1;
  friend constexpr bool operator==(const mesh_axis&, const mesh_axis&) = default;
};

struct mesh {
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);
  fixed_vector<mesh_axis, num_axes> axes{};

  constexpr num size() const {
    num n = 1;
    for (const mesh_axis& a : axes) n *= a.degree;
    return n;
  }
  /// Index of an axis, npos when the mesh has not got it.
  constexpr std::size_t find(axis a) const {
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (axes[i].name == a) return i;
    return npos;
  }
  constexpr num degree(axis a) const {
    const std::size_t i = find(a);
    return i < axes.size() ? axes[i].degree : 1;
  }
  /// Distance in ranks between neighbours on an axis.
  constexpr num stride(axis a) const {
    num s = 1;
    for (std::size_t i = axes.size(); i-- > 0 && axes[i].name != a;) s *= axes[i].degree;
    return s;
  }
  friend constexpr bool operator==(const mesh&, const mesh&) = default;
};

/// Position of `rank` on an axis of `degree` places whose neighbours are `stride` ranks apart.
constexpr num place_on(num degree, num stride, num rank) { return rank / stride % degree; }

/// Position of `rank` on one axis; 0 on an axis the mesh has not got.
constexpr num coordinate(const mesh& m, num rank, axis a) {
  return m.find(a) == mesh::npos ? 0 : place_on(m.degree(a), m.stride(a), rank);
}

/// Merges the neighbouring axes `first` and `second` into one.
/// post: coordinate(result, r, merged) == coordinate(m, r, first) * m.degree(second) + coordinate(m, r, second)
constexpr mesh flatten(const mesh& m, axis first, axis second, axis merged) {
  mesh out;
  for (std::size_t i = 0; i < m.axes.size(); ++i) {
    if (m.axes[i].name == first && i + 1 < m.axes.size() && m.axes[i + 1].name == second) {
      out.axes.push_back({merged, m.axes[i].degree * m.axes[i + 1].degree});
      ++i;
    } else {
      out.axes.push_back(m.axes[i]);
    }
  }
  return out;
}

/// Splits an axis into `outer` (slower) and `inner` (faster, of degree `inner_degree`).
/// post: flatten(result, outer, inner, whole) == m
constexpr mesh unflatten(const mesh& m, axis whole, axis outer, axis inner, num inner_degree) {
  mesh out;
  for (const mesh_axis& a : m.axes) {
    if (a.name == whole) {
      out.axes.push_back({outer, a.degree / inner_degree});
      out.axes.push_back({inner, inner_degree});
    } else {
      out.axes.push_back(a);
    }
  }
  return out;
}

/// The ranks that differ from one rank only on some axes: member i of the group, by mixed radix over those axes.
struct rank_group {
  struct step {
    num degree = 1, stride = 1;
    friend constexpr bool operator==(const step&, const step&) = default;
  };
  num first = 0;  ///< rank of member 0
  num index = 0;  ///< which member the asking rank is
  fixed_vector<step, num_axes> steps{};

  constexpr num size() const {
    num n = 1;
    for (const step& s : steps) n *= s.degree;
    return n;
  }
  /// post: member(index) is the asking rank
  constexpr num member(num i) const {
    num rank = first;
    for (std::size_t k = steps.size(); k-- > 0; i /= steps[k].degree) rank += i % steps[k].degree * steps[k].stride;
    return rank;
  }
  /// Adds an axis that varies faster than those the group has: the ranks that differ from `rank` on it too are members.
  constexpr void widen(num rank, step by) {
    const num at = place_on(by.degree, by.stride, rank);
    first -= at * by.stride;
    index = index * by.degree + at;
    steps.push_back(by);
  }
  friend constexpr bool operator==(const rank_group&, const rank_group&) = default;
};

/// The group of `rank` over `over`, members in row-major order of the mesh. Axes the mesh has not got have degree 1.
constexpr rank_group select(const mesh& m, num rank, axis_set over) {
  rank_group g;
  g.first = rank;
  for (const mesh_axis& a : m.axes)
    if (over.has(a.name)) g.widen(rank, {a.degree, m.stride(a.name)});
  return g;
}

// ---- the views of a plan

/// (pp, dp_replicate, fsdp_cp, tp)
constexpr mesh root_mesh(const plan_spec& p) {
  mesh m;
  m.axes.push_back({axis::pp, p.pp});
  m.axes.push_back({axis::dp_replicate, p.dp_replicate});
  m.axes.push_back({axis::fsdp_cp, p.fsdp * p.cp});
  m.axes.push_back({axis::tp, p.tp});
  return m;
}

/// (pp, dp_replicate, fsdp, cp, tp)
constexpr mesh dense_mesh(const plan_spec& p) {
  return unflatten(root_mesh(p), axis::fsdp_cp, axis::fsdp, axis::cp, p.cp);
}

/// (pp, dp_replicate, efsdp, ep, etp), of the same ranks
constexpr mesh expert_mesh(const plan_spec& p) {
  const mesh inner = flatten(root_mesh(p), axis::fsdp_cp, axis::tp, axis::efsdp);
  return unflatten(unflatten(inner, axis::efsdp, axis::efsdp, axis::ep, p.ep * p.etp), axis::ep, axis::ep, axis::etp,
                   p.etp);
}

/// dense_mesh with cp = cp_ring x cp_ulysses and tp = tp_heads x tp_copies; what attention is cut over
constexpr mesh attention_mesh(const plan_spec& p, const model_spec& model) {
  const mesh by_method = unflatten(dense_mesh(p), axis::cp, axis::cp_ring, axis::cp_ulysses, ulysses_degree(p));
  return unflatten(by_method, axis::tp, axis::tp_heads, axis::tp_copies, kv_copies(p, model));
}

/// The group of `rank` over axes of any one view of the plan.
/// post: the group over all axes of a view has world_size members
constexpr rank_group group_of(const plan_spec& p, const model_spec& model, num rank, axis_set over) {
  if (over.has(axis::efsdp) || over.has(axis::ep) || over.has(axis::etp)) return select(expert_mesh(p), rank, over);
  if (over.has(axis::fsdp_cp)) return select(root_mesh(p), rank, over);
  if (over.has(axis::cp_ring) || over.has(axis::cp_ulysses) || over.has(axis::tp_heads) || over.has(axis::tp_copies))
    return select(attention_mesh(p, model), rank, over);
  return select(dense_mesh(p), rank, over);
}

/// Data index: which of the num_data_shards batches `rank` reads. Equal for all ranks that differ in pp, cp, tp alone.
constexpr num data_index(const plan_spec& p, num rank) {
  const mesh m = dense_mesh(p);
  return coordinate(m, rank, axis::dp_replicate) * p.fsdp + coordinate(m, rank, axis::fsdp);
}

}  // namespace shardplan
#endif  // SHARDPLAN_MESH_HPP

// ---- shardplan/pipeline.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Which layers a pipeline stage holds, which rank holds a stage, and in which order a rank runs its stages.
#ifndef SHARDPLAN_PIPELINE_HPP
#define SHARDPLAN_PIPELINE_HPP

namespace shardplan {

/// Layers [begin, end) of one stage.
struct layer_range {
  num begin = 0, end = 0;
  constexpr num size() const { return end - begin; }
  constexpr bool has(num layer) const { return layer >= begin && layer < end; }
  friend constexpr bool operator==(const layer_range&, const layer_range&) = default;
};

/// The layers of stage `stage` of num_stages(p): as listed, else an even share.
/// post: the stages are disjoint, in order, and cover every layer
constexpr layer_range stage_layers(const model_spec& m, const plan_spec& p, num stage) {
  if (p.stages.empty()) {
    const num share = m.num_hidden_layers / num_stages(p);
    return {stage * share, (stage + 1) * share};
  }
  num begin = 0;
  for (num s = 0; s < stage; ++s) begin += p.stages[static_cast<std::size_t>(s)];
  return {begin, begin + p.stages[static_cast<std::size_t>(stage)]};
}

/// Coordinate on axis pp of the rank that holds a stage: stages go round the ranks.
constexpr num stage_owner(const plan_spec& p, num stage) { return stage % p.pp; }

/// Does `stage` hold the parameter? A tied embedding stands on the first stage and, as the head, on the last.
constexpr bool stage_holds(const model_spec& m, const plan_spec& p, num stage, const parameter& q) {
  const bool first = stage == 0, last = stage == num_stages(p) - 1;
  switch (q.kind) {
    case parameter_kind::embed_tokens:
      return first || (last && m.tie_word_embeddings);
    case parameter_kind::final_norm:
    case parameter_kind::lm_head:
      return last;
    default:
      return stage_layers(m, p, stage).has(q.layer);
  }
}

/// Does `rank` hold (a part of) the parameter on any of its stages?
constexpr bool rank_holds(const model_spec& m, const plan_spec& p, num rank, const parameter& q) {
  const num at = coordinate(dense_mesh(p), rank, axis::pp);
  for (num stage = at; stage < num_stages(p); stage += p.pp)
    if (stage_holds(m, p, stage, q)) return true;
  return false;
}

// ---- the timeline

enum class step_kind : unsigned char { forward, backward };

/// One turn of a rank: the forward or backward of one micro-batch through one of its stages.
struct pipeline_step {
  step_kind kind = step_kind::forward;
  num stage = 0, micro_batch = 0;
  friend constexpr bool operator==(const pipeline_step&, const pipeline_step&) = default;
};

/// Forwards that the rank at pp coordinate `at` runs before its first backward. 1f1b: as many as stages follow;
/// interleaved: Narayanan et al., arXiv 2104.04473, section 2.2; gpipe: all.
constexpr num num_warmup_forwards(const plan_spec& p, num micro_batches, num at) {
  const num all = micro_batches * p.virtual_stages, after = p.pp - at - 1;
  switch (p.schedule) {
    case schedule_kind::gpipe:
      return all;
    case schedule_kind::one_f_one_b:
      return after < all ? after : all;
    case schedule_kind::interleaved:
      break;
  }
  const num warmup = 2 * after + (p.virtual_stages - 1) * p.pp;
  return warmup < all ? warmup : all;
}

/// The i-th forward (or backward) of the rank at pp coordinate `at`: interleaved stages take turns in rounds of pp
/// micro-batches, first stage first in forwards and last stage first in backwards.
constexpr pipeline_step nth_step(const plan_spec& p, step_kind kind, num i, num at) {
  const num round = p.pp * p.virtual_stages;
  if (p.virtual_stages == 1) return {kind, at, i};
  const num turn = i % round / p.pp;
  const num chunk = kind == step_kind::forward ? turn : p.virtual_stages - 1 - turn;
  return {kind, chunk * p.pp + at, i / round * p.pp + i % p.pp};
}

/// Calls `f(pipeline_step)` for each forward and backward of the rank at pp coordinate `at`, in the order it runs them.
/// post: every (stage of the rank, micro-batch) has one forward and, later, one backward
template <class F>
constexpr void for_each_step(const plan_spec& p, num micro_batches, num at, F&& f) {
  const num all = micro_batches * p.virtual_stages, warmup = num_warmup_forwards(p, micro_batches, at);
  for (num i = 0; i < warmup; ++i) f(nth_step(p, step_kind::forward, i, at));
  for (num i = 0; i < all; ++i) {
    if (warmup + i < all) f(nth_step(p, step_kind::forward, warmup + i, at));
    f(nth_step(p, step_kind::backward, i, at));
  }
}

/// The same for an evaluation, which has forwards alone.
template <class F>
constexpr void for_each_forward(const plan_spec& p, num micro_batches, num at, F&& f) {
  for (num i = 0; i < micro_batches * p.virtual_stages; ++i) f(nth_step(p, step_kind::forward, i, at));
}

}  // namespace shardplan
#endif  // SHARDPLAN_PIPELINE_HPP

// ---- shardplan/ownership.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Which elements of a parameter a rank works with, and which of them it keeps. Every cut of a parameter, in the
// checkpoint reader, the executor, the memory account and the messages, comes from here.
#ifndef SHARDPLAN_OWNERSHIP_HPP
#define SHARDPLAN_OWNERSHIP_HPP

namespace shardplan {

/// The i-th of `count` parts of `n` indices when each holds `ceil(n / count)`: the last may hold fewer, or none.
constexpr dim_range chunk(num n, num count, num i) {
  const num size = ceil_div(n, count);
  const num begin = i * size < n ? i * size : n;
  return {begin, begin + size < n ? begin + size : n};
}

/// The part of `p` that `rank` computes with, that is after gathering its shards: what tp, ep and etp leave of it.
/// Over the ranks of a tp group (dense) or an ep x etp group (experts) the parts cover every element; equally often,
/// which is once but for replicated modules and copied key/value heads. The pipeline is not looked at (rank_holds).
constexpr region part_in_use(const model_spec& m, const plan_spec& plan, const parameter& p, num rank) {
  region part = p.whole();
  const auto dim = [&](std::size_t d) -> dim_part& { return part.dims[d]; };
  const num tp = coordinate(dense_mesh(plan), rank, axis::tp);
  const num ep = coordinate(expert_mesh(plan), rank, axis::ep), etp = coordinate(expert_mesh(plan), rank, axis::etp);
  const auto experts_here = [&] {
    const dim_range r = chunk(m.num_experts, plan.ep, ep);
    dim(0) = {r.begin, r.end};
  };
  switch (style_of(plan, p.kind, p.layer)) {
    default:  // replicated: whole
      break;
    case module_style::vocabulary: {
      const dim_range r = chunk(m.vocab_size, plan.tp, tp);
      dim(0) = {r.begin, r.end};
      break;
    }
    case module_style::colwise: {
      const num copies = is_key_value(p.kind) ? kv_copies(plan, m) : 1;
      const num share = p.shape[0] / (plan.tp / copies);
      dim(0) = {tp / copies * share, (tp / copies + 1) * share};
      break;
    }
    case module_style::rowwise:
      if (p.shape.size() > 1) {  // the bias stays whole
        const num share = p.shape[1] / plan.tp;
        dim(1) = {tp * share, (tp + 1) * share};
      }
      break;
    case module_style::packed_colwise: {
      experts_here();
      const num width = p.shape[1] / 2, share = width / plan.etp, begin = etp * share;
      // One range when nothing is cut, so that a part has one spelling.
      if (plan.etp > 1) dim(1) = {{begin, begin + share}, {width + begin, width + begin + share}};
      break;
    }
    case module_style::grouped_rowwise: {
      experts_here();
      const num share = p.shape[2] / plan.etp;
      dim(2) = {etp * share, (etp + 1) * share};
      break;
    }
  }
  return part;
}

/// The axis over which state of that class is sharded.
constexpr axis shard_axis(parameter_class c) { return c == parameter_class::expert ? axis::efsdp : axis::fsdp_cp; }

/// Shard `i` of `count` of a part: consecutive indices of dim 0, uneven or empty where they do not divide.
/// post: over all i the shards are disjoint, in order, and cover the part
constexpr region shard(const region& part, num count, num i) {
  region r = part;
  const dim_range at = chunk(part.dims[0].size(), count, i);
  r.dims[0] = part.dims[0].slice(at.begin, at.end);
  return r;
}

enum class state_kind : unsigned char { parameter, gradient, optimizer };

/// Is that state sharded over the shard axis, or kept whole (of the part in use) by every rank?
constexpr bool is_sharded(zero_stage z, state_kind s) {
  switch (s) {
    case state_kind::parameter:
      return z == zero_stage::zero3;
    case state_kind::gradient:
      return z == zero_stage::zero3 || z == zero_stage::zero2;
    case state_kind::optimizer:
      break;
  }
  return true;
}

/// The elements of `p` whose state `rank` keeps between steps; empty where its stages do not hold the parameter.
/// post: over all ranks every element is kept, each equally often: dp_replicate times, and once for each tp copy, for
/// each shard that keeps it whole, and for each stage of a tied embedding
constexpr region owned(const model_spec& m, const plan_spec& plan, const parameter& p, state_kind state, num rank) {
  if (!rank_holds(m, plan, rank, p)) return {};
  const region part = part_in_use(m, plan, p, rank);
  if (!is_sharded(plan.zero, state)) return part;
  const rank_group shards = group_of(plan, m, rank, shard_axis(class_of(p.kind)));
  return shard(part, shards.size(), shards.index);
}

/// Of the ranks that keep equal copies of the same elements of `p`, is `rank` the first? A sum over these counts every
/// logical element once, whatever is replicated: replicas, tp ranks of a replicated module, copied key/value heads, and
/// the two ends of a tied embedding.
constexpr bool is_first_copy(const model_spec& m, const plan_spec& plan, const parameter& p, num rank) {
  const mesh dense = dense_mesh(plan);
  if (coordinate(dense, rank, axis::dp_replicate) != 0) return false;
  if (p.kind == parameter_kind::embed_tokens && coordinate(dense, rank, axis::pp) != 0) return false;
  if (class_of(p.kind) == parameter_class::expert) {  // efsdp, ep and etp are all cuts
    const mesh experts = expert_mesh(plan);
    return is_cut(plan, p.kind, p.layer) ||
           (coordinate(experts, rank, axis::ep) == 0 && coordinate(experts, rank, axis::etp) == 0);
  }
  const region part = part_in_use(m, plan, p, rank);
  if (part == p.whole()) return coordinate(dense, rank, axis::tp) == 0;
  return !is_key_value(p.kind) || coordinate(dense, rank, axis::tp) % kv_copies(plan, m) == 0;
}

}  // namespace shardplan
#endif  // SHARDPLAN_OWNERSHIP_HPP

// ---- shardplan/run_shape.hpp ----
// SPDX-License-Identifier: Apache-2.0
// How much work one rank of a run has: its heads, its rows, and what the routing of tokens to experts adds to that.
#ifndef SHARDPLAN_RUN_SHAPE_HPP
#define SHARDPLAN_RUN_SHAPE_HPP

namespace shardplan {

/// What a run is, beside model and plan.
struct run_shape {
  num padded_length = 0;  ///< of a row
  num micro_rows = 0;     ///< rows of one micro-batch of one data shard
  num micro_batches = 1;
  num element_bytes = 4;   ///< of activations and parameters; counts and ids have 8, the loss 8
  bool training = false;   ///< with backward and gradients, of which the norm is computed once
  num steps = 0;           ///< optimizer steps, each with a training pass; 0: one pass and no step
  bool auxiliary = false;  ///< with the load-balancing loss of the routers
  bool embeds = false;     ///< the caller gives embeddings: nothing is looked up

  /// Of what sums are kept in, whatever the elements are: gradients of parameters, router weights, statistics of the
  /// auxiliary loss, and the log sums of tokens.
  constexpr num wide_bytes() const { return element_bytes < 4 ? 4 : element_bytes; }
};

/// Heads a rank gets when `ranks` of a Ulysses group trade tokens for `heads`: with fewer heads than ranks, one.
constexpr num num_traded_heads(num heads, num ranks) { return heads < ranks ? 1 : heads / ranks; }
/// The first of those that rank `u` gets: with fewer heads than ranks, the one that its queries read.
constexpr num first_traded_head(num heads, num ranks, num u) { return u * heads / ranks; }

/// Rows that one rank routes, of the n tokens its tp group has in common. Under all_reduce the ranks of one ep x etp
/// group, neighbours on tp, take the same rows and the groups divide them; otherwise tp ranks divide them. Where no
/// layer cuts experts, the rules do not ask that such groups fit tp.
constexpr dim_range routed_rows(const plan_spec& p, num n, num tp_index) {
  const num group = p.ep * p.etp;
  const num sharing = p.dispatch == dispatch_kind::all_reduce && p.tp % group == 0 ? group : 1;
  return chunk(n, p.tp / sharing, tp_index / sharing);
}

/// The routing of a run: how many of the (token, choice) pairs of rank `rank` in a micro-batch chose one of some
/// experts. Padding is not routed.
template <class R>
concept Routing = requires(const R& r, num moe_layer, num micro_batch, num rank, dim_range experts) {
  { r(moe_layer, micro_batch, rank, experts) } -> std::same_as<num>;
};

/// Rows that a rank routes in a micro-batch, padding included.
constexpr num rows_to_route(const plan_spec& p, const run_shape& shape, num rank) {
  const num n = local_length(p.layout, shape.padded_length, p.cp) * shape.micro_rows;
  return routed_rows(p, n, coordinate(dense_mesh(p), rank, axis::tp)).size();
}

/// A routing in which every expert is chosen equally often: the balanced value, rounded down.
struct balanced_routing {
  const model_spec& model;
  const plan_spec& plan;
  const run_shape& shape;
  constexpr num operator()(num, num, num rank, dim_range experts) const {
    return rows_to_route(plan, shape, rank) * model.num_experts_per_tok * experts.size() / model.num_experts;
  }
};

/// What dispatch sends at most, known before any routing. A row chooses k distinct ones of E experts, so of r rows
///   at most   r * min(k, e)             pairs choose among e of them, and
///   at least  r * max(0, k - (E - e)).
/// With it every line of the ledger is a bound that some routing reaches, though not one routing all. Where ep ranks
/// hold E / ep = s experts each and route r rows each, that is per layer and micro-batch
///   sent, what stays included    r * k                   (balanced: the same)
///   sent to other ranks          r * min(k, E - s)       (balanced: r * k * (ep - 1) / ep)
///   received, own included       ep * r * min(k, s)      (balanced: r * k)
/// rows of hidden_size values: ep times the balanced value when all choose the experts of one rank and k <= s.
struct bounding_routing {
  const model_spec& model;
  const plan_spec& plan;
  const run_shape& shape;
  constexpr num operator()(num, num, num rank, dim_range experts) const {
    const num k = model.num_experts_per_tok;
    return rows_to_route(plan, shape, rank) * (experts.size() < k ? experts.size() : k);
  }
  constexpr num least(num, num, num rank, dim_range experts) const {
    const num elsewhere = model.num_experts - experts.size(), k = model.num_experts_per_tok;
    return rows_to_route(plan, shape, rank) * (elsewhere < k ? k - elsewhere : 0);
  }
};

/// Rows that arrive at the experts of `rank` from its ep group, itself included; its etp group shares them afterwards.
template <Routing R>
constexpr num rows_received(const model_spec& m, const plan_spec& p, const R& routing, num moe_layer, num micro_batch,
                            num rank) {
  const rank_group ep = group_of(p, m, rank, axis::ep);
  num sum = 0;
  for (num i = 0; i < ep.size(); ++i)
    sum += routing(moe_layer, micro_batch, ep.member(i), chunk(m.num_experts, p.ep, ep.index));
  return sum;
}

}  // namespace shardplan
#endif  // SHARDPLAN_RUN_SHAPE_HPP

// ---- shardplan/layer_collectives.hpp ----
// SPDX-License-Identifier: Apache-2.0
// What one rank communicates inside a layer: attention across context-parallel ranks, experts across ranks, and the
// sums and gathers of tensor parallelism. collectives.hpp makes the whole program of it.
#ifndef SHARDPLAN_LAYER_COLLECTIVES_HPP
#define SHARDPLAN_LAYER_COLLECTIVES_HPP

namespace shardplan::detail {

/// Reports the collectives of a layer to a sink, labelled as the executor labels them.
template <Routing R, class Sink>
class layer_communication {
 public:
  constexpr layer_communication(const model_spec& m, const plan_spec& p, const run_shape& shape, num rank,
                                const R& routing, Sink& sink)
      : m_(m), p_(p), shape_(shape), rank_(rank), routing_(routing), sink_(sink) {
    n_ = local_length(p.layout, shape.padded_length, p.cp) * shape.micro_rows;
    split_ = p.sequence_parallel && p.tp > 1;
    stream_ = (split_ ? n_ / p.tp : n_) * m.hidden_size;
    whole_ = n_ * m.hidden_size;
  }
  layer_communication(const layer_communication&) = delete;  // it may point into itself

 protected:
  constexpr rank_group group(axis_set axes) const { return group_of(*in_, m_, rank_, axes); }
  constexpr void label(phase why, num layer) { why_ = why, layer_ = layer; }

  constexpr void bytes(operation what, axis_set axes, num handed, num kept = 0, bool root = false) {
    bytes_in(what, axes, group(axes).size(), handed, kept, root);
  }
  constexpr void bytes_in(operation what, axis_set axes, num size, num handed, num kept, bool root) {
    if (size < 2) return;
    const ledger_entry e{what, axes, size, handed, kept, root, why_, layer_};
    if constexpr (counts_repeats)
      sink_(e, times_);
    else
      sink_(e);
  }
  constexpr void values(operation what, axis_set axes, num handed, num kept = 0) {
    bytes(what, axes, handed * shape_.element_bytes, kept * shape_.element_bytes);
  }
  /// Values that are kept wide.
  constexpr void sums(operation what, axis_set axes, num handed, num kept = 0) {
    bytes(what, axes, handed * shape_.wide_bytes(), kept * shape_.wide_bytes());
  }
  /// An all_to_all of equal parts.
  constexpr void trade(axis_set axes, num part) {
    values(operation::all_to_all, axes, part * group(axes).size(), part);
  }

  constexpr void gather_tokens() {
    if (split_) values(operation::all_gather, axis::tp, stream_);
  }
  /// What follows, until leave(), is of that layer.
  constexpr void enter(num layer) {
    at_ = layer;
    if (p_.modules.empty()) return;
    changed_ = plan_in_layer(p_, layer);
    in_ = &changed_;
  }
  constexpr void leave() { in_ = &p_; }
  /// After modules that hold parameters of that kind: whole ones owe no sum.
  constexpr void sum_over_tp(parameter_kind kind, num layer = parameter::no_layer) {
    if (is_cut(p_, kind, layer)) sum_over_tp();
  }
  constexpr void sum_over_tp() {
    if (split_)
      values(operation::reduce_scatter, axis::tp, whole_, stream_);
    else
      values(operation::all_reduce, axis::tp, whole_);
  }

  // ---- attention: values of the queries, and of the keys (as many as the values)
  constexpr num ulysses() const { return ulysses_degree(*in_); }
  constexpr bool cut() const { return is_cut(p_, parameter_kind::q_proj, at_); }
  constexpr num heads() const { return cut() ? m_.num_attention_heads / p_.tp : m_.num_attention_heads; }
  constexpr num kv_heads() const {
    return cut() ? m_.num_key_value_heads * kv_copies(p_, m_) / p_.tp : m_.num_key_value_heads;
  }
  constexpr num traded(num of) const { return n_ * num_traded_heads(of, ulysses()) * m_.head_dim; }  // to one rank
  constexpr void trade_inputs() {
    if (n_ == 0 || ulysses() == 1) return;
    trade(axis::cp_ulysses, traded(heads()));
    trade(axis::cp_ulysses, traded(kv_heads()));
    trade(axis::cp_ulysses, traded(kv_heads()));
  }
  constexpr void trade_queries() {
    if (n_ > 0 && ulysses() > 1) trade(axis::cp_ulysses, traded(heads()));
  }
  /// Two blocks (keys and values, or their gradients) go to the next rank, two come from the one before.
  constexpr void pass_on(num hops) {
    if constexpr (counts_repeats) times_ = hops, hops = hops > 0 ? 1 : 0;
    for (num hop = 0; hop < hops; ++hop)
      for (operation what : {operation::send, operation::send, operation::receive, operation::receive})
        values(what, axis::cp_ring, ulysses() * traded(kv_heads()));
    times_ = 1;
  }
  constexpr void gather_keys() {
    for (int i = 0; i < 2; ++i) values(operation::all_gather, axis::cp_ring, ulysses() * traded(kv_heads()));
  }

  constexpr void attention_forward() {
    trade_inputs();
    if (n_ > 0 && in_->method == cp_method::all_gather) gather_keys();
    if (n_ > 0 && in_->method != cp_method::all_gather) pass_on(ring_degree(*in_) - 1);
    trade_queries();
  }
  constexpr void attention_backward() {
    trade_queries();
    const num ring = ring_degree(*in_), keys = ulysses() * traded(kv_heads());
    if (n_ > 0 && in_->method == cp_method::all_gather) {
      gather_keys();
      for (int i = 0; i < 2; ++i) values(operation::reduce_scatter, axis::cp_ring, ring * keys, keys);
    } else if (n_ > 0 && ring > 1) {
      pass_on(ring - 1 + ring);  // keys and values as in the forward, and after each their gradients, which come home
    }
    trade_inputs();
  }

  // ---- experts
  constexpr num tp_index(num rank) const { return coordinate(dense_mesh(p_), rank, axis::tp); }
  constexpr num my_rows() const { return routed_rows(*in_, n_, tp_index(rank_)).size(); }
  constexpr num moe_index(num layer) const {
    num index = 0;
    for (num before = 0; before < layer; ++before) index += is_moe_layer(m_, before) ? 1 : 0;
    return index;
  }
  /// Pairs that travel from rank `from` to the experts of ep rank `to` of its group.
  constexpr num pairs(num layer, num micro, num from, num to) const {
    return routing_(moe_index(layer), micro, from, chunk(m_.num_experts, in_->ep, to));
  }
  constexpr num arriving(num layer, num micro, num rank) const {
    return rows_received(m_, *in_, routing_, moe_index(layer), micro, rank);
  }
  /// Pairs of this rank that need not travel: the fewest, where the routing is a bound.
  constexpr num staying(num layer, num micro) const {
    const num at = group(axis::ep).index;
    if constexpr (requires { routing_.least(0, 0, 0, dim_range{}); })
      return routing_.least(moe_index(layer), micro, rank_, chunk(m_.num_experts, in_->ep, at));
    else
      return pairs(layer, micro, rank_, at);
  }
  constexpr num leaving(num layer, num micro) const {
    return routing_(moe_index(layer), micro, rank_, {0, m_.num_experts});
  }
  constexpr void to_experts(num layer, num micro) {
    const num H = m_.hidden_size;
    values(operation::all_to_all, axis::ep, leaving(layer, micro) * H, staying(layer, micro) * H);
    values(operation::all_gather, axis::etp, arriving(layer, micro, rank_) * H);
  }
  constexpr void from_experts(num layer, num micro) {
    const num H = m_.hidden_size, mine = arriving(layer, micro, rank_);
    const rank_group etp = group(axis::etp);
    num all = 0;
    for (num i = 0; i < etp.size(); ++i) all += arriving(layer, micro, etp.member(i));
    values(operation::reduce_scatter, axis::etp, all * H, mine * H);
    values(operation::all_to_all, axis::ep, mine * H, pairs(layer, micro, rank_, group(axis::ep).index) * H);
  }
  /// Rows gathered over the ep x etp group.
  constexpr num gathered_rows() const {
    const rank_group g = group(axis::ep | axis::etp);
    num all = 0;
    for (num i = 0; i < g.size(); ++i) all += routed_rows(*in_, n_, tp_index(g.member(i))).size();
    return all;
  }
  constexpr void all_rows() {
    if (!split_) values(operation::all_gather, axis::tp, my_rows() * m_.hidden_size);
  }

  constexpr void experts_forward(num layer, num micro) {
    const num H = m_.hidden_size, k = m_.num_experts_per_tok, r = my_rows();
    switch (in_->dispatch) {
      case dispatch_kind::all_reduce:
        gather_tokens();
        sum_over_tp();
        return;
      case dispatch_kind::dispatch: {
        const num counts = 8 * expert_slots(*in_, m_);
        bytes(operation::all_to_all, axis::ep, counts * in_->ep, counts);
        bytes(operation::all_gather, axis::etp, counts * in_->ep);
        to_experts(layer, micro);
        from_experts(layer, micro);
        break;
      }
      case dispatch_kind::all_gather: {
        const axis_set over = axis::ep | axis::etp;
        bytes(operation::all_gather, over, 8);
        values(operation::all_gather, over, r * H);
        bytes(operation::all_gather, over, r * k * 8);
        sums(operation::all_gather, over, r * k);
        values(operation::reduce_scatter, over, gathered_rows() * H, r * H);
        break;
      }
    }
    all_rows();
  }
  constexpr void experts_backward(num layer, num micro) {
    const num H = m_.hidden_size, k = m_.num_experts_per_tok, r = my_rows();
    switch (in_->dispatch) {
      case dispatch_kind::all_reduce:
        gather_tokens();
        sum_over_tp();
        return;
      case dispatch_kind::dispatch:
        to_experts(layer, micro);
        from_experts(layer, micro);
        break;
      case dispatch_kind::all_gather: {
        const axis_set over = axis::ep | axis::etp;
        values(operation::all_gather, over, r * H);
        sums(operation::reduce_scatter, over, gathered_rows() * k, r * k);
        values(operation::reduce_scatter, over, gathered_rows() * H, r * H);
        break;
      }
    }
    all_rows();
  }

  /// Does the sink take a number of times beside an entry? Then hops, which are alike, are told at once.
  static constexpr bool counts_repeats = requires(Sink & sink, const ledger_entry& e, num times) { sink(e, times); };

  const model_spec& m_;
  const plan_spec& p_;
  const run_shape& shape_;
  const plan_spec* in_ = &p_;  // as the layer at hand sees it
  plan_spec changed_{};
  num at_ = parameter::no_layer;
  num rank_;
  const R& routing_;
  Sink& sink_;
  num n_ = 0, stream_ = 0, whole_ = 0;  // tokens of this rank; values of the residual stream, and of all its tokens
  bool split_ = false;
  phase why_{};
  num layer_ = parameter::no_layer;
  num times_ = 1;
};

}  // namespace shardplan::detail
#endif  // SHARDPLAN_LAYER_COLLECTIVES_HPP

// ---- shardplan/reduction.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Over whom the gradient of a parameter is still a partial sum, and who must add it up. The loss is a sum over tokens
// divided by the global count of targets, so gradients are plain sums: nothing is averaged.
#ifndef SHARDPLAN_REDUCTION_HPP
#define SHARDPLAN_REDUCTION_HPP

namespace shardplan {

/// What happens to a gradient after the backward, in this order: sums over `tensor` (tp, its key/value copies, the ep
/// x etp group of experts that are whole on every rank, or nothing), reduce-scatter over `shard` (fsdp_cp or efsdp),
/// sum over dp_replicate, and for a tied embedding the sum of the first and the last stage. Axes of degree 1 are part
/// of it: they sum one value.
struct gradient_reduction {
  axis_set tensor{};
  axis shard = axis::fsdp_cp;
  bool both_ends = false;
  /// What a framework that averages over data must divide by: nothing here is divided.
  num divisor = 1;

  friend constexpr bool operator==(const gradient_reduction&, const gradient_reduction&) = default;
};

/// The reduction of one parameter. Found per class by searching for the only set of axes that gives the baseline's
/// gradient.
constexpr gradient_reduction reduction_of(const model_spec& m, const plan_spec& plan, const parameter& p) {
  gradient_reduction r;
  r.shard = shard_axis(class_of(p.kind));
  r.divisor = gradient_divisor(plan);
  switch (p.kind) {
    case parameter_kind::embed_tokens:
      r.both_ends = m.tie_word_embeddings && plan.pp > 1;
      break;
    case parameter_kind::k_proj:
    case parameter_kind::v_proj:
    case parameter_kind::k_bias:
    case parameter_kind::v_bias:
      // Ranks with the same head each saw its own queries; whole heads on every rank saw all of them.
      if (is_cut(plan, p.kind, p.layer)) r.tensor = axis::tp_copies;
      break;
    case parameter_kind::q_norm:
    case parameter_kind::k_norm:  // one weight for heads on different ranks
      if (is_cut(plan, parameter_kind::q_proj, p.layer)) r.tensor = axis::tp;
      break;
    case parameter_kind::router:  // rows were split before it
      r.tensor = axis::tp;
      break;
    case parameter_kind::experts_gate_up:
    case parameter_kind::experts_down:  // where every rank has all experts, each saw its own rows
      if (!is_cut(plan, p.kind, p.layer)) r.tensor = axis_set(axis::ep) | axis::etp;
      break;
    case parameter_kind::input_layernorm:
    case parameter_kind::post_attention_layernorm:
    case parameter_kind::final_norm:
    case parameter_kind::o_bias:  // each tp rank saw all tokens, or its own
      if (plan.sequence_parallel) r.tensor = axis::tp;
      break;
    default:
      break;
  }
  return r;
}

/// The first and the last pipeline rank of the group of `rank`: who sums a tied embedding.
constexpr rank_group both_ends_group(const plan_spec& plan, num rank) {
  const mesh m = dense_mesh(plan);
  const num at = coordinate(m, rank, axis::pp), stride = m.stride(axis::pp);
  const num last = stage_owner(plan, num_stages(plan) - 1);
  rank_group g;
  g.first = rank - at * stride;
  g.index = at == 0 ? 0 : 1;
  g.steps.push_back({last == 0 ? 1 : 2, last * stride});
  return g;
}

}  // namespace shardplan
#endif  // SHARDPLAN_REDUCTION_HPP

// ---- shardplan/collectives.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The program of communication of one rank, computed from the plan: every collective of a forward, a loss, a backward
// and the reduction of gradients, in order, with its bytes. An engine that carries the plan out records the same list.
#ifndef SHARDPLAN_COLLECTIVES_HPP
#define SHARDPLAN_COLLECTIVES_HPP

namespace shardplan {

namespace detail {

/// Walks what a rank does and reports each collective. The order and the labels are the executor's.
template <Routing R, class Sink>
class communication : layer_communication<R, Sink> {
 public:
  using base = layer_communication<R, Sink>;
  using base::base;

  constexpr void run() {
    for (num step = 0; step < (shape_.steps > 0 ? shape_.steps : 1); ++step) {
      pass();
      if (shape_.training && step == 0) {
        label(phase::gradients, parameter::no_layer);
        bytes(operation::all_reduce, world_axes, 8);  // the norm
      }
      if (shape_.steps > 0 && !is_sharded(p_.zero, state_kind::parameter)) share_shards();
    }
  }

 private:
  using base::attention_backward;
  using base::attention_forward;
  using base::bytes;
  using base::bytes_in;
  using base::enter;
  using base::experts_backward;
  using base::experts_forward;
  using base::gather_tokens;
  using base::group;
  using base::label;
  using base::leave;
  using base::m_;
  using base::n_;
  using base::p_;
  using base::rank_;
  using base::shape_;
  using base::stream_;
  using base::sum_over_tp;
  using base::sums;
  using base::values;

  constexpr void pass() {
    const num at = group(axis::pp).index;
    const bool each = is_sharded(p_.zero, state_kind::gradient);
    if (!shape_.training) {
      for_each_forward(p_, shape_.micro_batches, at, [&](const pipeline_step& s) { forward(s); });
    } else {
      for_each_step(p_, shape_.micro_batches, at, [&](const pipeline_step& s) {
        if (s.kind == step_kind::forward) return forward(s);
        backward(s);
        if (each) reduce(s.stage);
      });
      if (!each)
        for (num stage = at; stage < num_stages(p_); stage += p_.pp) reduce(stage);
      finish();
    }
    label(phase::loss, parameter::no_layer);
    const num last = stage_owner(p_, num_stages(p_) - 1);
    if (at == last) bytes(operation::all_reduce, axis_set(axis::dp_replicate) | axis::fsdp | axis::cp, 8);
    bytes(operation::broadcast, axis::pp, 16, 0, at == last);
  }

  constexpr bool is_last(num stage) const { return stage == num_stages(p_) - 1; }
  constexpr parameter_kind head() const { return head_weight(m_); }

  constexpr void use(const parameter& q) {
    if (!is_sharded(p_.zero, state_kind::parameter)) return;
    const axis over = shard_axis(class_of(q.kind));
    const rank_group shards = group(over);
    label(phase::parameters, q.layer);
    values(operation::all_gather, over, shard(part_in_use(m_, p_, q, rank_), shards.size(), shards.index).size());
  }
  constexpr void use_layer(num layer, phase why) {
    for_each_layer_parameter(m_, layer, [&](const parameter& q) { use(q); });
    label(why, layer);
  }
  constexpr void use_head(phase why) {
    use(make_parameter(m_, parameter_kind::final_norm));
    use(make_parameter(m_, head()));
    label(why, parameter::no_layer);
  }
  constexpr void use_embedding(phase why) {
    use(make_parameter(m_, parameter_kind::embed_tokens));
    label(why, parameter::no_layer);
  }

  /// Without experts in any layer there is no auxiliary loss, although the configuration may ask for it.
  constexpr bool auxiliary() const { return shape_.auxiliary && num_moe_layers(m_) > 0; }
  /// The statistics of the auxiliary loss: chosen and probability of each expert, and the rows counted.
  constexpr num statistics() const { return 2 * m_.num_experts + 1; }

  constexpr void neighbour(operation what, num other, phase why, num labelled_stage) {
    if (stage_owner(p_, other) == group(axis::pp).index) return;  // the same rank
    label(why, stage_layers(m_, p_, labelled_stage).begin);
    values(what, axis::pp, stream_);
    if (auxiliary()) sums(what, axis::pp, statistics());
  }

  constexpr void forward(const pipeline_step& s) {
    if (s.stage > 0) {
      neighbour(operation::receive, s.stage - 1, phase::forward, s.stage);
    } else if (!shape_.embeds) {
      use_embedding(phase::forward);
      sum_over_tp(parameter_kind::embed_tokens);
    }
    const layer_range layers = stage_layers(m_, p_, s.stage);
    for (num layer = layers.begin; layer < layers.end; ++layer) {
      use_layer(layer, phase::forward);
      enter(layer);
      gather_tokens();
      attention_forward();
      sum_over_tp(parameter_kind::o_proj, layer);
      if (is_moe_layer(m_, layer)) {
        experts_forward(layer, s.micro_batch);
      } else {
        gather_tokens();
        sum_over_tp(parameter_kind::mlp_down, layer);
      }
      leave();
    }
    if (auxiliary()) {
      label(phase::loss, parameter::no_layer);
      sums(operation::all_reduce, axis_set(axis::dp_replicate) | axis::fsdp | axis::cp | axis::tp, statistics());
    }
    if (!is_last(s.stage)) return neighbour(operation::send, s.stage + 1, phase::forward, s.stage + 1);
    use_head(phase::loss);
    gather_tokens();
    if (!is_cut(p_, head())) return;
    for (int i = 0; i < 3; ++i) sums(operation::all_reduce, axis::tp, n_);  // max, sum, target of each token
  }

  constexpr void backward(const pipeline_step& s) {
    if (is_last(s.stage)) {
      use_head(phase::backward);
      sum_over_tp(head());
    } else {
      neighbour(operation::receive, s.stage + 1, phase::backward, s.stage);
    }
    const layer_range layers = stage_layers(m_, p_, s.stage);
    for (num layer = layers.end; layer-- > layers.begin;) {
      use_layer(layer, phase::backward);
      enter(layer);
      if (is_moe_layer(m_, layer)) {
        experts_backward(layer, s.micro_batch);
      } else {
        gather_tokens();
        sum_over_tp(parameter_kind::mlp_gate, layer);
      }
      gather_tokens();
      attention_backward();
      sum_over_tp(parameter_kind::q_proj, layer);
      leave();
    }
    if (s.stage > 0) return neighbour(operation::send, s.stage - 1, phase::backward, s.stage - 1);
    if (shape_.embeds) return;
    use_embedding(phase::backward);
    gather_tokens();
  }

  // ---- gradients
  constexpr void reduce(num stage) {
    for_each_parameter(m_, [&](const parameter& q) {
      if (!stage_holds(m_, p_, stage, q)) return;
      const region part = part_in_use(m_, p_, q, rank_);
      const gradient_reduction how = reduction_of(m_, p_, q);
      label(phase::gradients, q.layer);
      if (!how.tensor.empty()) sums(operation::all_reduce, how.tensor, part.size());
      const rank_group shards = group(how.shard);
      sums(operation::reduce_scatter, how.shard, part.size(), shard(part, shards.size(), shards.index).size());
    });
  }
  constexpr void finish() {
    for_each_parameter(m_, [&](const parameter& q) {
      if (!rank_holds(m_, p_, rank_, q)) return;
      const num kept = owned(m_, p_, q, state_kind::optimizer, rank_).size();
      label(phase::gradients, q.layer);
      sums(operation::all_reduce, axis::dp_replicate, kept);
      if (reduction_of(m_, p_, q).both_ends)
        bytes_in(operation::all_reduce, axis::pp, both_ends_group(p_, rank_).size(), kept * shape_.wide_bytes(), 0,
                 false);
    });
  }

  constexpr void share_shards() {
    for_each_parameter(m_, [&](const parameter& q) {
      if (!rank_holds(m_, p_, rank_, q)) return;
      label(phase::parameters, q.layer);
      values(operation::all_gather, shard_axis(class_of(q.kind)),
             owned(m_, p_, q, state_kind::optimizer, rank_).size());
    });
  }
};

}  // namespace detail

/// Calls `sink(ledger_entry)` for each collective of `rank`, in the order it makes them; groups of one rank have none.
/// Exact, given the routing; everything but the rows of `dispatch` is independent of it. The plan must be legal. A sink
/// that takes (ledger_entry, times) is told once of the hops of a ring, which are alike.
template <Routing R, class Sink>
constexpr void for_each_collective(const model_spec& m, const plan_spec& p, const run_shape& shape, num rank,
                                   const R& routing, Sink&& sink) {
  detail::communication<R, Sink>(m, p, shape, rank, routing, sink).run();
}

}  // namespace shardplan
#endif  // SHARDPLAN_COLLECTIVES_HPP

// ---- shardplan/plan_words.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The words of a plan's text: axes, flags, options, and what can be wrong with them.
#ifndef SHARDPLAN_PLAN_WORDS_HPP
#define SHARDPLAN_PLAN_WORDS_HPP

namespace shardplan {

/// The largest degree, and the largest world: ranks are int everywhere outside.
inline constexpr num max_degree = 2147483647;

/// The axes whose degree a plan states, in the order in which plans are printed, compared and searched.
struct plan_axis {
  axis name{};
  num plan_spec::*degree = nullptr;
};
inline constexpr plan_axis plan_axes[] = {
    {axis::pp, &plan_spec::pp},     {axis::dp_replicate, &plan_spec::dp_replicate},
    {axis::fsdp, &plan_spec::fsdp}, {axis::cp, &plan_spec::cp},
    {axis::tp, &plan_spec::tp},     {axis::ep, &plan_spec::ep},
    {axis::etp, &plan_spec::etp},
};
inline constexpr std::size_t num_plan_axes = 7;
inline constexpr std::size_t num_dense_axes = 5;  ///< the first ones: their product is the world

enum class plan_problem : unsigned char {
  none,
  space,                    ///< there are no spaces in a plan
  empty_entry,              ///< nothing between two commas, or after the last
  unknown_axis,             ///< neither an axis nor a flag
  duplicate_axis,           ///< an axis or a flag for the second time
  missing_degree,           ///< `tp`, `tp=`
  not_a_number,             ///< a degree is decimal digits
  out_of_range,             ///< 0, or above max_degree
  flag_with_value,          ///< `vocab_pad=1`
  unknown_option,           ///< not an option of that axis
  duplicate_option,         ///< two options for one choice
  too_many_stages,          ///< more stages listed than a plan can hold
  second_star,              ///< more than one `*`
  star_cannot_be_inferred,  ///< `ep=*`, `etp=*`: these add no ranks, so the world does not tell them
  star_without_world,       ///< the world is not known
  star_is_not_whole,        ///< the other degrees do not divide the world
  world_out_of_range,       ///< the product of the degrees is above max_degree
  unknown_module,           ///< a pattern that names no module
  unknown_style,            ///< not a style, or not one for the modules of the pattern
  too_many_overrides,       ///< more module overrides than a plan can hold
};

using plan_message = fixed_text<640>;

struct parsed_plan {
  plan_spec plan{};  ///< meaningful when there is no problem
  plan_problem problem = plan_problem::none;
  std::size_t position = 0;  ///< of the offending character, from 0; the size of the text when it ends too early
  plan_message message{};    ///< one sentence that names the axis and the value; of modules, everything wrong

  constexpr bool ok() const { return problem == plan_problem::none; }
};

namespace detail {

struct plan_flag {
  text_view name;
  bool plan_spec::*given = nullptr;
};
inline constexpr plan_flag plan_flags[] = {{"kv_replicate", &plan_spec::kv_replicate},
                                           {"vocab_pad", &plan_spec::vocab_pad},
                                           {"expert_pad", &plan_spec::expert_pad}};

inline constexpr char known_axes[] = "pp, dp_replicate, fsdp, cp, tp, ep, etp";
inline constexpr char known_styles[] =
    "replicated, colwise, rowwise, vocabulary, packed_colwise, grouped_rowwise, planned, ulysses, ring, all_gather";
inline constexpr char known_flags[] = "kv_replicate, vocab_pad, expert_pad";

/// The options of an axis, for the message about one that it has not got.
constexpr text_view known_options(axis a) {
  switch (a) {
    case axis::pp:
      return "1f1b, gpipe, interleavedN (N from 2), layers:A+B+...";
    case axis::fsdp:
      return "zero3, zero1, zero2";
    case axis::cp:
      return "ulysses, ring, all_gather, ulyssesUxringR, contiguous, zigzag, zigzag_documents";
    case axis::tp:
      return "sp";
    case axis::ep:
      return "dispatch, all_reduce, all_gather";
    default:
      return "";
  }
}

}  // namespace detail
}  // namespace shardplan
#endif  // SHARDPLAN_PLAN_WORDS_HPP

// ---- shardplan/plan_parse.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Reads the text of a plan: "pp=2,fsdp=2,cp=2/ring/zigzag,tp=2/sp". Entries in any order, an absent axis has degree
// 1, at most one degree is `*` and follows from the world. An entry whose name is a pattern gives modules another
// style: "tp=2,lm_head=replicated,layers.3.self_attn=replicated". What makes a plan illegal is no matter of its text.
#ifndef SHARDPLAN_PLAN_PARSE_HPP
#define SHARDPLAN_PLAN_PARSE_HPP

namespace shardplan {

namespace detail {

class plan_parser {
 public:
  constexpr plan_parser(text_view text, num world) : text_(text), world_(world) {}

  constexpr parsed_plan parse() {
    for (std::size_t i = 0; i < text_.size(); ++i)
      if (text_[i] == ' ' || (text_[i] >= '\t' && text_[i] <= '\r'))
        return fail(plan_problem::space, i, "there are no spaces in a plan"), out_;
    for (std::size_t begin = 0; has_entry(begin); begin = entry_end(begin) + 1) module_entry(begin, entry_end(begin));
    for (std::size_t begin = 0; has_entry(begin) && out_.ok(); begin = entry_end(begin) + 1) {
      const std::size_t end = entry_end(begin);
      if (begin == end)
        fail(plan_problem::empty_entry, end < text_.size() ? end : end - 1, "a comma without an entry");
      else if (!names_modules(begin, end))
        entry(begin, end);
    }
    if (out_.ok()) infer();
    return out_;
  }

 private:
  using word = text_view;
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);
  enum option_group : unsigned { schedule = 1, stages = 2, method = 4, layout = 8, single = 16 };

  constexpr std::size_t find(char c, std::size_t begin, std::size_t end) const {
    while (begin < end && text_[begin] != c) ++begin;
    return begin;
  }
  constexpr word part(std::size_t begin, std::size_t end) const { return text_.substr(begin, end - begin); }
  /// What the user wrote, short and printable.
  constexpr fixed_text<48> quoted(std::size_t begin, std::size_t end) const {
    fixed_text<48> out;
    out.add("'");
    for (std::size_t i = begin; i < end && i < begin + 40; ++i)
      out.push_back(text_[i] >= ' ' && text_[i] <= '~' ? text_[i] : '?');
    return out.add(end > begin + 40 ? "...'" : "'");
  }
  static constexpr fixed_text<20> decimal(num value) { return fixed_text<20>{}.add(value); }
  constexpr void fail(plan_problem problem, std::size_t position, word a, word b = {}, word c = {}, word d = {},
                      word e = {}, word f = {}) {
    out_.problem = problem;
    out_.position = position;
    out_.message.add(a).add(b).add(c).add(d).add(e).add(f);
  }

  /// A whole number in [least, max_degree] that fills [begin, end); false after saying what is wrong.
  constexpr bool whole(word what, std::size_t begin, std::size_t end, num least, num& value) {
    num n = 0;  // stays where it is above max_degree: too large is too large
    std::size_t stop = begin;
    for (; stop < end && text_[stop] >= '0' && text_[stop] <= '9'; ++stop)
      if (n <= max_degree) n = n * 10 + (text_[stop] - '0');
    if (begin == end)
      fail(plan_problem::missing_degree, begin, what, " lacks its number");
    else if (stop != end)
      fail(plan_problem::not_a_number, stop, what, " must be a decimal number, not ", quoted(begin, end).view());
    else if (n < least || n > max_degree)
      fail(plan_problem::out_of_range, begin, what, " must be from ", decimal(least).view(), " to 2147483647, not ",
           quoted(begin, end).view());
    else
      value = n;
    return out_.ok();
  }

  // No loop that takes a lambda: clang 14 cannot evaluate it before the end of the file.
  constexpr bool has_entry(std::size_t begin) const { return !text_.empty() && begin <= text_.size(); }
  constexpr std::size_t entry_end(std::size_t begin) const { return find(',', begin, text_.size()); }

  /// Neither axes nor flags have dots in their names, nor letters as their degrees.
  constexpr bool names_modules(std::size_t begin, std::size_t end) const {
    const std::size_t equals = find('=', begin, end);
    const word name = part(begin, equals);
    if (find('.', begin, equals) != equals || name == "lm_head" || name == "*") return true;
    for (const plan_flag& flag : plan_flags)
      if (flag.name == name) return false;
    for (const plan_axis& a : plan_axes)
      if (name_of(a.name) == name) return false;
    return equals + 1 < end && text_[equals + 1] >= 'a' && text_[equals + 1] <= 'z';
  }
  /// Every unknown pattern and style is told, not the first alone.
  constexpr void module_entry(std::size_t begin, std::size_t end) {
    if (!names_modules(begin, end)) return;
    const std::size_t equals = find('=', begin, end), value = equals < end ? equals + 1 : end;
    const auto tell = [&](plan_problem problem, std::size_t at, word a, word b, word c = {}) {
      if (out_.ok())
        out_.problem = problem, out_.position = at;
      else
        out_.message.add("; ");
      out_.message.add(a).add(b).add(c);
    };
    const auto pattern = quoted(begin, equals), style = quoted(value, end);
    switch (merge(out_.plan.modules, part(begin, equals), part(value, end))) {
      case override_problem::unknown_pattern:
        return tell(plan_problem::unknown_module, begin, pattern.view(),
                    find('.', begin, equals) != equals ? " names no module of a model"
                                                       : " is neither an axis nor a flag nor a module of a model");
      case override_problem::unknown_style:
        return tell(plan_problem::unknown_style, value, style.view(), " is not a style of modules: ", known_styles);
      case override_problem::style_does_not_fit:
        return tell(plan_problem::unknown_style, value, style.view(), " is no style for all modules of ",
                    pattern.view());
      case override_problem::none:
        break;
    }
    if (out_.plan.modules.full() && out_.problem != plan_problem::too_many_overrides)
      tell(plan_problem::too_many_overrides, begin, "a plan can hold at most 24 module overrides", "");
  }

  constexpr void entry(std::size_t begin, std::size_t end) {
    std::size_t stop = begin;  // of the name
    while (stop < end && text_[stop] != '=' && text_[stop] != '/') ++stop;
    const word name = part(begin, stop);
    for (const plan_flag& flag : plan_flags) {
      if (flag.name != name) continue;
      if (stop != end)
        fail(plan_problem::flag_with_value, stop, name, " is a flag and takes no value");
      else if (out_.plan.*flag.given)
        fail(plan_problem::duplicate_axis, begin, name, " is given twice");
      out_.plan.*flag.given = true;
      return;
    }
    for (std::size_t i = 0; i < num_plan_axes; ++i) {
      if (name_of(plan_axes[i].name) != name) continue;
      if (where_[i] != npos)
        fail(plan_problem::duplicate_axis, begin, name, " is given twice");
      else if (stop == end || text_[stop] == '/')
        fail(plan_problem::missing_degree, stop, name, " lacks its degree: write ", name, "=N");
      else
        axis_entry(i, stop + 1, end);
      return;
    }
    fail(plan_problem::unknown_axis, begin, quoted(begin, stop).view(), " is neither an axis (", known_axes,
         ") nor a flag (", known_flags, ")");
  }

  constexpr void axis_entry(std::size_t index, std::size_t begin, std::size_t end) {
    const plan_axis a = plan_axes[index];
    const word name = name_of(a.name);
    std::size_t slash = find('/', begin, end);
    where_[index] = begin;
    if (part(begin, slash) != "*") {
      if (!whole(name, begin, slash, 1, out_.plan.*a.degree)) return;
    } else if (index >= num_dense_axes) {
      return fail(plan_problem::star_cannot_be_inferred, begin, name,
                  "=* cannot be inferred from the world: ep and etp add no ranks");
    } else if (star_ != npos) {
      return fail(plan_problem::second_star, begin, name, "=* is the second *: only one degree can be inferred, and ",
                  name_of(plan_axes[star_].name), "=* was given");
    } else {
      star_ = index;
    }
    for (unsigned given = 0; slash < end;) {
      const std::size_t from = slash + 1, to = find('/', from, end);
      const unsigned group = from == to ? 0 : option(a.name, from, to);
      if (!out_.ok()) return;
      const word known = known_options(a.name);
      if (group == 0)
        return fail(plan_problem::unknown_option, from == to ? slash : from, quoted(from, to).view(),
                    " is not an option of ", name, known.empty() ? ": it has none" : ": ", known);
      if (given & group)
        return fail(plan_problem::duplicate_option, from, name, ": ", quoted(from, to).view(),
                    " chooses again what was chosen before");
      given |= group;
      slash = to;
    }
  }

  /// Sets `value` to the enumerator of that name, up to `last`; false when there is none.
  template <class Enum>
  constexpr bool choose(word name, Enum& value, Enum last) {
    for (unsigned i = 0; i <= static_cast<unsigned>(last); ++i)
      if (name_of(static_cast<Enum>(i)) == name) return value = static_cast<Enum>(i), true;
    return false;
  }

  /// Sets what the option says; the group of options that exclude each other, 0 for an unknown one.
  constexpr unsigned option(axis a, std::size_t begin, std::size_t end) {
    const word given = part(begin, end);
    plan_spec& p = out_.plan;
    switch (a) {
      case axis::pp:
        if (given.substr(0, 7) == "layers:") return stage_list(begin + 7, end);
        if (given.substr(0, 11) == name_of(schedule_kind::interleaved)) {
          p.schedule = schedule_kind::interleaved;
          return whole("pp: N of interleavedN", begin + 11, end, 2, p.virtual_stages), schedule;
        }
        return choose(given, p.schedule, schedule_kind::gpipe) ? schedule : 0u;
      case axis::fsdp:
        return choose(given, p.zero, zero_stage::zero2) ? single : 0u;
      case axis::cp: {
        const std::size_t x = find('x', begin, end);
        if (given.substr(0, 7) == "ulysses" && part(x, end).substr(0, 5) == "xring") {
          p.method = cp_method::ulysses_ring;
          if (whole("cp: U of ulyssesUxringR", begin + 7, x, 1, p.method_ulysses))
            whole("cp: R of ulyssesUxringR", x + 5, end, 1, p.method_ring);
          return method;
        }
        if (choose(given, p.method, cp_method::all_gather)) return method;
        return given != name_of(layout_kind::full) && choose(given, p.layout, layout_kind::zigzag_documents) ? layout
                                                                                                             : 0u;
      }
      case axis::tp:
        return given == "sp" ? (p.sequence_parallel = true, single) : 0u;
      case axis::ep:
        return choose(given, p.dispatch, dispatch_kind::all_gather) ? single : 0u;
      default:
        return 0;
    }
  }
  constexpr unsigned stage_list(std::size_t begin, std::size_t end) {
    for (std::size_t from = begin; from <= end;) {
      const std::size_t to = find('+', from, end);
      num layers = 0;
      if (!whole("pp: a number of layers:A+B+...", from, to, 0, layers)) break;
      if (!out_.plan.stages.push_back(layers)) {
        fail(plan_problem::too_many_stages, from, "pp: layers:A+B+... lists more than ",
             decimal(static_cast<num>(stage_layer_counts::capacity())).view(), " stages");
        break;
      }
      from = to + 1;
    }
    return stages;
  }

  /// Degrees multiply to a world in range; the one that is `*` makes up the rest of it.
  constexpr void infer() {
    num product = 1;
    for (std::size_t i = 0; i < num_dense_axes; ++i) {
      const num degree = out_.plan.*plan_axes[i].degree;
      if ((product *= degree) > max_degree)
        return fail(plan_problem::world_out_of_range, where_[i], "with ", name_of(plan_axes[i].name), "=",
                    decimal(degree).view(), " the degrees multiply to more than 2147483647 ranks");
    }
    if (star_ == npos) return;
    const word name = name_of(plan_axes[star_].name);
    const std::size_t at = where_[star_];
    if (world_ <= 0)
      fail(plan_problem::star_without_world, at, name, "=* needs the number of ranks of the world");
    else if (world_ > max_degree)
      fail(plan_problem::world_out_of_range, at, name, "=*: a world of ", decimal(world_).view(),
           " ranks is above 2147483647");
    else if (world_ % product != 0)
      fail(plan_problem::star_is_not_whole, at, name, "=* is not whole: a world of ", decimal(world_).view(),
           " ranks over the other degrees' ", decimal(product).view());
    else
      out_.plan.*plan_axes[star_].degree = world_ / product;
  }

  text_view text_;
  num world_;
  parsed_plan out_{};
  std::size_t where_[num_plan_axes] = {npos, npos, npos, npos, npos, npos, npos};  // of each degree given
  std::size_t star_ = npos;
};

}  // namespace detail

/// Reads a plan. `world` is the number of ranks, 0 when not known; only a degree `*` asks it.
constexpr parsed_plan parse_plan(text_view text, num world = 0) { return detail::plan_parser(text, world).parse(); }

}  // namespace shardplan
#endif  // SHARDPLAN_PLAN_PARSE_HPP

// ---- shardplan/policies.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The type face of a plan: policies that a compiler prints by name, composed in any order.
//
//   using mine = plan<pipeline_parallel<2>, fully_sharded<2>, context_parallel<2, ring, zigzag>,
//                     tensor_parallel<2, sequence_parallel>, expert_parallel<4, token_dispatch>>;
//   static_assert(mine::world_size == 16);
//
// A policy of your own is any type with `static constexpr void apply(plan_spec&)`; one that also has `settles` (bits of
// `slot`) is refused beside another that settles the same. A method, dispatch kind or schedule of your own is any type
// with choose_method, choose_dispatch or choose_schedule.
#ifndef SHARDPLAN_POLICIES_HPP
#define SHARDPLAN_POLICIES_HPP

namespace shardplan {

/// What a policy can settle.
namespace slot {
inline constexpr unsigned pp = 1u << 0, dp_replicate = 1u << 1, fsdp = 1u << 2, cp = 1u << 3, tp = 1u << 4,
                          ep = 1u << 5, etp = 1u << 6, schedule = 1u << 7, stages = 1u << 8, zero = 1u << 9,
                          method = 1u << 10, layout = 1u << 11, sequence_parallel = 1u << 12, dispatch = 1u << 13,
                          kv_replicate = 1u << 14, vocab_pad = 1u << 15, expert_pad = 1u << 16;
}  // namespace slot

template <class P>
concept Policy = requires(plan_spec& p) {
  P::apply(p);
};
template <class M>
concept ContextMethod = requires(plan_spec& p) {
  M::choose_method(p);
};
template <class D>
concept DispatchKind = requires(plan_spec& p) {
  D::choose_dispatch(p);
};
template <class S>
concept Schedule = requires(plan_spec& p) {
  S::choose_schedule(p);
};
template <class Z>
concept ZeroStage = requires(plan_spec& p) {
  Z::choose_zero(p);
};

// ---- choices

struct one_f_one_b final {
  static constexpr void choose_schedule(plan_spec& p) { p.schedule = schedule_kind::one_f_one_b; }
};
struct gpipe final {
  static constexpr void choose_schedule(plan_spec& p) { p.schedule = schedule_kind::gpipe; }
};
template <num VirtualStages>
struct interleaved final {
  static constexpr void choose_schedule(plan_spec& p) {
    p.schedule = schedule_kind::interleaved;
    p.virtual_stages = VirtualStages;
  }
};
struct zero1 final {
  static constexpr void choose_zero(plan_spec& p) { p.zero = zero_stage::zero1; }
};
struct zero2 final {
  static constexpr void choose_zero(plan_spec& p) { p.zero = zero_stage::zero2; }
};
struct zero3 final {
  static constexpr void choose_zero(plan_spec& p) { p.zero = zero_stage::zero3; }
};
struct ulysses final {
  static constexpr void choose_method(plan_spec& p) { p.method = cp_method::ulysses; }
};
struct ring final {
  static constexpr void choose_method(plan_spec& p) { p.method = cp_method::ring; }
};
template <num Ulysses, num Ring>
struct ulysses_ring final {
  static constexpr void choose_method(plan_spec& p) {
    p.method = cp_method::ulysses_ring;
    p.method_ulysses = Ulysses;
    p.method_ring = Ring;
  }
};
/// Of keys and values in context_parallel, of rows in expert_parallel.
struct all_gather final {
  static constexpr void choose_method(plan_spec& p) { p.method = cp_method::all_gather; }
  static constexpr void choose_dispatch(plan_spec& p) { p.dispatch = dispatch_kind::all_gather; }
};
struct token_dispatch final {
  static constexpr void choose_dispatch(plan_spec& p) { p.dispatch = dispatch_kind::dispatch; }
};
struct all_reduce final {
  static constexpr void choose_dispatch(plan_spec& p) { p.dispatch = dispatch_kind::all_reduce; }
};

namespace error {
struct a_policy_settles_what_is_settled {
  SHARDPLAN_SENTENCE("a plan must settle each degree and each option once; this policy settles one again");
};
struct an_option_does_not_belong {
  SHARDPLAN_SENTENCE("an option must belong to the policy that it is given to");
};
}  // namespace error

namespace detail {

template <class P>
constexpr unsigned slots_of() {
  if constexpr (requires { P::settles; })
    return P::settles;
  else
    return 0;
}
template <class P>
inline constexpr unsigned settled_by = slots_of<P>();

// An option as a policy. `Of` are the slots that options of the policy asked may settle.
template <class Option, unsigned Of>
struct as_policy {
  static constexpr bool nested = (settled_by<Option> & Of) != 0;  // explicit_stages, sequence_parallel, flags
  static constexpr unsigned chosen = (Layout<Option> ? slot::layout : 0u) |
                                     (ContextMethod<Option> ? slot::method : 0u) |
                                     (DispatchKind<Option> ? slot::dispatch : 0u) |
                                     (Schedule<Option> ? slot::schedule : 0u) | (ZeroStage<Option> ? slot::zero : 0u);
  static constexpr unsigned settles = nested ? settled_by<Option> : chosen & Of;
  static constexpr void apply(plan_spec& p) {
    if constexpr (nested) Option::apply(p);
    if constexpr (settles == slot::layout) p.layout = Option::kind;
    if constexpr (settles == slot::method) Option::choose_method(p);
    if constexpr (settles == slot::dispatch) Option::choose_dispatch(p);
    if constexpr (settles == slot::schedule) Option::choose_schedule(p);
    if constexpr (settles == slot::zero) Option::choose_zero(p);
  }
};

template <class Whole, std::size_t, class Part, bool Again>
struct given_again {};
template <class Whole, std::size_t Index, class Part>
struct given_again<Whole, Index, Part, true> : error::a_policy_settles_what_is_settled::broken_with<Part, Whole> {};
template <class Whole, std::size_t, class Part, bool Foreign>
struct foreign {};
template <class Whole, std::size_t Index, class Part>
struct foreign<Whole, Index, Part, true> : error::an_option_does_not_belong::broken_with<Part, Whole> {};

/// Whether part `index` of parts that settle `settled` settles what an earlier one does.
template <std::size_t Size>
constexpr bool settles_again(const unsigned (&settled)[Size], std::size_t index) {
  for (std::size_t i = 0; i < index; ++i)
    if ((settled[i] & settled[index]) != 0) return true;
  return false;
}

template <class Whole, unsigned Of, class Indices, class... Options>
struct option_faults;
template <class Whole, unsigned Of, std::size_t... Index, class... Options>
struct option_faults<Whole, Of, std::index_sequence<Index...>, Options...>
    : given_again<Whole, Index, Options, settles_again({0u, as_policy<Options, Of>::settles...}, Index + 1)>...,
      foreign<Whole, Index, Options, as_policy<Options, Of>::settles == 0>... {};

/// A degree with options: what the policies below are made of. Faults are a plan's to tell: in a policy's own bases
/// they would be told inside a requires-expression, which takes the policy for none.
template <class Whole, unsigned Own, num plan_spec::*Degree, num Value, unsigned Of, class... Options>
struct axis_policy {
  using faults = option_faults<Whole, Of, std::index_sequence_for<Options...>, Options...>;
  static constexpr num degree = Value;
  static constexpr unsigned settles = (Own | ... | as_policy<Options, Of>::settles);
  static constexpr void apply(plan_spec& p) {
    p.*Degree = Value;
    (as_policy<Options, Of>::apply(p), ...);
  }
};

template <std::size_t, class P>
struct own_faults {};
template <std::size_t Index, class P>
requires requires { typename P::faults; }
struct own_faults<Index, P> : P::faults {};

}  // namespace detail

// ---- policies. A degree of 0 is no error yet: the rules refuse it, and a query may ask about it.

/// Layers of each stage, in order of depth: pipeline_parallel<2, explicit_stages<3, 5>>, or beside it.
template <num... Layers>
struct explicit_stages final {
  static_assert(sizeof...(Layers) <= stage_layer_counts::capacity(),
                "shardplan: a list of stages must hold at most 128 of them");
  static constexpr unsigned settles = slot::stages;
  static constexpr void apply(plan_spec& p) {
    p.stages = {};
    (p.stages.push_back(Layers), ...);
  }
};
struct sequence_parallel final {
  static constexpr unsigned settles = slot::sequence_parallel;
  static constexpr void apply(plan_spec& p) { p.sequence_parallel = true; }
};
struct replicate_kv_heads final {
  static constexpr unsigned settles = slot::kv_replicate;
  static constexpr void apply(plan_spec& p) { p.kv_replicate = true; }
};
struct pad_vocabulary final {
  static constexpr unsigned settles = slot::vocab_pad;
  static constexpr void apply(plan_spec& p) { p.vocab_pad = true; }
};
struct pad_experts final {
  static constexpr unsigned settles = slot::expert_pad;
  static constexpr void apply(plan_spec& p) { p.expert_pad = true; }
};

/// Options: a schedule (one_f_one_b, gpipe, interleaved<N>), explicit_stages.
template <num Degree, class... Options>
struct pipeline_parallel final : detail::axis_policy<pipeline_parallel<Degree, Options...>, slot::pp, &plan_spec::pp,
                                                     Degree, slot::schedule | slot::stages, Options...> {};
template <num Degree>
struct replicated final
    : detail::axis_policy<replicated<Degree>, slot::dp_replicate, &plan_spec::dp_replicate, Degree, 0u> {};
/// Options: zero3, zero1, zero2.
template <num Degree, class... Options>
struct fully_sharded final : detail::axis_policy<fully_sharded<Degree, Options...>, slot::fsdp, &plan_spec::fsdp,
                                                 Degree, slot::zero, Options...> {};
/// Options: a method (ulysses, ring, all_gather, ulysses_ring<U, R>), a layout (contiguous, zigzag, zigzag_documents).
template <num Degree, class... Options>
struct context_parallel final : detail::axis_policy<context_parallel<Degree, Options...>, slot::cp, &plan_spec::cp,
                                                    Degree, slot::method | slot::layout, Options...> {};
/// Options: sequence_parallel, replicate_kv_heads, pad_vocabulary.
template <num Degree, class... Options>
struct tensor_parallel final
    : detail::axis_policy<tensor_parallel<Degree, Options...>, slot::tp, &plan_spec::tp, Degree,
                          slot::sequence_parallel | slot::kv_replicate | slot::vocab_pad, Options...> {};
template <num Degree>
struct expert_tensor_parallel final
    : detail::axis_policy<expert_tensor_parallel<Degree>, slot::etp, &plan_spec::etp, Degree, 0u> {};
/// Options: a dispatch kind (token_dispatch, all_reduce, all_gather), expert_tensor_parallel, pad_experts.
template <num Degree, class... Options>
struct expert_parallel final : detail::axis_policy<expert_parallel<Degree, Options...>, slot::ep, &plan_spec::ep,
                                                   Degree, slot::dispatch | slot::etp | slot::expert_pad, Options...> {
};

/// Another style for the modules of a pattern: override_modules<"layers.*.self_attn", module_style::replicated>.
/// Several merge in their order, onto the tables of module_plan.hpp.
template <detail::literal_text Pattern, module_style Style>
struct override_modules final {
  static constexpr void apply(plan_spec& p) { merge(p.modules, Pattern.view(), Style); }

 private:
  static constexpr override_problem problem = [] {
    module_overrides none;
    return merge(none, Pattern.view(), Style);
  }();
  static_assert(problem != override_problem::unknown_pattern,
                "shardplan: the pattern of an override must name modules of a model");
  static_assert(problem != override_problem::style_does_not_fit,
                "shardplan: the style of an override must be one that all modules of its pattern can have");
};

// ---- plans, models and batches as types

namespace detail {

template <class Plan, class Indices, class... Policies>
struct policy_faults;
template <class Plan, std::size_t... Index, class... Policies>
struct policy_faults<Plan, std::index_sequence<Index...>, Policies...>
    : own_faults<Index, Policies>...,
      given_again<Plan, Index, Policies, settles_again({0u, settled_by<Policies>...}, Index + 1)>... {};

template <class... Policies>
constexpr plan_spec applied() {
  plan_spec p;
  if constexpr ((Policy<Policies> && ...)) (Policies::apply(p), ...);  // else plan<> has said what is wrong
  return p;
}

/// What a plan alone says, as data.
template <class Plan>
struct plan_numbers {
  static constexpr num world_size = shardplan::world_size(Plan::spec);
  static constexpr num num_stages = shardplan::num_stages(Plan::spec);
  static constexpr num num_data_shards = shardplan::num_data_shards(Plan::spec);
  static constexpr num gradient_divisor = shardplan::gradient_divisor(Plan::spec);
};

}  // namespace detail

/// Policies, in any order. Whoever names it (struct mine final : plan<...> {}) reads `mine` in messages.
template <class... Policies>
struct plan : detail::plan_numbers<plan<Policies...>>,
              private detail::policy_faults<plan<Policies...>, std::index_sequence_for<Policies...>, Policies...> {
  static_assert((Policy<Policies> && ...), "shardplan: a plan must be made of policies");
  static constexpr plan_spec spec = detail::applied<Policies...>();
  static_assert(!spec.modules.full(), "shardplan: a plan must hold at most 24 module overrides");
};

/// A value as a type: plan_of<"tp=2,cp=2/ring"_plan>. Compilers print all of the value, so name it (above).
template <plan_spec Spec>
struct plan_of : detail::plan_numbers<plan_of<Spec>> {
  static constexpr plan_spec spec = Spec;
};
template <model_spec Spec>
struct model_of {
  static constexpr model_spec spec = Spec;
};
template <batch_spec Spec>
struct batch_of {
  static constexpr batch_spec spec = Spec;
};

template <class P>
concept PlanType = requires {
  { P::spec } -> std::same_as<const plan_spec&>;
};
template <class M>
concept ModelType = requires {
  { M::spec } -> std::same_as<const model_spec&>;
};
template <class B>
concept BatchType = requires {
  { B::spec } -> std::same_as<const batch_spec&>;
};

}  // namespace shardplan
#endif  // SHARDPLAN_POLICIES_HPP

// ---- shardplan/mesh_view.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The type face of a mesh: views, whose axes, degrees and strides are part of their type. They are made of the meshes
// of mesh.hpp, under the same names: dense_mesh(spec) is a value, dense_mesh<Plan>() a view. A mesh that cannot be does
// not compile. mesh_algebra.hpp makes one view from another.
#ifndef SHARDPLAN_MESH_VIEW_HPP
#define SHARDPLAN_MESH_VIEW_HPP

namespace shardplan {

namespace error {
struct degrees_of_a_mesh_are_in_range {
  SHARDPLAN_SENTENCE("every degree of a mesh must be at least 1, and their product at most 2147483647");
};
struct a_view_has_the_ranks_of_its_root {
  SHARDPLAN_SENTENCE("the degrees of a view must multiply to the number of ranks of its root");
};
struct an_axis_stands_once {
  SHARDPLAN_SENTENCE("an axis must stand in a mesh only once");
};
struct an_axis_is_of_the_view {
  SHARDPLAN_SENTENCE("an axis that is asked for must be one of the view");
};
}  // namespace error

namespace fact {
template <axis>
struct axis_named;
template <num>
struct ranks_of_view;
template <num>
struct ranks_of_root;
}  // namespace fact

/// An axis and its degree: of a root, or a part of an axis that is split.
template <axis Name, num Degree>
struct axis_of final {
  static constexpr axis name = Name;
  static constexpr num degree = Degree;
};

template <class A>
concept MeshAxis = requires {
  axis_of<A::name, A::degree>{};
};

/// An axis of a view: neighbours on it are `Stride` ranks apart.
template <axis Name, num Degree, num Stride>
struct view_axis final {
  static constexpr axis name = Name;
  static constexpr num degree = Degree, stride = Stride;
};

namespace detail {

/// A base class that is an error when `Broken`. The index tells bases with the same facts apart.
template <std::size_t, bool Broken, class Error, class... Facts>
struct fault {};
template <std::size_t Index, class Error, class... Facts>
struct fault<Index, true, Error, Facts...> : Error::template broken_with<Facts...> {};

template <std::size_t Size>
constexpr bool named_before(const axis (&names)[Size], std::size_t index) {
  for (std::size_t i = 0; i < index; ++i)
    if (names[i] == names[index]) return true;
  return false;
}

template <axis... Names>
inline constexpr axis_set set_of = (axis_set{} | ... | axis_set(Names));

template <class... Axes>
constexpr mesh mesh_made_of() {
  mesh m;
  (m.axes.push_back({Axes::name, Axes::degree}), ...);
  return m;
}

constexpr bool degrees_in_range(const mesh& m) {
  num product = 1;
  for (const mesh_axis& a : m.axes) {
    product = a.degree < 1 ? -1 : checked_product(product, a.degree);
    if (product < 1 || product > max_degree) return false;
  }
  return true;
}

template <class Index, class... Axes>
struct root_faults;
template <std::size_t... Index, class... Axes>
struct root_faults<std::index_sequence<Index...>, Axes...>
    : fault<0, !degrees_in_range(mesh_made_of<Axes...>()), error::degrees_of_a_mesh_are_in_range, Axes...>,
      fault<Index, named_before({Axes::name...}, Index), error::an_axis_stands_once, fact::axis_named<Axes::name>,
            Axes...>... {
  // A faulty root is a mesh without axes: its error stays the only one.
  static constexpr bool sound =
      degrees_in_range(mesh_made_of<Axes...>()) && !(named_before({Axes::name...}, Index) || ... || false);
  static constexpr mesh spec = sound ? mesh_made_of<Axes...>() : mesh{};
};

/// Axes with strides: what a view is, as a value.
struct placed_axis {
  axis name{};
  rank_group::step step{};
};
using placed_axes = fixed_vector<placed_axis, num_axes>;

/// The axes of a mesh within an axis of this stride; 1: within the world.
constexpr placed_axes placed(const mesh& m, num stride = 1) {
  placed_axes out;
  for (const mesh_axis& a : m.axes) out.push_back({a.name, {a.degree, stride * m.stride(a.name)}});
  return out;
}

constexpr fixed_vector<num, num_axes> coordinates(const placed_axes& axes, num rank) {
  fixed_vector<num, num_axes> out;
  for (const placed_axis& a : axes) out.push_back(place_on(a.step.degree, a.step.stride, rank));
  return out;
}
constexpr rank_group group(const placed_axes& axes, num rank) {
  rank_group g;
  g.first = rank;
  for (const placed_axis& a : axes) g.widen(rank, a.step);
  return g;
}

template <class View, axis Name>
struct axis_in;

}  // namespace detail

/// A root of one's own: struct cluster final : mesh_root<axis_of<axis::pp, 2>, axis_of<axis::tp, 8>> {}; slowest axis
/// first. Roots of different names are different ranks, even with the same axes.
template <MeshAxis... Axes>
struct mesh_root : private detail::root_faults<std::index_sequence_for<Axes...>, Axes...> {
  static constexpr mesh spec = detail::root_faults<std::index_sequence_for<Axes...>, Axes...>::spec;
};

template <class R>
concept MeshRoot = requires {
  { R::spec } -> std::same_as<const mesh&>;
};

/// A view, or a submesh of one: view_axis<...> each, slowest first. Made by the functions below, and empty: what it
/// says is data, which device code can use.
template <class Root, class... Axes>
struct mesh_view final {
  using root = Root;
  /// The same axes as a mesh by itself: the members of a group, numbered by their index.
  static constexpr mesh shape = detail::mesh_made_of<Axes...>();
  static constexpr num size = (num{1} * ... * Axes::degree);
  static constexpr axis_set names = detail::set_of<Axes::name...>;
  static constexpr detail::placed_axes axes{{{Axes::name, {Axes::degree, Axes::stride}}...}, sizeof...(Axes)};
  template <axis Name>
  static constexpr num degree = detail::axis_in<mesh_view, Name>::step.degree;
  template <axis Name>
  static constexpr num stride = detail::axis_in<mesh_view, Name>::step.stride;

  friend constexpr bool operator==(mesh_view, mesh_view) { return true; }
};

namespace detail {

template <class V>
inline constexpr bool is_view = false;
template <class Root, class... Axes>
inline constexpr bool is_view<mesh_view<Root, Axes...>> = true;

}  // namespace detail

template <class V>
concept MeshView = detail::is_view<V>;

namespace detail {

/// Faults of axes that are asked of a view: one that it has not, or one twice.
template <class View, class Index, axis... Asked>
struct asked_faults;
template <class View, std::size_t... Index, axis... Asked>
struct asked_faults<View, std::index_sequence<Index...>, Asked...>
    : fault<Index, !View::names.has(Asked), error::an_axis_is_of_the_view, fact::axis_named<Asked>, View>...,
      fault<Index, named_before({Asked...}, Index), error::an_axis_stands_once, fact::axis_named<Asked>, View>... {
  static constexpr bool sound = ((View::names.has(Asked) && !named_before({Asked...}, Index)) && ... && true);
};
template <class View, axis... Asked>
using asked_axes = asked_faults<View, std::make_index_sequence<sizeof...(Asked)>, Asked...>;

constexpr std::size_t find(const placed_axes& axes, axis name) {
  std::size_t i = 0;
  while (i < axes.size() && axes[i].name != name) ++i;
  return i;
}

template <class View, axis Name>
struct axis_in : asked_axes<View, Name> {
  static constexpr rank_group::step step =
      View::names.has(Name) ? View::axes[find(View::axes, Name)].step : rank_group::step{};
};

/// The type of the view whose axes are `Source::axes`.
template <class Root, class Source, class Index = std::make_index_sequence<Source::axes.size()>>
struct view_of;
template <class Root, class Source, std::size_t... Index>
struct view_of<Root, Source, std::index_sequence<Index...>> {
  using type = mesh_view<
      Root, view_axis<Source::axes[Index].name, Source::axes[Index].step.degree, Source::axes[Index].step.stride>...>;
};
template <class Root, class Source>
using view_of_t = typename view_of<Root, Source>::type;

template <class Plan>
constexpr bool degrees_in_range() {
  const num world = world_size(Plan::spec), expert = checked_product(Plan::spec.ep, Plan::spec.etp);
  return world >= 1 && world <= max_degree && expert >= 1 && expert <= max_degree;
}

/// A plan's ranks, factorised as `Mesh::of()` says.
template <class Plan, class Mesh, bool Sound = degrees_in_range<Plan>()>
struct plan_view;
template <class Plan, class Mesh>
struct plan_view<Plan, Mesh, true>
    : fault<0, Mesh::of().size() != world_size(Plan::spec), error::a_view_has_the_ranks_of_its_root,
            fact::ranks_of_view<Mesh::of().size()>, fact::ranks_of_root<world_size(Plan::spec)>, Plan> {
  static constexpr placed_axes axes = placed(Mesh::of());
};
template <class Plan, class Mesh>
struct plan_view<Plan, Mesh, false>
    : error::degrees_of_a_mesh_are_in_range::broken_with<
          axis_of<axis::pp, Plan::spec.pp>, axis_of<axis::dp_replicate, Plan::spec.dp_replicate>,
          axis_of<axis::fsdp, Plan::spec.fsdp>, axis_of<axis::cp, Plan::spec.cp>, axis_of<axis::tp, Plan::spec.tp>,
          axis_of<axis::ep, Plan::spec.ep>, axis_of<axis::etp, Plan::spec.etp>, Plan> {
  static constexpr placed_axes axes{};
};

template <class Plan>
struct root_of {
  static constexpr mesh of() { return root_mesh(Plan::spec); }
};
template <class Plan>
struct dense_of {
  static constexpr mesh of() { return dense_mesh(Plan::spec); }
};
template <class Plan>
struct expert_of {
  static constexpr mesh of() { return expert_mesh(Plan::spec); }
};
template <class Plan, class Model>
struct attention_of {
  static constexpr mesh of() {
    const bool divides = ulysses_degree(Plan::spec) >= 1 && Model::spec.num_key_value_heads >= 1;
    return divides ? attention_mesh(Plan::spec, Model::spec) : mesh{};
  }
};

template <class Root>
struct root_view : plan_view<Root, root_of<Root>> {};
template <MeshRoot Root>
struct root_view<Root> {
  static constexpr placed_axes axes = placed(Root::spec);
};

}  // namespace detail

// ---- the views of a plan, and of a root of one's own
// post: the axes of NAME_mesh<Plan>() are those of NAME_mesh(Plan::spec), and group(view, rank) is select() of them all

template <class Root>
requires(PlanType<Root> || MeshRoot<Root>) constexpr auto root_mesh() {
  return detail::view_of_t<Root, detail::root_view<Root>>{};
}
template <PlanType Plan>
constexpr auto dense_mesh() {
  return detail::view_of_t<Plan, detail::plan_view<Plan, detail::dense_of<Plan>>>{};
}
template <PlanType Plan>
constexpr auto expert_mesh() {
  return detail::view_of_t<Plan, detail::plan_view<Plan, detail::expert_of<Plan>>>{};
}
template <PlanType Plan, ModelType Model>
constexpr auto attention_mesh() {
  return detail::view_of_t<Plan, detail::plan_view<Plan, detail::attention_of<Plan, Model>>>{};
}

// ---- where a rank stands

/// Position of `rank` on one axis of the view.
template <axis Name, MeshView View>
constexpr num coordinate(View, num rank) {
  return place_on(View::template degree<Name>, View::template stride<Name>, rank);
}

/// Positions of `rank` on all axes, in the order of the view.
/// post: coordinates(view, rank)[i] == coordinate<name of axis i>(view, rank)
template <MeshView View>
constexpr fixed_vector<num, num_axes> coordinates(View, num rank) {
  return detail::coordinates(View::axes, rank);
}

/// The ranks that differ from `rank` only on axes of the view, in row-major order of these.
/// post: group(view, rank).member(group(view, rank).index) == rank
/// post: coordinate(view.shape, group(view, rank).index, a) == coordinate<a>(view, rank)
template <MeshView View>
constexpr rank_group group(View, num rank) {
  return detail::group(View::axes, rank);
}

}  // namespace shardplan
#endif  // SHARDPLAN_MESH_VIEW_HPP

// ---- shardplan/mesh_algebra.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The algebra of views: select, flatten, unflatten and compose make one view from another, group asks one. Views are
// composed only when they are of one root; an axis used twice, or one that the view has not, does not compile either.
//
//   struct mine final : plan<fully_sharded<2>, context_parallel<2>, tensor_parallel<2>, expert_parallel<4>> {};
//   constexpr auto dense = dense_mesh<mine>();                        // (pp, dp_replicate, fsdp, cp, tp), 8 ranks
//   constexpr auto shards = select<axis::fsdp_cp>(flatten<axis::fsdp_cp, axis::fsdp, axis::cp>(dense));  // 4 ranks
//   constexpr auto both = compose(select<axis::tp>(dense), shards);   // (fsdp_cp, tp), 8 ranks
//   static_assert(shards.stride<axis::fsdp_cp> == 2 && group<axis::tp>(dense, 5).first == 4);
#ifndef SHARDPLAN_MESH_ALGEBRA_HPP
#define SHARDPLAN_MESH_ALGEBRA_HPP

namespace shardplan {

namespace error {
struct views_share_a_root {
  SHARDPLAN_SENTENCE("views must share a root to be composed; these are of different ranks");
};
struct composed_axes_are_apart {
  SHARDPLAN_SENTENCE(
      "axes that are composed must be apart: the stride of one a multiple of stride * degree of the other");
};
struct flattened_axes_are_neighbours {
  SHARDPLAN_SENTENCE("axes that are flattened must be neighbours in the view, the slowest named first");
};
struct parts_multiply_to_the_whole {
  SHARDPLAN_SENTENCE("the degrees of the parts must multiply to the degree of the axis that is split");
};
}  // namespace error

namespace fact {
template <num>
struct degree_of_whole;
template <num>
struct product_of_parts;
}  // namespace fact

namespace detail {

/// Faults of axes that come in the place of others: a name that the rest of the view has. Told only of a view that has
/// those others.
template <class View, axis_set Gone, class Index, axis... New>
struct new_faults;
template <class View, axis_set Gone, std::size_t... Index, axis... New>
struct new_faults<View, Gone, std::index_sequence<Index...>, New...>
    : fault<Index,
            (View::names | Gone) == View::names &&
                ((View::names.has(New) && !Gone.has(New)) || named_before({New...}, Index)),
            error::an_axis_stands_once, fact::axis_named<New>, View>... {};

template <class View, axis... Kept>
struct selected : asked_axes<View, Kept...> {
  static constexpr placed_axes keep(axis_set kept) {
    placed_axes out;
    for (const placed_axis& a : View::axes)
      if (kept.has(a.name)) out.push_back(a);
    return out;
  }
  static constexpr placed_axes axes = keep(set_of<Kept...>);
};

/// Whether `parts` stand one after the other in `axes`, and no rank lies between.
template <std::size_t Size>
constexpr bool neighbours(const placed_axes& axes, const axis (&parts)[Size]) {
  const std::size_t begin = find(axes, parts[0]);
  for (std::size_t i = 0; i < Size; ++i) {
    if (begin + i >= axes.size() || axes[begin + i].name != parts[i]) return false;
    const rank_group::step step = axes[begin + i].step;
    if (i > 0 && axes[begin + i - 1].step.stride != step.stride * step.degree) return false;
  }
  return true;
}

// `axes` with those from `begin` to `end` replaced.
constexpr placed_axes replaced(const placed_axes& axes, std::size_t begin, std::size_t end, const placed_axes& by) {
  placed_axes out;
  for (std::size_t i = 0; i < begin; ++i) out.push_back(axes[i]);
  for (const placed_axis& a : by) out.push_back(a);
  for (std::size_t i = end; i < axes.size(); ++i) out.push_back(axes[i]);
  return out;
}

/// `whole` in the place of `parts`; all as it was when they are no neighbours.
template <std::size_t Size>
constexpr placed_axes merged(const placed_axes& axes, const axis (&parts)[Size], axis whole) {
  if (!neighbours(axes, parts)) return axes;
  const std::size_t begin = find(axes, parts[0]), end = begin + Size;
  rank_group::step step = axes[end - 1].step;
  for (std::size_t i = begin; i + 1 < end; ++i) step.degree *= axes[i].step.degree;
  return replaced(axes, begin, end, {{{whole, step}}, 1});
}

template <class View, axis Whole, axis... Parts>
struct flattened : asked_axes<View, Parts...>,
                   new_faults<View, set_of<Parts...>, std::index_sequence<0>, Whole>,
                   fault<0, asked_axes<View, Parts...>::sound && !neighbours(View::axes, {Parts...}),
                         error::flattened_axes_are_neighbours, fact::axis_named<Parts>..., View> {
  static constexpr placed_axes axes = merged(View::axes, {Parts...}, Whole);
};

template <class... Axes>
constexpr num product_of() {
  num product = 1;
  ((product = checked_product(product, Axes::degree)), ...);
  return product;
}

template <class View, axis Whole, class... Parts>
struct unflattened : axis_in<View, Whole>,
                     new_faults<View, axis_set(Whole), std::index_sequence_for<Parts...>, Parts::name...>,
                     fault<0, View::names.has(Whole) && product_of<Parts...>() != axis_in<View, Whole>::step.degree,
                           error::parts_multiply_to_the_whole, fact::axis_named<Whole>,
                           fact::degree_of_whole<axis_in<View, Whole>::step.degree>,
                           fact::product_of_parts<product_of<Parts...>()>, Parts...> {
  static constexpr placed_axes split() {
    if (!View::names.has(Whole) || product_of<Parts...>() < 1) return View::axes;
    const std::size_t at = find(View::axes, Whole);
    return replaced(View::axes, at, at + 1, placed(mesh_made_of<Parts...>(), View::axes[at].step.stride));
  }
  static constexpr placed_axes axes = split();
};

/// Whether each place on the one axis goes with each on the other, and the ranks know both: the slower axis steps over
/// whole turns of the faster one. An axis of degree 1 is apart from all.
constexpr bool apart(rank_group::step a, rank_group::step b) {
  return a.degree == 1 || b.degree == 1 || a.stride % (b.stride * b.degree) == 0 ||
         b.stride % (a.stride * a.degree) == 0;
}

template <class A, class... Others>
struct overlap_faults
    : fault<0, A::name != Others::name && !apart({A::degree, A::stride}, {Others::degree, Others::stride}),
            error::composed_axes_are_apart, A, Others>... {};

/// The slower axis comes first. The order of axes of degree 1 means nothing to ranks; it is made the same for every
/// order of composing.
constexpr bool comes_before(const placed_axis& a, const placed_axis& b) {
  if (a.step.stride != b.step.stride) return a.step.stride > b.step.stride;
  if (a.step.degree != b.step.degree) return a.step.degree > b.step.degree;
  return a.name < b.name;
}
constexpr placed_axes in_order(placed_axes axes) {
  for (std::size_t i = 1; i < axes.size(); ++i)
    for (std::size_t k = i; k > 0 && comes_before(axes[k], axes[k - 1]); --k) {
      const placed_axis faster = axes[k - 1];
      axes[k - 1] = axes[k];
      axes[k] = faster;
    }
  return axes;
}

template <class A, class B>
struct composed;
template <class Root, class... A, class... B>
struct composed<mesh_view<Root, A...>, mesh_view<Root, B...>>
    : fault<0, mesh_view<Root, B...>::names.has(A::name), error::an_axis_stands_once, fact::axis_named<A::name>,
            mesh_view<Root, A...>, mesh_view<Root, B...>>...,
      overlap_faults<A, B...>... {
  static constexpr placed_axes join() {
    placed_axes out = mesh_view<Root, A...>::axes;
    for (const placed_axis& b : mesh_view<Root, B...>::axes) out.push_back(b);
    return in_order(out);
  }
  static constexpr placed_axes axes = join();
};
template <class RootA, class RootB, class... A, class... B>
struct composed<mesh_view<RootA, A...>, mesh_view<RootB, B...>> : error::views_share_a_root::broken_with<RootA, RootB> {
  static constexpr placed_axes axes = mesh_view<RootA, A...>::axes;
};

}  // namespace detail

/// Some axes of a view: a submesh, of which there is one for every place on the other axes.
/// post: coordinate<a>(select<A...>(v), rank) == coordinate<a>(v, rank) for each a of A
/// post: group(select<A...>(v), rank) is the ranks that agree with `rank` on all other axes of v
template <axis... Kept, MeshView View>
constexpr auto select(View) {
  return detail::view_of_t<typename View::root, detail::selected<View, Kept...>>{};
}

/// One axis in the place of neighbours, named from the slowest on.
/// post: coordinate<Whole>(result, r) == (coordinate<First>(v, r) * v.degree<Second> + coordinate<Second>(v, r)) * ...
/// post: group(result, r) has the members of group(v, r), in the same order
template <axis Whole, axis... Parts, MeshView View>
requires(sizeof...(Parts) >= 1) constexpr auto flatten(View) {
  return detail::view_of_t<typename View::root, detail::flattened<View, Whole, Parts...>>{};
}

/// Neighbours in the place of one axis: unflatten<axis::cp, axis_of<axis::cp_ring, 2>, axis_of<axis::cp_ulysses, 4>>.
/// post: flatten<Whole, names of Parts...>(result) == v, as a type
template <axis Whole, MeshAxis... Parts, MeshView View>
requires(sizeof...(Parts) >= 1) constexpr auto unflatten(View) {
  return detail::view_of_t<typename View::root, detail::unflattened<View, Whole, Parts...>>{};
}

/// The axes of two views of one root, the slower ones first.
/// post: coordinate<a>(compose(v, w), r) is that of v or of w, whichever has the axis; size is v.size * w.size
/// post: compose(v, w) == compose(w, v), as a type
template <MeshView A, MeshView B>
constexpr auto compose(A, B) {
  return detail::view_of_t<typename A::root, detail::composed<A, B>>{};
}

/// The group of `rank` over some axes of a view.
/// post: group<A...>(v, rank) == group(select<A...>(v), rank)
template <axis First, axis... Rest, MeshView View>
constexpr rank_group group(View view, num rank) {
  return group(select<First, Rest...>(view), rank);
}

}  // namespace shardplan
#endif  // SHARDPLAN_MESH_ALGEBRA_HPP

// ---- shardplan/plan_text.hpp ----
// SPDX-License-Identifier: Apache-2.0
// A plan as text, both ways: parse_plan (plan_parse.hpp) and print_plan; and as a literal: "tp=2,cp=2/ring"_plan.
#ifndef SHARDPLAN_PLAN_TEXT_HPP
#define SHARDPLAN_PLAN_TEXT_HPP

namespace shardplan {

/// Long enough for every plan whose degrees are in range.
using plan_text = fixed_text<4096>;

/// The canonical text: axes in the order of plan_axes, then the flags, then module overrides. An axis of degree 1 whose
/// options are the defaults is left out; for any other, the options in force are written, defaults too. One rank is
/// "tp=1". post: parse_plan(print_plan(p).view()).plan == p for every plan that a text can express
constexpr plan_text print_plan(const plan_spec& p) {
  plan_text out;
  const auto begin = [&](text_view name, num degree) {
    out.add(out.size() == 0 ? "" : ",").add(name).add("=").add(degree);
  };
  if (p.pp != 1 || p.schedule != schedule_kind::one_f_one_b || !p.stages.empty()) {
    begin("pp", p.pp);
    out.add("/").add(name_of(p.schedule));
    if (p.schedule == schedule_kind::interleaved) out.add(p.virtual_stages);
    for (std::size_t i = 0; i < p.stages.size(); ++i) out.add(i == 0 ? "/layers:" : "+").add(p.stages[i]);
  }
  if (p.dp_replicate != 1) begin("dp_replicate", p.dp_replicate);
  if (p.fsdp != 1 || p.zero != zero_stage::zero3) {
    begin("fsdp", p.fsdp);
    out.add("/").add(name_of(p.zero));
  }
  if (p.cp != 1 || p.method != cp_method::ulysses || p.layout != layout_kind::contiguous) {
    begin("cp", p.cp);
    if (p.method == cp_method::ulysses_ring)
      out.add("/ulysses").add(p.method_ulysses).add("xring").add(p.method_ring);
    else
      out.add("/").add(name_of(p.method));
    out.add("/").add(name_of(p.layout));
  }
  if (p.tp != 1 || p.sequence_parallel) {
    begin("tp", p.tp);
    if (p.sequence_parallel) out.add("/sp");
  }
  // A dispatch kind is in force whenever experts are cut, be it by etp alone.
  if (p.ep != 1 || p.etp != 1 || p.dispatch != dispatch_kind::dispatch) {
    begin("ep", p.ep);
    out.add("/").add(name_of(p.dispatch));
  }
  if (p.etp != 1) begin("etp", p.etp);
  const auto flag = [&](text_view name, bool given) {
    if (given) out.add(out.size() == 0 ? "" : ",").add(name);
  };
  flag("kv_replicate", p.kv_replicate);
  flag("vocab_pad", p.vocab_pad);
  flag("expert_pad", p.expert_pad);
  for (const module_override& o : p.modules)
    out.add(out.size() == 0 ? "" : ",").add(pattern_of(o).view()).add("=").add(name_of(o.style));
  if (out.size() == 0) out.add("tp=1");
  return out;
}

// ---- literal

namespace error {
/// Instantiated for what is wrong, where (from 0), and the character there: compilers print all three, and g++ the
/// sentence too. Others would print its characters as numbers.
template <plan_problem Problem, std::size_t Position, char Character, plan_message... Sentence>
struct plan_text_is_wrong_at_character {
  static_assert(Problem == plan_problem::none, "shardplan: the text of a plan must be readable at this character");
  static constexpr bool told = true;
};
}  // namespace error

namespace literals {
/// "tp=2,cp=2/ring"_plan: a plan_spec; a text that parse_plan refuses does not compile. Not consteval, for it need not
/// be: what is checked is the template argument. Clang 14 miscompiles a consteval that returns so large a value.
template <detail::literal_text Text>
constexpr plan_spec operator""_plan() {
  constexpr parsed_plan parsed = parse_plan(Text.view());
#if defined(__cpp_static_assert) && __cpp_static_assert >= 202306L
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wc++26-extensions"
#endif
  static_assert(parsed.ok(), parsed.message.view());
#if defined(__clang__)
#pragma clang diagnostic pop
#endif
#endif
  constexpr char at = parsed.position < Text.view().size() ? Text.view()[parsed.position] : '\0';
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
  static_assert(error::plan_text_is_wrong_at_character<parsed.problem, parsed.position, at, parsed.message>::told);
#else
  static_assert(error::plan_text_is_wrong_at_character<parsed.problem, parsed.position, at>::told);
#endif
  return parsed.plan;
}
}  // namespace literals

}  // namespace shardplan
#endif  // SHARDPLAN_PLAN_TEXT_HPP

// ---- shardplan/question.hpp ----
// SPDX-License-Identifier: Apache-2.0
// What is asked of the rules: a model, a plan, a batch, and on what. Below it the operands that rules name, each with
// the one expression that computes it.
#ifndef SHARDPLAN_QUESTION_HPP
#define SHARDPLAN_QUESTION_HPP

namespace shardplan {

enum class engine_kind : unsigned char { none, threads, mpi, nccl };

constexpr text_view name_of(engine_kind e) {
  constexpr text_view names[] = {"none", "threads", "mpi", "nccl"};
  return names[static_cast<std::size_t>(e)];
}

/// Is this plan legal for this model? What is not said (0, none) is not asked about.
struct question {
  model_spec model{};
  plan_spec plan{};
  batch_spec batch{};
  num world = 0;                           ///< ranks that there are; 0: as many as the plan needs
  engine_kind engine = engine_kind::none;  ///< none: what every engine can do
  num gpus_per_node = 0;                   ///< 0: not said

  friend constexpr bool operator==(const question&, const question&) = default;
};

/// Whether any layer holds experts, and whether any is dense: asked of every candidate plan, so they stop early.
constexpr bool has_moe_layers(const model_spec& m) {
  for (num layer = 0; layer < m.num_hidden_layers; ++layer)
    if (is_moe_layer(m, layer)) return true;
  return false;
}
constexpr bool has_dense_layers(const model_spec& m) {
  if (m.num_experts > 0 && m.decoder_sparse_step == 1 && m.mlp_only_layers == layer_set{}) return false;
  for (num layer = 0; layer < m.num_hidden_layers; ++layer)
    if (!is_moe_layer(m, layer)) return true;
  return false;
}

/// A row's real tokens: the documents' when they are listed; -1 when one of these is not a length, so that the sum of
/// what no row can hold is not formed.
constexpr num real_length(const batch_spec& b) {
  if (b.documents.empty()) return b.length;
  num sum = 0;
  for (num length : b.documents) {
    if (length < 0 || length > max_degree) return -1;
    sum += length;
  }
  return sum;
}

/// The longest run of positions: of the longest document, or the row.
constexpr num longest_document(const batch_spec& b) {
  num longest = b.documents.empty() ? b.length : 0;
  for (num length : b.documents) longest = length > longest ? length : longest;
  return longest;
}

constexpr num shortest_document(const batch_spec& b) {
  if (b.documents.empty()) return b.length;
  num shortest = b.documents[0];
  for (num length : b.documents) shortest = length < shortest ? length : shortest;
  return shortest;
}

/// Fewest layers of a listed stage that is neither the first nor the last; 1 when there is none.
constexpr num emptiest_inner_stage(const plan_spec& p) {
  num fewest = p.stages.size() < 3 ? 1 : p.stages[1];
  for (std::size_t s = 1; s + 1 < p.stages.size(); ++s) fewest = p.stages[s] < fewest ? p.stages[s] : fewest;
  return fewest;
}

/// Sum of the layers of explicit stages; -1 when one of them is not a possible number.
constexpr num sum_of_stages(const plan_spec& p) {
  num sum = 0;
  for (num layers : p.stages) {
    if (layers < 0 || layers > max_degree) return -1;
    sum += layers;
  }
  return sum;
}

/// Layers of `stages` stages as even as possible, the deeper ones shorter; empty when they do not fit a plan's list.
/// post: the result adds up to `layers`, and its counts differ by 1 at most
constexpr stage_layer_counts nearest_even_stages(num layers, num stages) {
  stage_layer_counts out;
  if (stages < 1 || stages > static_cast<num>(stage_layer_counts::capacity())) return out;
  for (num s = 0; s < stages; ++s) out.push_back(layers / stages + (s < layers % stages ? 1 : 0));
  return out;
}

// What is asked about modules, whose styles a plan may override layer by layer.

/// Over how many ranks the heads of a layer are cut.
struct attention_cut {
  num tensor = 1, ulysses = 1;
};
constexpr attention_cut attention_cut_of(const plan_spec& p, num layer) {
  return {tensor_degree(p, parameter_kind::q_proj, layer), ulysses_degree(p, method_in_layer(p, layer))};
}
/// Can `heads` be given whole to so many ranks, equally many each, or `copies` of a head to several?
constexpr bool divides_heads(num heads, num ranks, bool copies) {
  return heads >= 1 && ranks >= 1 && (heads % ranks == 0 || (copies && ranks % heads == 0));
}
/// Which heads a rule is about.
enum class cut_heads : unsigned char { queries, key_values, traded_key_values };
constexpr bool divides_heads(const question& q, attention_cut cut, cut_heads what) {
  const num both = checked_product(cut.tensor, cut.ulysses);
  if (what == cut_heads::queries) return divides_heads(q.model.num_attention_heads, both, false);
  return divides_heads(q.model.num_key_value_heads, what == cut_heads::key_values ? cut.tensor : both,
                       q.plan.kv_replicate);
}
/// The cut of the first layer that cannot cut its heads so; of the first layer when all can.
constexpr attention_cut strictest_cut(const question& q, cut_heads what) {
  const attention_cut first = attention_cut_of(q.plan, 0);
  if (q.plan.modules.empty()) return first;
  for (num layer = 0; layer < q.model.num_hidden_layers && layer < layer_set::capacity; ++layer)
    if (const attention_cut cut = attention_cut_of(q.plan, layer); !divides_heads(q, cut, what)) return cut;
  return first;
}
/// Of all layers: ranks that pass or gather keys and values.
constexpr num largest_ring_degree(const question& q) {
  if (q.plan.modules.empty()) return ring_degree(q.plan);
  num largest = 0;
  for (num layer = 0; layer < q.model.num_hidden_layers && layer < layer_set::capacity; ++layer) {
    const num ring = ring_degree(q.plan, method_in_layer(q.plan, layer));
    largest = ring > largest ? ring : largest;
  }
  return largest;
}
/// Is there a layer, with experts or dense as asked, whose feed-forward modules are cut?
constexpr bool any_feed_forward_is_cut(const question& q, bool experts) {
  if (q.plan.modules.empty()) return true;
  const parameter_kind kind = experts ? parameter_kind::experts_gate_up : parameter_kind::mlp_gate;
  for (num layer = 0; layer < q.model.num_hidden_layers && layer < layer_set::capacity; ++layer)
    if (is_moe_layer(q.model, layer) == experts && is_cut(q.plan, kind, layer)) return true;
  return false;
}
constexpr bool any_vocabulary_is_cut(const question& q) {
  return is_cut(q.plan, parameter_kind::embed_tokens) || is_cut(q.plan, head_weight(q.model));
}
/// Overrides that name nothing which the model has.
constexpr num overrides_of_nothing(const question& q) {
  num count = 0;
  for (const module_override& o : q.plan.modules) {
    bool found = o.names(bit_of(parameter_kind::embed_tokens) | bit_of(head_weight(q.model)), o.layer);
    for (num layer = 0; layer < q.model.num_hidden_layers && layer < layer_set::capacity; ++layer)
      found = found || o.names(detail::attention_bits | self_attn_bit |
                                   (is_moe_layer(q.model, layer) ? detail::expert_bits : detail::mlp_bits),
                               layer);
    count += found ? 0 : 1;
  }
  return count;
}
/// Blocks (attention, feed-forward, experts of a layer) of which some modules are cut and others are whole.
constexpr num blocks_cut_in_part(const question& q) {
  if (q.plan.modules.empty()) return 0;
  num count = 0;
  const auto mixed = [&](module_set block, num layer) {
    num cut = 0, whole = 0;
    detail::for_each_kind(block, [&](parameter_kind k) { ++(is_cut(q.plan, k, layer) ? cut : whole); });
    return cut > 0 && whole > 0;
  };
  for (num layer = 0; layer < q.model.num_hidden_layers && layer < layer_set::capacity; ++layer) {
    count += mixed(detail::attention_bits, layer) ? 1 : 0;
    count += mixed(is_moe_layer(q.model, layer) ? detail::expert_bits : detail::mlp_bits, layer) ? 1 : 0;
  }
  return count;
}

/// Facts: the types that a compiler prints, and the operands that compute them.
namespace fact {

// model
SHARDPLAN_OPERAND(num_layers, q.model.num_hidden_layers);
SHARDPLAN_OPERAND(num_moe_layers, ::shardplan::num_moe_layers(q.model));
SHARDPLAN_OPERAND(hidden_size, q.model.hidden_size);
SHARDPLAN_OPERAND(num_heads, q.model.num_attention_heads);
SHARDPLAN_OPERAND(num_kv_heads, q.model.num_key_value_heads);
SHARDPLAN_OPERAND(head_dim, q.model.head_dim);
SHARDPLAN_OPERAND(intermediate_size, q.model.intermediate_size);
SHARDPLAN_OPERAND(moe_intermediate_size, q.model.moe_intermediate_size);
SHARDPLAN_OPERAND(num_experts, q.model.num_experts);
SHARDPLAN_OPERAND(num_experts_per_token, q.model.num_experts_per_tok);
SHARDPLAN_OPERAND(vocab_size, q.model.vocab_size);
SHARDPLAN_OPERAND(max_positions, q.model.max_position_embeddings);
SHARDPLAN_OPERAND(sparse_step, q.model.decoder_sparse_step);
SHARDPLAN_OPERAND(sliding_window, q.model.sliding_window);

// degrees
SHARDPLAN_OPERAND(pipeline_degree, q.plan.pp);
SHARDPLAN_OPERAND(replicate_degree, q.plan.dp_replicate);
SHARDPLAN_OPERAND(shard_degree, q.plan.fsdp);
SHARDPLAN_OPERAND(context_degree, q.plan.cp);
SHARDPLAN_OPERAND(tensor_degree, q.plan.tp);
SHARDPLAN_OPERAND(expert_degree, q.plan.ep);
SHARDPLAN_OPERAND(expert_tensor_degree, q.plan.etp);
SHARDPLAN_OPERAND(ulysses_degree, ::shardplan::ulysses_degree(q.plan));
SHARDPLAN_OPERAND(ring_degree, ::shardplan::ring_degree(q.plan));

// degrees over which modules are cut, 1 where overrides leave them whole
namespace of_queries {
SHARDPLAN_OPERAND(tensor_degree, strictest_cut(q, cut_heads::queries).tensor);
SHARDPLAN_OPERAND(ulysses_degree, strictest_cut(q, cut_heads::queries).ulysses);
}  // namespace of_queries
namespace of_key_values {
SHARDPLAN_OPERAND(tensor_degree, strictest_cut(q, cut_heads::key_values).tensor);
}  // namespace of_key_values
namespace of_traded_key_values {
SHARDPLAN_OPERAND(tensor_degree, strictest_cut(q, cut_heads::traded_key_values).tensor);
SHARDPLAN_OPERAND(ulysses_degree, strictest_cut(q, cut_heads::traded_key_values).ulysses);
}  // namespace of_traded_key_values
namespace of_attention {
SHARDPLAN_OPERAND(ring_degree, largest_ring_degree(q));
}  // namespace of_attention
namespace of_dense {
SHARDPLAN_OPERAND(tensor_degree, any_feed_forward_is_cut(q, false) ? q.plan.tp : 1);
}  // namespace of_dense
namespace of_vocabulary {
SHARDPLAN_OPERAND(tensor_degree, any_vocabulary_is_cut(q) ? q.plan.tp : 1);
}  // namespace of_vocabulary
namespace of_experts {
SHARDPLAN_OPERAND(expert_degree, any_feed_forward_is_cut(q, true) ? q.plan.ep : 1);
SHARDPLAN_OPERAND(expert_tensor_degree, any_feed_forward_is_cut(q, true) ? q.plan.etp : 1);
}  // namespace of_experts

// options
SHARDPLAN_OPERAND(overrides_of_nothing, ::shardplan::overrides_of_nothing(q));
SHARDPLAN_OPERAND(blocks_cut_in_part, ::shardplan::blocks_cut_in_part(q));
SHARDPLAN_OPERAND(kv_replicate, q.plan.kv_replicate ? 1 : 0);
SHARDPLAN_OPERAND(vocab_pad, q.plan.vocab_pad ? 1 : 0);
SHARDPLAN_OPERAND(expert_pad, q.plan.expert_pad ? 1 : 0);
SHARDPLAN_OPERAND(virtual_stages, q.plan.virtual_stages);
SHARDPLAN_OPERAND(interleaved, q.plan.schedule == schedule_kind::interleaved ? 1 : 0);
SHARDPLAN_OPERAND(listed_stages, static_cast<num>(q.plan.stages.size()));
SHARDPLAN_OPERAND(emptiest_inner_stage, ::shardplan::emptiest_inner_stage(q.plan));
SHARDPLAN_OPERAND(listed_layers, sum_of_stages(q.plan));

// batch and world
SHARDPLAN_OPERAND(length, q.batch.length);
SHARDPLAN_OPERAND(document_tokens, real_length(q.batch));
SHARDPLAN_OPERAND(longest_document, ::shardplan::longest_document(q.batch));
SHARDPLAN_OPERAND(shortest_document, ::shardplan::shortest_document(q.batch));
SHARDPLAN_OPERAND(rows, q.batch.rows);
SHARDPLAN_OPERAND(given_micro_batches, q.batch.micro_batches);
SHARDPLAN_OPERAND(num_micro_batches, ::shardplan::micro_batches(q.plan, q.batch));
SHARDPLAN_OPERAND(world, q.world);
SHARDPLAN_OPERAND(plan_world, world_size(q.plan));
SHARDPLAN_OPERAND(gpus_per_node, q.gpus_per_node);

}  // namespace fact
}  // namespace shardplan
#endif  // SHARDPLAN_QUESTION_HPP

// ---- shardplan/rules/fixes.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Numbers for what a rule tells to write instead. Run-time help: bounded work, not the nearest in every case.
#ifndef SHARDPLAN_RULES_FIXES_HPP
#define SHARDPLAN_RULES_FIXES_HPP

namespace shardplan::detail {

inline constexpr num fix_search_steps = 4096;

/// "4 or 8": the divisors of `whole` next to `near`, below and above.
constexpr fix_text nearest_divisors(num whole, num near) {
  num below = near < whole ? near : whole, above = near;
  for (num i = 0; i < fix_search_steps && below > 1 && whole % below != 0; ++i) --below;
  if (below < 1 || whole % below != 0) below = 1;
  for (num i = 0; i < fix_search_steps && above < whole && whole % above != 0; ++i) ++above;
  fix_text out;
  out.add(below);
  if (above > below && above <= whole && whole % above == 0) out.add(" or ").add(above);
  return out;
}

/// "layers:3+2", or empty when the list would not fit a plan.
constexpr fix_text stage_list(const stage_layer_counts& stages) {
  fix_text out;
  for (std::size_t i = 0; i < stages.size(); ++i) out.add(i == 0 ? "layers:" : "+").add(stages[i]);
  return out.truncated ? fix_text{} : out;
}

}  // namespace shardplan::detail
#endif  // SHARDPLAN_RULES_FIXES_HPP

// ---- shardplan/rules/mesh.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Rules about degrees and the world: what must hold for the meshes of a plan to exist.
#ifndef SHARDPLAN_RULES_MESH_HPP
#define SHARDPLAN_RULES_MESH_HPP

namespace shardplan::rule {

struct every_degree_is_in_range {
  SHARDPLAN_SENTENCE("every degree must be at least 1 and at most 2147483647");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "a mesh axis has at least one rank, and ranks are int";
  using operands = list<fact::pipeline_degree_operand, fact::replicate_degree_operand, fact::shard_degree_operand,
                        fact::context_degree_operand, fact::tensor_degree_operand, fact::expert_degree_operand,
                        fact::expert_tensor_degree_operand>;
  static constexpr bool holds(num pp, num dp_replicate, num fsdp, num cp, num tp, num ep, num etp) {
    for (num degree : {pp, dp_replicate, fsdp, cp, tp, ep, etp})
      if (degree < 1 || degree > max_degree) return false;
    return true;
  }
  static constexpr fix_text fix(const question&) { return {"leave out an axis that is not used: its degree is 1"}; }
};

struct product_of_degrees_is_in_range {
  SHARDPLAN_SENTENCE("pp * dp_replicate * fsdp * cp * tp must be at most 2147483647");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "ranks are int";
  using operands = list<fact::pipeline_degree_operand, fact::replicate_degree_operand, fact::shard_degree_operand,
                        fact::context_degree_operand, fact::tensor_degree_operand>;
  using presumes = list<every_degree_is_in_range>;
  static constexpr bool holds(num pp, num dp_replicate, num fsdp, num cp, num tp) {
    num product = 1;
    for (num degree : {pp, dp_replicate, fsdp, cp, tp})
      if ((product *= degree) > max_degree) return false;  // each factor is below 2^31: no overflow before the test
    return true;
  }
  static constexpr fix_text fix(const question&) { return {"lower a degree"}; }
};

struct world_is_the_product_of_degrees {
  SHARDPLAN_SENTENCE("world must equal pp * dp_replicate * fsdp * cp * tp");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "every rank has one place in the mesh; ep and etp add no ranks";
  using operands = list<fact::world_operand, fact::pipeline_degree_operand, fact::replicate_degree_operand,
                        fact::shard_degree_operand, fact::context_degree_operand, fact::tensor_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range>;
  static constexpr bool applies(const question& q) { return q.world != 0; }
  static constexpr bool holds(num world, num pp, num dp_replicate, num fsdp, num cp, num tp) {
    return world == pp * dp_replicate * fsdp * cp * tp;
  }
  static constexpr fix_text fix(const question& q) {
    const plan_spec& p = q.plan;
    fix_text out;
    out.add(p.pp).add(" * ").add(p.dp_replicate).add(" * ").add(p.fsdp).add(" * ").add(p.cp).add(" * ").add(p.tp);
    out.add(" = ").add(world_size(p)).add(", not ").add(q.world).add(": start ").add(world_size(p));
    return out.add(" ranks, or write * for one degree");
  }
};

struct expert_degrees_divide_the_ranks_below_replicas {
  SHARDPLAN_SENTENCE("ep * etp must divide fsdp * cp * tp");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "the expert view is efsdp * ep * etp = fsdp * cp * tp: EP adds no ranks";
  using operands = list<fact::expert_degree_operand, fact::expert_tensor_degree_operand, fact::shard_degree_operand,
                        fact::context_degree_operand, fact::tensor_degree_operand, fact::replicate_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range>;
  static constexpr bool holds(num ep, num etp, num fsdp, num cp, num tp, num /*dp_replicate: for the fix*/) {
    return fsdp * cp * tp % (ep * etp) == 0;
  }
  static constexpr fix_text fix(const question& q) {
    const plan_spec& p = q.plan;
    fix_text out;
    if (p.dp_replicate * p.fsdp * p.cp * p.tp % (p.ep * p.etp) == 0) {
      // Replicas sit outside the expert view; the same ranks as data-parallel shards with replicated parameters do not.
      out.add("write fsdp=").add(p.dp_replicate * p.fsdp).add("/zero1 instead of dp_replicate=").add(p.dp_replicate);
      return out.add(": replicas are not part of the expert mesh");
    }
    out.add("choose ep * etp among the divisors of ").add(p.fsdp * p.cp * p.tp).add(", such as ");
    return out.add(detail::nearest_divisors(p.fsdp * p.cp * p.tp, p.ep * p.etp).view());
  }
};

namespace detail_nodes {
/// Groups of `size` neighbouring ranks stay within nodes of `node` ranks.
constexpr bool fit(num size, num node, num world) { return world <= node || node % size == 0; }
}  // namespace detail_nodes

struct tensor_groups_stay_in_a_node {
  SHARDPLAN_SENTENCE("tp must divide gpus_per_node, or tensor-parallel groups cross nodes");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "tensor parallelism communicates in every layer";
  using operands = list<fact::tensor_degree_operand, fact::gpus_per_node_operand, fact::plan_world_operand>;
  using presumes = list<product_of_degrees_is_in_range>;
  static constexpr bool applies(const question& q) { return q.gpus_per_node > 0; }
  static constexpr bool holds(num tp, num node, num world) { return detail_nodes::fit(tp, node, world); }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"tp that fits a node: "}.add(detail::nearest_divisors(q.gpus_per_node, q.plan.tp).view());
  }
};

struct expert_groups_stay_in_a_node {
  SHARDPLAN_SENTENCE("ep * etp must divide gpus_per_node, or expert groups cross nodes");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "every MoE layer sends its tokens to the experts and back";
  using operands = list<fact::expert_degree_operand, fact::expert_tensor_degree_operand, fact::gpus_per_node_operand,
                        fact::plan_world_operand>;
  using presumes = list<expert_degrees_divide_the_ranks_below_replicas>;
  static constexpr bool applies(const question& q) { return q.gpus_per_node > 0 && q.model.num_experts > 0; }
  static constexpr bool holds(num ep, num etp, num node, num world) { return detail_nodes::fit(ep * etp, node, world); }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"ep * etp that fits a node: "}.add(
        detail::nearest_divisors(q.gpus_per_node, q.plan.ep * q.plan.etp).view());
  }
};

using mesh_rules =
    list<every_degree_is_in_range, product_of_degrees_is_in_range, world_is_the_product_of_degrees,
         expert_degrees_divide_the_ranks_below_replicas, tensor_groups_stay_in_a_node, expert_groups_stay_in_a_node>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_MESH_HPP

// ---- shardplan/rules/sequence.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Rules about the batch, the context-parallel methods and layouts. No rule asks for a length: rows are padded.
#ifndef SHARDPLAN_RULES_SEQUENCE_HPP
#define SHARDPLAN_RULES_SEQUENCE_HPP

namespace shardplan::rule {

struct ulysses_times_ring_is_the_context_degree {
  SHARDPLAN_SENTENCE("the Ulysses degree * the ring degree must equal cp");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "cp is its two sub-axes";
  using operands = list<fact::ulysses_degree_operand, fact::ring_degree_operand, fact::context_degree_operand>;
  using presumes = list<every_degree_is_in_range>;
  static constexpr bool applies(const question& q) { return q.plan.method == cp_method::ulysses_ring; }
  static constexpr bool holds(num ulysses, num ring, num cp) { return checked_product(ulysses, ring) == cp; }
  static constexpr fix_text fix(const question& q) {
    fix_text out;
    if (q.plan.method_ulysses > 0 && q.plan.cp % q.plan.method_ulysses == 0)
      return out.add("write cp=")
          .add(q.plan.cp)
          .add("/ulysses")
          .add(q.plan.method_ulysses)
          .add("xring")
          .add(q.plan.cp / q.plan.method_ulysses);
    return out.add("write cp=").add(q.plan.cp).add("/ulysses1xring").add(q.plan.cp);
  }
};

struct the_layout_cuts_the_row {
  SHARDPLAN_SENTENCE("cp must be 1 under the layout full, which leaves every rank the whole row");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "context parallelism is a cut of the row";
  using operands = list<fact::context_degree_operand>;
  using presumes = list<every_degree_is_in_range>;
  static constexpr bool applies(const question& q) { return q.plan.layout == layout_kind::full; }
  static constexpr bool holds(num cp) { return cp == 1; }
  static constexpr fix_text fix(const question&) { return {"contiguous, zigzag or zigzag_documents"}; }
};

struct batch_sizes_are_in_range {
  SHARDPLAN_SENTENCE("length, rows and micro-batches must not be negative, and at most 2147483647");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "0 says that a size is not known; a negative one says nothing";
  using operands = list<fact::length_operand, fact::rows_operand, fact::given_micro_batches_operand>;
  static constexpr bool holds(num length, num rows, num micro_batches) {
    for (num size : {length, rows, micro_batches})
      if (size < 0 || size > max_degree) return false;
    return true;
  }
  static constexpr fix_text fix(const question&) { return {"leave out what is not known"}; }
};

struct documents_fill_the_row {
  SHARDPLAN_SENTENCE("every packed document must have a token, and length must be their sum");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "what is not a document's token would be padding, which is added later";
  using operands = list<fact::document_tokens_operand, fact::length_operand, fact::shortest_document_operand>;
  using presumes = list<batch_sizes_are_in_range>;
  static constexpr bool applies(const question& q) { return !q.batch.documents.empty(); }
  static constexpr bool holds(num tokens, num length, num shortest) {
    return shortest >= 1 && tokens >= 1 && tokens <= max_degree && (length == 0 || length == tokens);
  }
  static constexpr fix_text fix(const question&) { return {"leave out length: the documents tell it"}; }
};

struct rows_divide_over_data_and_micro_batches {
  SHARDPLAN_SENTENCE("rows must be divisible by dp_replicate * fsdp * micro-batches");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "the local batch of a micro-batch is a whole number of rows, at least 1";
  using operands = list<fact::rows_operand, fact::replicate_degree_operand, fact::shard_degree_operand,
                        fact::num_micro_batches_operand>;
  using presumes = list<product_of_degrees_is_in_range, batch_sizes_are_in_range>;
  static constexpr bool applies(const question& q) { return q.batch.rows != 0; }
  static constexpr bool holds(num rows, num dp_replicate, num fsdp, num micro_batches) {
    return rows % (dp_replicate * fsdp * micro_batches) == 0;
  }
  static constexpr fix_text fix(const question& q) {
    const num multiple = num_data_shards(q.plan) * micro_batches(q.plan, q.batch);
    const num below = q.batch.rows / multiple * multiple;
    fix_text out;
    if (below > 0) out.add(below).add(" or ");
    return out.add(below + multiple).add(" rows");
  }
};

struct length_fits_the_positions {
  SHARDPLAN_SENTENCE("length must be at most max_position_embeddings, unless rotary scaling says otherwise");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "positions beyond it were never trained";
  using operands = list<fact::longest_document_operand, fact::max_positions_operand>;
  using presumes = list<batch_sizes_are_in_range>;
  static constexpr bool applies(const question& q) { return !q.model.scaled_rotary; }
  static constexpr bool holds(num length, num positions) { return length <= positions; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"rows or documents of at most "}.add(q.model.max_position_embeddings).add(" tokens");
  }
};

struct sequence_parallel_has_a_tensor_axis {
  SHARDPLAN_SENTENCE("tp must be above 1 for sp to have an effect");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "sequence parallelism cuts over the ranks of tp";
  using operands = list<fact::tensor_degree_operand>;
  static constexpr bool applies(const question& q) { return q.plan.sequence_parallel; }
  static constexpr bool holds(num tp) { return tp != 1; }
  static constexpr fix_text fix(const question&) { return {"leave out sp"}; }
};

struct zigzag_balances_a_ring {
  SHARDPLAN_SENTENCE("the ring degree must be above 1 for zigzag to balance anything");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "under pure Ulysses every rank attends whole rows with its heads";
  using operands = list<fact::of_attention::ring_degree_operand, fact::context_degree_operand>;
  static constexpr bool applies(const question& q) { return needs_balance(q.plan.layout); }
  static constexpr bool holds(num ring, num) { return ring != 1; }
  static constexpr fix_text fix(const question&) { return {"write contiguous, or ring"}; }
  static constexpr bool needs_balance(layout_kind k) {
    return k == layout_kind::zigzag || k == layout_kind::zigzag_documents;
  }
};

struct zigzag_balances_full_attention {
  SHARDPLAN_SENTENCE("sliding_window must be 0 for zigzag to balance the work");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "with a window every token attends equally many keys, whatever its place";
  using operands = list<fact::sliding_window_operand, fact::of_attention::ring_degree_operand>;
  using presumes = list<zigzag_balances_a_ring>;
  static constexpr bool applies(const question& q) { return zigzag_balances_a_ring::needs_balance(q.plan.layout); }
  static constexpr bool holds(num window, num) { return window == 0; }
  static constexpr fix_text fix(const question&) { return {"write contiguous"}; }
};

using sequence_rules =
    list<ulysses_times_ring_is_the_context_degree, the_layout_cuts_the_row, batch_sizes_are_in_range,
         documents_fill_the_row, rows_divide_over_data_and_micro_batches, length_fits_the_positions,
         sequence_parallel_has_a_tensor_axis, zigzag_balances_a_ring, zigzag_balances_full_attention>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_SEQUENCE_HPP

// ---- shardplan/rules/heads.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Rules about the sizes of a model, its heads and the widths that tensor parallelism cuts.
#ifndef SHARDPLAN_RULES_HEADS_HPP
#define SHARDPLAN_RULES_HEADS_HPP

namespace shardplan::rule {

struct every_model_size_is_in_range {
  SHARDPLAN_SENTENCE("every size of a model must be at least 1 and at most 2147483647");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "a tensor without elements computes nothing";
  using operands = list<fact::num_layers_operand, fact::hidden_size_operand, fact::num_heads_operand,
                        fact::num_kv_heads_operand, fact::head_dim_operand, fact::vocab_size_operand>;
  static constexpr bool holds(num layers, num hidden, num heads, num kv_heads, num head_dim, num vocab) {
    for (num size : {layers, hidden, heads, kv_heads, head_dim, vocab})
      if (size < 1 || size > max_degree) return false;
    return true;
  }
  static constexpr fix_text fix(const question&) { return {"correct the model's configuration"}; }
};

struct num_layers_fits_the_layer_set {
  SHARDPLAN_SENTENCE("num_layers must be at most 512, which a set of layers can hold");
  static_assert(layer_set::capacity == 512, "the sentence says the number");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "layer_set in model.hpp, a limit of this library";
  using operands = list<fact::num_layers_operand>;
  using presumes = list<every_model_size_is_in_range>;
  static constexpr bool holds(num layers) { return layers <= layer_set::capacity; }
  static constexpr fix_text fix(const question&) { return {"raise layer_set::capacity in a copy of the library"}; }
};

struct heads_divide_over_kv_heads {
  SHARDPLAN_SENTENCE("num_heads must be divisible by num_kv_heads");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "grouped-query attention: every key/value head serves equally many heads";
  using operands = list<fact::num_heads_operand, fact::num_kv_heads_operand>;
  using presumes = list<every_model_size_is_in_range>;
  static constexpr bool holds(num heads, num kv_heads) { return heads % kv_heads == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"num_kv_heads that divides: "}.add(
        detail::nearest_divisors(q.model.num_attention_heads, q.model.num_key_value_heads).view());
  }
};

struct head_dim_is_even {
  SHARDPLAN_SENTENCE("head_dim must be even");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "rotary embedding turns pairs of components";
  using operands = list<fact::head_dim_operand>;
  using presumes = list<every_model_size_is_in_range>;
  static constexpr bool holds(num head_dim) { return head_dim % 2 == 0; }
  static constexpr fix_text fix(const question& q) { return fix_text{"head_dim "}.add(q.model.head_dim + 1); }
};

struct heads_divide_over_tensor_and_ulysses {
  SHARDPLAN_SENTENCE("num_heads must be divisible by tp * the Ulysses degree");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "tensor parallelism and Ulysses give every rank whole heads, equally many";
  using operands =
      list<fact::num_heads_operand, fact::of_queries::tensor_degree_operand, fact::of_queries::ulysses_degree_operand>;
  using presumes =
      list<product_of_degrees_is_in_range, every_model_size_is_in_range, ulysses_times_ring_is_the_context_degree>;
  static constexpr bool holds(num heads, num tp, num ulysses) { return heads % (tp * ulysses) == 0; }
  static constexpr fix_text fix(const question& q) {
    const auto [tp, ulysses] = strictest_cut(q, cut_heads::queries);
    fix_text out;
    if (ulysses != ulysses_degree(q.plan)) return {"leave out the override that gives layers ulysses"};
    if (ulysses > 1 && q.model.num_attention_heads % tp == 0)
      return out.add("write cp=")
          .add(q.plan.cp)
          .add("/ring or cp=")
          .add(q.plan.cp)
          .add("/all_gather, which ask nothing beyond tp");
    out.add(ulysses > 1 ? "tp * the Ulysses degree" : "tp").add(" that divides ").add(q.model.num_attention_heads);
    return out.add(": ").add(detail::nearest_divisors(q.model.num_attention_heads, tp * ulysses).view());
  }
};

struct kv_heads_divide_over_tensor {
  SHARDPLAN_SENTENCE("num_kv_heads must be divisible by tp, or with kv_replicate divide it");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "k_proj and v_proj are cut by tp in whole heads, or copied whole";
  using operands =
      list<fact::num_kv_heads_operand, fact::of_key_values::tensor_degree_operand, fact::kv_replicate_operand>;
  using presumes = list<product_of_degrees_is_in_range, every_model_size_is_in_range>;
  static constexpr bool holds(num kv_heads, num tp, num replicate) {
    return kv_heads % tp == 0 || (replicate != 0 && tp % kv_heads == 0);
  }
  static constexpr fix_text fix(const question& q) {
    const num kv_heads = q.model.num_key_value_heads, tp = strictest_cut(q, cut_heads::key_values).tensor;
    fix_text out;
    if (tp % kv_heads == 0)
      return out.add("add kv_replicate: each key/value head is held by ").add(tp / kv_heads).add(" ranks");
    out.add("tp that divides ").add(kv_heads).add(": ").add(detail::nearest_divisors(kv_heads, tp).view());
    return out.add("; or with kv_replicate a multiple of ").add(kv_heads);
  }
};

struct kv_heads_divide_over_tensor_and_ulysses {
  SHARDPLAN_SENTENCE("num_kv_heads must be divisible by tp * the Ulysses degree, or with kv_replicate divide it");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "Ulysses gives every rank whole key/value heads, equally many, or copies";
  using operands = list<fact::num_kv_heads_operand, fact::of_traded_key_values::tensor_degree_operand,
                        fact::of_traded_key_values::ulysses_degree_operand, fact::kv_replicate_operand>;
  // The first half: this one alone lets tp 6, U 2, K 4 pass, where k_proj has no uniform cut.
  using presumes = list<kv_heads_divide_over_tensor, ulysses_times_ring_is_the_context_degree>;
  static constexpr bool holds(num kv_heads, num tp, num ulysses, num replicate) {
    return kv_heads % (tp * ulysses) == 0 || (replicate != 0 && tp * ulysses % kv_heads == 0);
  }
  static constexpr fix_text fix(const question& q) {
    const auto [tp, ulysses] = strictest_cut(q, cut_heads::traded_key_values);
    if (ulysses != ulysses_degree(q.plan)) return {"leave out the override that gives layers ulysses"};
    const num kv_heads = q.model.num_key_value_heads, heads = tp * ulysses;
    fix_text out;
    if (heads % kv_heads == 0) return out.add("add kv_replicate, or write cp=").add(q.plan.cp).add("/ring");
    return out.add("write cp=")
        .add(q.plan.cp)
        .add("/ring or cp=")
        .add(q.plan.cp)
        .add("/all_gather, which ask nothing beyond tp");
  }
};

struct dense_width_divides_over_tensor {
  SHARDPLAN_SENTENCE("intermediate_size must be at least 1 and divisible by tp");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr text_view source = "gate and up are cut by column, down by row; the size is logical, not 2 * I";
  using operands = list<fact::intermediate_size_operand, fact::of_dense::tensor_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range, num_layers_fits_the_layer_set>;
  static constexpr bool applies(const question& q) { return has_dense_layers(q.model); }
  static constexpr bool holds(num width, num tp) { return width >= 1 && width <= max_degree && width % tp == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"tp that divides: "}.add(detail::nearest_divisors(q.model.intermediate_size, q.plan.tp).view());
  }
};

struct vocabulary_divides_over_tensor {
  SHARDPLAN_SENTENCE("vocab_size must be divisible by tp, or vocab_pad given");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr text_view source = "embedding and head are cut by vocabulary row; padding is masked, not stored";
  using operands = list<fact::vocab_size_operand, fact::of_vocabulary::tensor_degree_operand, fact::vocab_pad_operand>;
  using presumes = list<product_of_degrees_is_in_range, every_model_size_is_in_range>;
  static constexpr bool holds(num vocab, num tp, num pad) { return pad != 0 || vocab % tp == 0; }
  static constexpr fix_text fix(const question&) { return {"add vocab_pad"}; }
};

using model_rules =
    list<every_model_size_is_in_range, num_layers_fits_the_layer_set, heads_divide_over_kv_heads, head_dim_is_even>;
using head_rules =
    list<heads_divide_over_tensor_and_ulysses, kv_heads_divide_over_tensor, kv_heads_divide_over_tensor_and_ulysses,
         dense_width_divides_over_tensor, vocabulary_divides_over_tensor>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_HEADS_HPP

// ---- shardplan/rules/experts.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Rules about experts: how many there are, how they are cut, and how tokens reach them.
#ifndef SHARDPLAN_RULES_EXPERTS_HPP
#define SHARDPLAN_RULES_EXPERTS_HPP

namespace shardplan::rule {

struct expert_counts_are_in_range {
  SHARDPLAN_SENTENCE("num_experts and sliding_window must not be negative, and decoder_sparse_step be at least 1");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "0 experts make a dense model, window 0 full attention";
  using operands = list<fact::num_experts_operand, fact::sliding_window_operand, fact::sparse_step_operand>;
  static constexpr bool holds(num experts, num window, num step) {
    return experts >= 0 && experts <= max_degree && window >= 0 && (experts == 0 || step >= 1);
  }
  static constexpr fix_text fix(const question&) { return {"correct the model's configuration"}; }
};

struct experts_per_token_fit_the_experts {
  SHARDPLAN_SENTENCE("num_experts_per_token must be at least 1 and at most num_experts");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "the router chooses distinct experts";
  using operands = list<fact::num_experts_per_token_operand, fact::num_experts_operand>;
  using presumes = list<num_layers_fits_the_layer_set, expert_counts_are_in_range>;
  static constexpr bool applies(const question& q) { return has_moe_layers(q.model); }
  static constexpr bool holds(num top_k, num experts) { return top_k >= 1 && top_k <= experts; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"num_experts_per_tok from 1 to "}.add(q.model.num_experts);
  }
};

struct expert_width_divides_over_expert_tensor {
  SHARDPLAN_SENTENCE("moe_intermediate_size must be at least 1 and divisible by etp");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "gate and up of an expert are cut by column, down by row";
  using operands = list<fact::moe_intermediate_size_operand, fact::of_experts::expert_tensor_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range, num_layers_fits_the_layer_set, expert_counts_are_in_range>;
  static constexpr bool applies(const question& q) { return has_moe_layers(q.model); }
  static constexpr bool holds(num width, num etp) { return width >= 1 && width <= max_degree && width % etp == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"etp that divides: "}.add(
        detail::nearest_divisors(q.model.moe_intermediate_size, q.plan.etp).view());
  }
};

struct experts_divide_over_expert_degree {
  SHARDPLAN_SENTENCE("num_experts must be divisible by ep, or expert_pad given");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr text_view source = "every rank has equally many expert slots; the router cannot choose empty ones";
  using operands = list<fact::num_experts_operand, fact::of_experts::expert_degree_operand, fact::expert_pad_operand>;
  using presumes = list<product_of_degrees_is_in_range, num_layers_fits_the_layer_set, expert_counts_are_in_range>;
  static constexpr bool applies(const question& q) { return has_moe_layers(q.model); }
  static constexpr bool holds(num experts, num ep, num pad) { return pad != 0 || experts % ep == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"add expert_pad, or ep that divides: "}.add(
        detail::nearest_divisors(q.model.num_experts, q.plan.ep).view());
  }
};

struct all_reduce_experts_stay_in_the_tensor_group {
  SHARDPLAN_SENTENCE("tp must be divisible by ep * etp under dispatch kind all_reduce");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "every rank of an expert group must hold the same rows: tp ranks do";
  using operands = list<fact::tensor_degree_operand, fact::of_experts::expert_degree_operand,
                        fact::of_experts::expert_tensor_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range, num_layers_fits_the_layer_set, expert_counts_are_in_range>;
  static constexpr bool applies(const question& q) {
    return q.plan.dispatch == dispatch_kind::all_reduce && has_moe_layers(q.model);
  }
  static constexpr bool holds(num tp, num ep, num etp) { return tp % (ep * etp) == 0; }
  static constexpr fix_text fix(const question& q) {
    fix_text out;
    return out.add("write ep=").add(q.plan.ep).add("/dispatch or ep=").add(q.plan.ep).add("/all_gather");
  }
};

struct expert_degrees_have_experts {
  SHARDPLAN_SENTENCE("a model must have experts for ep or etp to change anything");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "ep and etp cut experts alone";
  using operands = list<fact::num_moe_layers_operand, fact::expert_degree_operand, fact::expert_tensor_degree_operand>;
  using presumes = list<num_layers_fits_the_layer_set>;
  static constexpr bool holds(num moe_layers, num ep, num etp) { return moe_layers > 0 || (ep <= 1 && etp <= 1); }
  static constexpr fix_text fix(const question&) { return {"leave out ep and etp"}; }
};

using expert_rules =
    list<expert_counts_are_in_range, experts_per_token_fit_the_experts, expert_width_divides_over_expert_tensor,
         experts_divide_over_expert_degree, all_reduce_experts_stay_in_the_tensor_group, expert_degrees_have_experts>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_EXPERTS_HPP

// ---- shardplan/rules/modules.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Rules about module overrides: what they name, and what must be cut together.
#ifndef SHARDPLAN_RULES_MODULES_HPP
#define SHARDPLAN_RULES_MODULES_HPP

namespace shardplan::rule {

struct overrides_name_modules_of_the_model {
  SHARDPLAN_SENTENCE("every module override must name modules that the model has");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] =
      "an override of nothing is a mistyped one: a layer too deep, experts of a dense model";
  using operands = list<fact::overrides_of_nothing_operand, fact::num_layers_operand, fact::num_moe_layers_operand>;
  using presumes = list<num_layers_fits_the_layer_set>;
  static constexpr bool holds(num of_nothing, num, num) { return of_nothing == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{"layers are 0 to "}
        .add(q.model.num_hidden_layers - 1)
        .add(
            "; layers with experts have mlp.experts, others mlp.gate_proj, up_proj and down_proj; a tied head has no "
            "module");
  }
};

struct modules_of_a_block_are_cut_together {
  SHARDPLAN_SENTENCE("all modules of an attention, a feed-forward layer or its experts must be cut, or none");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "what a column-parallel module leaves cut, a whole one cannot read";
  using operands = list<fact::blocks_cut_in_part_operand>;
  static constexpr bool holds(num in_part) { return in_part == 0; }
  static constexpr fix_text fix(const question&) {
    return {"override the block as a whole, for example layers.*.self_attn=replicated"};
  }
};

using module_rules = list<overrides_name_modules_of_the_model, modules_of_a_block_are_cut_together>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_MODULES_HPP

// ---- shardplan/rules/pipeline.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Rules about stages, their layers and the micro-batches that flow through them.
#ifndef SHARDPLAN_RULES_PIPELINE_HPP
#define SHARDPLAN_RULES_PIPELINE_HPP

namespace shardplan::rule {

struct virtual_stages_belong_to_interleaved {
  SHARDPLAN_SENTENCE("virtual_stages must be at least 2 when the schedule is interleaved, and 1 otherwise");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "the other schedules visit every rank once";
  using operands = list<fact::virtual_stages_operand, fact::interleaved_operand>;
  static constexpr bool holds(num stages, num interleaved) {
    return interleaved != 0 ? stages >= 2 && stages <= max_degree : stages == 1;
  }
  static constexpr fix_text fix(const question&) { return {"write pp=N/interleaved2, or another schedule"}; }
};

struct num_stages_fits_the_stage_list {
  SHARDPLAN_SENTENCE("pp * virtual_stages must be at most 128, which a list of stages can hold");
  static_assert(stage_layer_counts::capacity() == 128, "the sentence says the number");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "stage_layer_counts in plan.hpp, a limit of this library";
  using operands = list<fact::pipeline_degree_operand, fact::virtual_stages_operand>;
  using presumes = list<product_of_degrees_is_in_range, virtual_stages_belong_to_interleaved>;
  static constexpr bool holds(num pp, num virtual_stages) {
    return pp * virtual_stages <= static_cast<num>(stage_layer_counts::capacity());
  }
  static constexpr fix_text fix(const question&) { return {"use fewer stages"}; }
};

struct even_stages_divide_the_layers {
  SHARDPLAN_SENTENCE("num_layers must be divisible by pp * virtual_stages, or the stages listed");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "stages that are not listed are equal";
  using operands = list<fact::num_layers_operand, fact::pipeline_degree_operand, fact::virtual_stages_operand>;
  using presumes = list<num_stages_fits_the_stage_list, every_model_size_is_in_range>;
  static constexpr bool applies(const question& q) { return q.plan.stages.empty(); }
  static constexpr bool holds(num layers, num pp, num virtual_stages) { return layers % (pp * virtual_stages) == 0; }
  static constexpr fix_text fix(const question& q) {
    const fix_text stages = detail::stage_list(nearest_even_stages(q.model.num_hidden_layers, num_stages(q.plan)));
    fix_text out;
    return out.add("write pp=").add(q.plan.pp).add("/").add(stages.view());
  }
};

struct one_listed_stage_per_stage {
  SHARDPLAN_SENTENCE("the stages listed must be pp * virtual_stages");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "stages are disjoint, complete and ordered";
  using operands = list<fact::listed_stages_operand, fact::pipeline_degree_operand, fact::virtual_stages_operand>;
  using presumes = list<num_stages_fits_the_stage_list>;
  static constexpr bool applies(const question& q) { return !q.plan.stages.empty(); }
  static constexpr bool holds(num listed, num pp, num virtual_stages) { return listed == pp * virtual_stages; }
  static constexpr fix_text fix(const question& q) {
    fix_text out;
    return out.add("write pp=")
        .add(q.plan.pp)
        .add("/")
        .add(detail::stage_list(nearest_even_stages(q.model.num_hidden_layers, num_stages(q.plan))).view());
  }
};

struct listed_stages_add_up_to_the_layers {
  SHARDPLAN_SENTENCE("the layers of the stages listed must add up to num_layers");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "stages are disjoint, complete and ordered";
  using operands = list<fact::listed_layers_operand, fact::num_layers_operand>;
  using presumes = list<num_stages_fits_the_stage_list, every_model_size_is_in_range>;
  static constexpr bool applies(const question& q) { return !q.plan.stages.empty(); }
  static constexpr bool holds(num listed, num layers) { return listed == layers; }
  static constexpr fix_text fix(const question& q) { return one_listed_stage_per_stage::fix(q); }
};

struct inner_stages_have_layers {
  SHARDPLAN_SENTENCE("every stage but the first and the last must have a layer to do any work");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "a first or last stage may hold the embedding or the head alone";
  using operands = list<fact::emptiest_inner_stage_operand>;
  using presumes = list<one_listed_stage_per_stage, listed_stages_add_up_to_the_layers>;
  static constexpr bool applies(const question& q) { return !q.plan.stages.empty(); }
  static constexpr bool holds(num layers) { return layers > 0; }
  static constexpr fix_text fix(const question& q) { return one_listed_stage_per_stage::fix(q); }
};

struct micro_batches_fill_the_rounds {
  SHARDPLAN_SENTENCE("micro-batches must be divisible by pp under an interleaved schedule");
  static constexpr rule_kind kind = rule_kind::math;
  static constexpr char source[] = "the interleaved schedule is defined in rounds of pp micro-batches";
  using operands = list<fact::num_micro_batches_operand, fact::pipeline_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range, batch_sizes_are_in_range>;
  static constexpr bool applies(const question& q) { return q.plan.schedule == schedule_kind::interleaved; }
  static constexpr bool holds(num micro_batches, num pp) { return micro_batches % pp == 0; }
  static constexpr fix_text fix(const question& q) {
    return fix_text{}.add(round_up(micro_batches(q.plan, q.batch), q.plan.pp)).add(" micro-batches, or 1f1b");
  }
};

struct micro_batches_fill_the_pipeline {
  SHARDPLAN_SENTENCE("micro-batches must be at least pp for every stage to be busy");
  static constexpr rule_kind kind = rule_kind::advice;
  static constexpr char source[] = "the share of idle time is (pp - 1) / (micro-batches + pp - 1)";
  using operands = list<fact::num_micro_batches_operand, fact::pipeline_degree_operand>;
  using presumes = list<product_of_degrees_is_in_range, batch_sizes_are_in_range>;
  static constexpr bool applies(const question& q) { return q.plan.schedule != schedule_kind::interleaved; }
  static constexpr bool holds(num micro_batches, num pp) { return micro_batches >= pp; }
  static constexpr fix_text fix(const question& q) { return fix_text{}.add(q.plan.pp).add(" micro-batches"); }
};

using pipeline_rules =
    list<virtual_stages_belong_to_interleaved, num_stages_fits_the_stage_list, even_stages_divide_the_layers,
         one_listed_stage_per_stage, listed_stages_add_up_to_the_layers, inner_stages_have_layers,
         micro_batches_fill_the_rounds, micro_batches_fill_the_pipeline>;

}  // namespace shardplan::rule
#endif  // SHARDPLAN_RULES_PIPELINE_HPP

// ---- shardplan/rules.hpp ----
// SPDX-License-Identifier: Apache-2.0
// All rules. A rule lives in one struct of rules/, and nothing about it is said anywhere else.
#ifndef SHARDPLAN_RULES_HPP
#define SHARDPLAN_RULES_HPP

namespace shardplan {

namespace detail {
template <class... Lists>
struct joined;
template <class... A>
struct joined<list<A...>> {
  using type = list<A...>;
};
template <class... A, class... B, class... Rest>
struct joined<list<A...>, list<B...>, Rest...> : joined<list<A..., B...>, Rest...> {};
}  // namespace detail

/// One list of the rules of several.
template <class... Lists>
using join = typename detail::joined<Lists...>::type;

/// Every rule of the library, the presumed ones first.
using builtin_rules = join<rule::mesh_rules, rule::model_rules, rule::head_rules, rule::sequence_rules,
                           rule::pipeline_rules, rule::expert_rules, rule::module_rules>;

}  // namespace shardplan
#endif  // SHARDPLAN_RULES_HPP

// ---- shardplan/check.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Asks the rules. Values: legal(question), check(question, sink), advise(question, sink), padded(question). Types:
// checked<Plan, Model> does not compile when a rule is broken, LegalPlan<Plan, Model> only asks.
#ifndef SHARDPLAN_CHECK_HPP
#define SHARDPLAN_CHECK_HPP

namespace shardplan {

struct operand_value {
  text_view name;
  num value = 0;
  friend constexpr bool operator==(const operand_value&, const operand_value&) = default;
};

/// One broken rule, with its numbers.
struct violation {
  text_view rule;  ///< the stable name
  rule_kind kind = rule_kind::math;
  text_view sentence;
  text_view source;  ///< where the rule comes from; empty when it does not say
  fixed_vector<operand_value, 10> operands{};
  fix_text fix{};  ///< what to write instead; empty when the rule does not say
};

/// Whether the rule's truth matters for legality, given what is asked: an engine's limit only once one is named.
template <class Rule>
constexpr bool refuses(const question& q) {
  return Rule::kind == rule_kind::math || (Rule::kind == rule_kind::engine && q.engine != engine_kind::none);
}

namespace detail {

template <class Rule, class... Operands>
constexpr bool holds(const question& q, list<Operands...>) {
  return Rule::holds(Operands::of(q)...);
}

template <class Rule>
constexpr bool satisfied(const question& q);

template <class... Rules>
constexpr bool all_satisfied(const question& q, list<Rules...>) {
  return (satisfied<Rules>(q) && ...);
}

/// A rule that presumes others is not asked until they hold: no division by zero, and no echo of their violation.
template <class Rule>
constexpr bool asked(const question& q) {
  if constexpr (requires { typename Rule::presumes; })
    if (!all_satisfied(q, typename Rule::presumes{})) return false;
  if constexpr (requires { Rule::applies(q); })
    if (!Rule::applies(q)) return false;
  return true;
}

/// What a rule presumes must hold in turn: a presumption that could not be asked does not count as holding.
template <class Rule>
constexpr bool satisfied(const question& q) {
  if constexpr (requires { typename Rule::presumes; })
    if (!all_satisfied(q, typename Rule::presumes{})) return false;
  if constexpr (requires { Rule::applies(q); })
    if (!Rule::applies(q)) return true;
  return holds<Rule>(q, typename Rule::operands{});
}

template <class Rule, class... Operands>
constexpr violation report(const question& q, list<Operands...>) {
  violation v;
  v.rule = diag::type_name<Rule>();
  v.kind = Rule::kind;
  v.sentence = Rule::sentence;
  if constexpr (requires { Rule::source; }) v.source = Rule::source;
  (v.operands.push_back({Operands::name, Operands::of(q)}), ...);
  if constexpr (requires { Rule::fix(q); }) v.fix = Rule::fix(q);
  return v;
}

}  // namespace detail

/// The rule is asked, and the answer is no.
template <class Rule>
constexpr bool broken(const question& q) {
  return detail::asked<Rule>(q) && !detail::holds<Rule>(q, typename Rule::operands{});
}

/// No rule that refuses is broken.
template <class... Rules>
constexpr bool legal(const question& q, list<Rules...>) {
  return (!(refuses<Rules>(q) && broken<Rules>(q)) && ...);
}
// The rules are a default argument, so that a header that is not asked instantiates none of them.
template <class Rules = builtin_rules>
constexpr bool legal(const question& q) {
  return legal(q, Rules{});
}

/// Calls `sink(const violation&)` for every rule that refuses and is broken.
template <class Sink, class... Rules>
constexpr void check(const question& q, Sink&& sink, list<Rules...>) {
  ((refuses<Rules>(q) && broken<Rules>(q) ? sink(detail::report<Rules>(q, typename Rules::operands{})) : void()), ...);
}
template <class Rules = builtin_rules, class Sink>
constexpr void check(const question& q, Sink&& sink) {
  check(q, sink, Rules{});
}

/// Calls `sink(const violation&)` for every piece of advice that the plan does not follow. It is legal all the same.
template <class Sink, class... Rules>
constexpr void advise(const question& q, Sink&& sink, list<Rules...>) {
  ((Rules::kind == rule_kind::advice && broken<Rules>(q) ? sink(detail::report<Rules>(q, typename Rules::operands{}))
                                                         : void()),
   ...);
}
template <class Rules = builtin_rules, class Sink>
constexpr void advise(const question& q, Sink&& sink) {
  advise(q, sink, Rules{});
}

/// The length to which a row is padded for a legal plan; 0 when it needs no padding, or no length is said.
constexpr num padded(const question& q) {
  const num real = real_length(q.batch);
  if (real <= 0) return 0;
  const num length = padded_length(q.plan, q.batch);
  return length == real ? 0 : length;
}

// ---- the type face

/// Beside a plan and a model: how many ranks there are, and which engine is to carry the plan out.
template <num Ranks>
struct on_ranks {
  static constexpr void say(question& q) { q.world = Ranks; }
};
template <engine_kind Engine>
struct on_engine {
  static constexpr void say(question& q) { q.engine = Engine; }
};

namespace detail {

/// What else is asked beside a plan and a model: a batch, or anything that knows how to say so.
template <class T>
constexpr void say(question& q) {
  if constexpr (requires { T::say(q); })
    T::say(q);
  else if constexpr (requires {
                       { T::spec } -> std::same_as<const batch_spec&>;
                     })
    q.batch = T::spec;
}

template <class Plan, class Model, class... Rest>
constexpr question make_question() {
  question q;
  q.model = Model::spec;
  q.plan = Plan::spec;
  (say<Rest>(q), ...);
  return q;
}

template <class T>
concept IsRule = requires {
  T::sentence;
  T::kind;
  typename T::operands;
};

template <class Rules, class... Rest>
struct with_rules {
  using type = Rules;
};
template <class... Rules, class First, class... Rest>
struct with_rules<list<Rules...>, First, Rest...> : with_rules<list<Rules...>, Rest...> {};
template <class... Rules, IsRule First, class... Rest>
struct with_rules<list<Rules...>, First, Rest...> : with_rules<list<Rules..., First>, Rest...> {};

}  // namespace detail

/// The question that types ask.
template <class Plan, class Model, class... Rest>
inline constexpr question ask = detail::make_question<Plan, Model, Rest...>();

/// The library's rules and those among `Rest`.
template <class... Rest>
using rules_with = typename detail::with_rules<builtin_rules, Rest...>::type;

/// Whether the plan is legal for the model; asks only, never an error. `Rest` as for `checked`.
template <class Plan, class Model, class... Rest>
concept LegalPlan = legal(ask<Plan, Model, Rest...>, rules_with<Rest...>{});

namespace detail {

template <class Plan, class Model, class... Rest>
struct asked_of {
  static constexpr const question& value = ask<Plan, Model, Rest...>;
};

/// The broken ones among the rules, found only when the plan is not legal: for a legal one nothing is instantiated.
template <class Asked, class Rules, bool Legal = legal(Asked::value, Rules{})>
struct broken_rules {
  using type = list<>;
};
template <class Asked, class... Rules>
struct broken_rules<Asked, list<Rules...>, false> {
  using type =
      join<list<>,
           std::conditional_t<refuses<Rules>(Asked::value) && broken<Rules>(Asked::value), list<Rules>, list<>>...>;
};

// One base class per broken rule, so that every compiler reports all of them. Plan and model are the last facts: a
// second wrong plan with the same numbers still speaks.
template <class Rule, class Asked, class Operands = typename Rule::operands>
struct verdict;
template <class Rule, class Plan, class Model, class... Rest, class... Operands>
struct verdict<Rule, asked_of<Plan, Model, Rest...>, list<Operands...>>
    : Rule::template broken_with<typename Operands::template fact<Operands::of(ask<Plan, Model, Rest...>)>..., Plan,
                                 Model> {};

template <class Asked, class Broken>
struct verdicts;
template <class Asked, class... Broken>
struct verdicts<Asked, list<Broken...>> : verdict<Broken, Asked>... {};

}  // namespace detail

/// What a legal plan says of one rank of a model, as data that device code can use.
template <class Plan, class Model>
struct plan_results {
  static constexpr plan_spec spec = Plan::spec;
  static constexpr model_spec model = Model::spec;
  static constexpr num world_size = shardplan::world_size(spec);
  static constexpr num num_stages = shardplan::num_stages(spec);
  static constexpr num num_data_shards = shardplan::num_data_shards(spec);
  static constexpr num gradient_divisor = shardplan::gradient_divisor(spec);
  static constexpr num efsdp = efsdp_degree(spec);
  // Where overrides tell layers apart, these are the first layer's.
  static constexpr num heads_per_rank = model.num_attention_heads / attention_cut_of(spec, 0).tensor;
  static constexpr num kv_heads_per_rank = ceil_div(model.num_key_value_heads, attention_cut_of(spec, 0).tensor);
  static constexpr num vocab_rows_per_rank = ceil_div(model.vocab_size, tensor_degree(spec, head_weight(model)));
  static constexpr num experts_per_rank = expert_slots(plan_in_layer(spec, 0), model);
};

/// A plan for a model, checked: one compile error for each broken rule. `Rest` may hold, in any order, a batch (a type
/// with `static constexpr batch_spec spec`), what else to ask (a type with `say(question&)`), and rules of your own.
template <class Plan, class Model, class... Rest>
struct checked : plan_results<Plan, Model>,
                 private detail::verdicts<
                     detail::asked_of<Plan, Model, Rest...>,
                     typename detail::broken_rules<detail::asked_of<Plan, Model, Rest...>, rules_with<Rest...>>::type> {
};

}  // namespace shardplan
#endif  // SHARDPLAN_CHECK_HPP

// ---- shardplan/nearest.hpp ----
// SPDX-License-Identifier: Apache-2.0
// The legal plan nearest to one that is not: the same world, the fewest changed degrees. For run time: it may be
// evaluated at compile time, but larger worlds exceed what compilers are willing to do.
#ifndef SHARDPLAN_NEAREST_HPP
#define SHARDPLAN_NEAREST_HPP

namespace shardplan {

struct nearest_plan {
  bool found = false;
  bool exhausted = true;  ///< false: nothing was found within the work allowed, and there may still be one
  num changed_degrees = 0;
  num added_options = 0;  ///< kv_replicate, vocab_pad, expert_pad, listed stages
  plan_spec plan{};
};

namespace detail {

template <class Rules>
class nearest_search {
 public:
  constexpr nearest_search(const question& q, num world, num work) : q_(q), asked_(q.plan), world_(world), work_(work) {
    q_.world = world;
    // Every degree divides the world, those of experts too. Pairs of divisors, small ones ascending, then the large.
    for (num d = 1; d <= world / d; ++d)
      if (world % d == 0) divisors_.push_back(d);
    for (std::size_t i = divisors_.size(); i-- > 0;)
      if (world / divisors_[i] != divisors_[i]) divisors_.push_back(world / divisors_[i]);
  }

  constexpr nearest_plan search() {
    for (num changes = 0; changes <= static_cast<num>(num_plan_axes) && work_ > 0; ++changes) {
      best_ = {};
      walk(0, world_, changes);
      if (best_.found) {
        best_.changed_degrees = changes;
        return best_;
      }
    }
    best_ = {};
    best_.exhausted = work_ > 0;
    return best_;
  }

 private:
  /// Chooses the degree of axis `index` and those after it, with exactly `changes` of them changed, in ascending
  /// order: tuples come lexicographically. `rest` is what dense degrees still have to make up, or expert ones may.
  /// False once nothing better can follow.
  constexpr bool walk(std::size_t index, num rest, num changes) {
    if (index == num_plan_axes) return !propose();
    if (index == num_dense_axes) rest = q_.plan.fsdp * q_.plan.cp * q_.plan.tp;
    const auto [name, degree] = plan_axes[index];
    const num left = static_cast<num>(num_plan_axes - index) - 1;
    for (const num d : divisors_) {
      if (d > rest) break;
      if (--work_ <= 0) return false;
      if (rest % d != 0 || (index == num_dense_axes - 1 && d != rest)) continue;
      const num changes_left = changes - (d == asked_.*degree ? 0 : 1);
      if (changes_left < 0 || changes_left > left) continue;
      q_.plan.*degree = d;
      if (!walk(index + 1, rest / d, changes_left)) return false;
    }
    return true;
  }

  /// Tries the degrees chosen with the options asked, then with the fewest added. True when nothing can be better.
  constexpr bool propose() {
    keep_options();
    if (legal(q_, Rules{})) return record(0);
    const num added = add_options();
    if (added > 0 && (!best_.found || added < best_.added_options) && legal(q_, Rules{})) record(added);
    return false;
  }
  constexpr bool record(num added) {
    best_.found = true;
    best_.added_options = added;
    best_.plan = q_.plan;
    return true;
  }

  /// The options asked, but for what the degrees chosen leave no choice in: stages listed for another pp are dropped.
  constexpr void keep_options() {
    plan_spec kept = asked_;
    for (const plan_axis& a : plan_axes) kept.*a.degree = q_.plan.*a.degree;
    if (static_cast<num>(kept.stages.size()) != num_stages(kept) || sum_of_stages(kept) != q_.model.num_hidden_layers)
      kept.stages = {};
    if (kept.method == cp_method::ulysses_ring && checked_product(kept.method_ulysses, kept.method_ring) != kept.cp)
      split_context(kept);
    q_.plan = kept;
  }
  /// U as large as heads allow, in whole heads of queries, keys and values; R the rest.
  constexpr void split_context(plan_spec& p) const {
    const auto whole = [&](num ulysses) {
      const num cut = p.tp * ulysses, kv_heads = q_.model.num_key_value_heads;
      return p.cp % ulysses == 0 && q_.model.num_attention_heads % cut == 0 &&
             (kv_heads % cut == 0 || (p.kv_replicate && cut % kv_heads == 0));
    };
    p.method_ulysses = 1;
    for (const num d : divisors_)
      if (d <= p.cp && whole(d)) p.method_ulysses = d;
    p.method_ring = p.cp / p.method_ulysses;
  }
  /// Adds the options without which the degrees chosen cannot be legal; how many.
  constexpr num add_options() {
    plan_spec& p = q_.plan;
    const model_spec& m = q_.model;
    num added = 0;
    const auto add = [&](bool& flag, bool needed) {
      if (flag || !needed) return;
      flag = true;
      ++added;
    };
    add(p.kv_replicate, m.num_key_value_heads % p.tp != 0 || m.num_key_value_heads % (p.tp * ulysses_degree(p)) != 0);
    add(p.vocab_pad, m.vocab_size % p.tp != 0);
    add(p.expert_pad, m.num_experts % p.ep != 0);
    if (p.stages.empty() && m.num_hidden_layers % num_stages(p) != 0) {
      p.stages = nearest_even_stages(m.num_hidden_layers, num_stages(p));
      ++added;
    }
    return added;
  }

  question q_;  // with the plan under trial
  plan_spec asked_;
  num world_;
  num work_;
  fixed_vector<num, 1536> divisors_{};  // no number below 2^31 has more
  nearest_plan best_{};
};

}  // namespace detail

/// The legal plan nearest to `q.plan` on `q.world` ranks, or on as many as its degrees multiply to. Nearest is, in this
/// order: fewest changed degrees among pp, dp_replicate, fsdp, cp, tp, ep, etp; fewest options added (a flag or listed
/// stages, only where the degrees need them); the lexicographically first tuple of degrees in that order of axes.
/// Options stay as asked: stages that no longer fit are dropped, and U x R is split anew when cp no longer is U * R.
/// `work` bounds the divisors tried, a second at most.
template <class Rules = builtin_rules>
constexpr nearest_plan nearest_legal_plan(const question& q, Rules = {}, num work = num{1} << 21) {
  // A model or a batch that breaks a rule on one rank breaks it on all: no plan helps.
  question alone = q;
  alone.plan = {};
  alone.world = 0;
  alone.batch.rows = alone.batch.micro_batches = 0;
  if (!legal(alone)) return {};
  num world = q.world;
  if (world == 0) {
    world = 1;
    for (std::size_t i = 0; i < num_dense_axes && world >= 1 && world <= max_degree; ++i)
      world = checked_product(world, q.plan.*plan_axes[i].degree);
  }
  if (world < 1 || world > max_degree || q.plan.virtual_stages < 1 || q.plan.virtual_stages > max_degree) return {};
  return detail::nearest_search<Rules>(q, world, work).search();
}

}  // namespace shardplan
#endif  // SHARDPLAN_NEAREST_HPP

// ---- shardplan/shardplan.hpp ----
// SPDX-License-Identifier: Apache-2.0
// Everything of the library that needs nothing but light standard headers.
#ifndef SHARDPLAN_SHARDPLAN_HPP
#define SHARDPLAN_SHARDPLAN_HPP

// vocabulary

// algebra

// rules

#endif  // SHARDPLAN_SHARDPLAN_HPP
