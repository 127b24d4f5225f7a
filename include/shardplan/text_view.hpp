// SPDX-License-Identifier: Apache-2.0
// A piece of text that somebody else keeps. The library's own, because <string_view> alone would be more than half of
// what all of its other headers cost to include; it converts from and to the standard's types where those are known.
#ifndef SHARDPLAN_TEXT_VIEW_HPP
#define SHARDPLAN_TEXT_VIEW_HPP

#include <cstddef>  // size_t

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
