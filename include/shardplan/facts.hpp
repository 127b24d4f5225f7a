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

#include <cstddef>  // size_t
#include <shardplan/meta.hpp>

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
