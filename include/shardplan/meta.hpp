// SPDX-License-Identifier: Apache-2.0
// The few tools of the language that everything else uses: the number type, type lists, and containers of fixed
// capacity that are structural types, so that a whole plan can be a template argument.
#ifndef SHARDPLAN_META_HPP
#define SHARDPLAN_META_HPP

#include <cstddef>  // size_t
#include <cstdint>  // int64_t
#include <shardplan/text_view.hpp>

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
