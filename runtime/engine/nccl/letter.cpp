// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/letter.hpp"

#include <algorithm>  // min
#include <cstring>    // memcpy

namespace shardplan::runtime::detail {

namespace {

template <class E>
num number(E e) {
  return static_cast<num>(e);
}

/// Whole numbers one after another, a list with its length before it.
class number_reader {
 public:
  number_reader(std::string_view bytes, num from) : bytes_(bytes), from_(from) {}
  num next() {
    if (bytes_.size() < sizeof(num)) fail();
    num value = 0;
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  std::vector<num> list() {
    const num size = next();
    if (size < 0 || static_cast<std::size_t>(size) > bytes_.size() / sizeof(num)) fail();
    std::vector<num> out;
    for (num i = 0; i < size; ++i) out.push_back(next());
    return out;
  }
  /// An enumerator up to the last one.
  template <class E>
  E up_to(E last) {
    const num value = next();
    if (value < 0 || value > number(last)) fail();
    return static_cast<E>(value);
  }
  std::string_view rest() const { return bytes_; }
  [[noreturn]] void fail() const {
    throw collective_error("rank " + std::to_string(from_) + " has sent what cannot be read");
  }

 private:
  std::string_view bytes_;
  num from_;
};

void point_to_counts(letter& l, num num_counts) {
  l.call.counts = std::span<const num>(l.counts).first(static_cast<std::size_t>(num_counts));
  l.call.receive_counts = std::span<const num>(l.counts).subspan(static_cast<std::size_t>(num_counts));
}

}  // namespace

letter_address address_of_calls(std::span<const num> ranks) {
  letter_address out{number(letter_kind::call)};
  out.insert(out.end(), ranks.begin(), ranks.end());
  return out;
}

letter_address address_of_messages(std::span<const num> ranks, const request& r) {
  letter_address out{number(letter_kind::message), number(r.axes.bits), number(r.why)};
  out.insert(out.end(), ranks.begin(), ranks.end());
  return out;
}

letter_address address_of_fetches(letter_address messages) {
  messages.front() = number(letter_kind::fetch);
  return messages;
}

letter::letter(letter_address to, const request& what, std::string with)
    : address(std::move(to)), call(without_buffers(what)), text(std::move(with)) {
  counts.assign(what.counts.begin(), what.counts.end());
  counts.insert(counts.end(), what.receive_counts.begin(), what.receive_counts.end());
  point_to_counts(*this, static_cast<num>(what.counts.size()));
}

std::string pack(const letter& l) {
  const request& r = l.call;
  std::vector<num> numbers{number(l.address.size())};
  numbers.insert(numbers.end(), l.address.begin(), l.address.end());
  for (num n : {number(r.what), number(r.type), number(r.reduce), r.peer, r.in_size, r.out_size, number(r.axes.bits),
                number(r.why), r.layer, number(r.counts.size()), number(l.counts.size())})
    numbers.push_back(n);
  numbers.insert(numbers.end(), l.counts.begin(), l.counts.end());
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(num)) + l.text;
}

letter unpack(std::string_view bytes, num from) {
  number_reader in(bytes, from);
  letter l;
  l.address = in.list();
  l.call.what = in.up_to(operation::barrier);
  l.call.type = in.up_to(element_type::bf16);
  l.call.reduce = in.up_to(reduce_op::min);
  l.call.peer = in.next();
  l.call.in_size = in.next();
  l.call.out_size = in.next();
  l.call.axes.bits = static_cast<unsigned>(in.next());
  l.call.why = in.up_to(phase::check);
  l.call.layer = in.next();
  const num num_counts = in.next();
  l.counts = in.list();
  if (l.address.empty() || num_counts < 0 || num_counts > number(l.counts.size())) in.fail();
  point_to_counts(l, num_counts);
  l.text = in.rest();
  return l;
}

letter to_letter(const verdict& v) {
  letter l;
  l.address = {number(letter_kind::verdict), v.exit_code, v.own, v.stays, number(v.report.size())};
  l.text = v.report + v.wait;
  return l;
}

letter to_letter(const last_word& w) {
  letter l;
  l.address = {number(letter_kind::last), w.exit_code, w.complete};
  return l;
}

verdict to_verdict(const letter& l) {
  const auto report = static_cast<std::size_t>(l.address.at(4));
  return {static_cast<int>(l.address[1]), l.address[2] != 0, l.address[3] != 0, l.text.substr(0, report),
          l.text.substr(std::min(report, l.text.size()))};
}

last_word to_last_word(const letter& l) { return {static_cast<int>(l.address.at(1)), l.address.at(2) != 0}; }

}  // namespace shardplan::runtime::detail
