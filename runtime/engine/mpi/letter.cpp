// SPDX-License-Identifier: Apache-2.0
// A letter on its way: a head of whole numbers, the counts, the data. All processes share one byte order.
#include "runtime/engine/mpi/letter.hpp"

#include <cstring>  // memcpy

namespace shardplan::runtime::detail {

namespace {

struct head {
  num kind, what, type, reduce, peer, in_size, out_size, axes, why, layer, num_counts, num_receive_counts, data_size,
      apart;
  std::uint64_t group;
};
static_assert(sizeof(head) % alignof(num) == 0 && alignof(head) <= alignof(std::max_align_t));

letter note(letter_kind kind, std::span<const num> counts, const std::string& data) {
  letter l;
  l.kind = kind;
  l.call.counts = counts;
  l.data_size = static_cast<num>(data.size());
  l.data = reinterpret_cast<const std::byte*>(data.data());
  return l;
}

}  // namespace

std::shared_ptr<bytes> pack(const letter& l) {
  const request& r = l.call;
  const auto number = [](auto e) { return static_cast<num>(e); };
  const head h{number(l.kind),
               number(r.what),
               number(r.type),
               number(r.reduce),
               r.peer,
               r.in_size,
               r.out_size,
               number(r.axes.bits),
               number(r.why),
               r.layer,
               number(r.counts.size()),
               number(r.receive_counts.size()),
               l.data_size,
               l.apart,
               l.group};
  const auto text = std::make_shared<bytes>();
  const auto put = [&](const void* from, std::size_t size) {
    const auto* const begin = static_cast<const std::byte*>(from);
    text->insert(text->end(), begin, begin + size);
  };
  text->reserve(sizeof h + r.counts.size_bytes() + r.receive_counts.size_bytes() +
                static_cast<std::size_t>(most_inside));
  put(&h, sizeof h);
  put(r.counts.data(), r.counts.size_bytes());
  put(r.receive_counts.data(), r.receive_counts.size_bytes());
  if (!l.apart && l.data_size > 0) put(l.data, static_cast<std::size_t>(l.data_size));
  return text;
}

letter unpack(std::shared_ptr<bytes> text, num from) {
  head h;
  std::memcpy(&h, text->data(), sizeof h);
  const auto counts_at = [&](std::size_t offset, num count) {
    return std::span(reinterpret_cast<const num*>(text->data() + offset), static_cast<std::size_t>(count));
  };
  letter l;
  l.kind = static_cast<letter_kind>(h.kind);
  l.from = from;
  l.group = h.group;
  l.call.what = static_cast<operation>(h.what);
  l.call.type = static_cast<element_type>(h.type);
  l.call.reduce = static_cast<reduce_op>(h.reduce);
  l.call.peer = h.peer;
  l.call.in_size = h.in_size;
  l.call.out_size = h.out_size;
  l.call.axes.bits = static_cast<unsigned>(h.axes);
  l.call.why = static_cast<phase>(h.why);
  l.call.layer = h.layer;
  std::size_t next = sizeof h;
  l.call.counts = counts_at(next, h.num_counts);
  next += l.call.counts.size_bytes();
  l.call.receive_counts = counts_at(next, h.num_receive_counts);
  next += l.call.receive_counts.size_bytes();
  l.data_size = h.data_size;
  l.apart = h.apart != 0;
  if (l.apart) {
    l.own_data = std::make_shared<bytes>(static_cast<std::size_t>(l.data_size));
    l.data = l.own_data->data();
    l.missing = l.data_size;
  } else {
    l.data = text->data() + next;
  }
  l.text = std::move(text);
  return l;
}

std::shared_ptr<bytes> pack(const verdict& v) {
  const num counts[] = {v.exit_code, v.own, v.stays, static_cast<num>(v.report.size())};
  return pack(note(letter_kind::verdict, counts, v.report + v.wait));
}

std::shared_ptr<bytes> pack(const last_word& w) {
  const num counts[] = {w.exit_code, w.complete};
  return pack(note(letter_kind::last, counts, ""));
}

verdict unpack_verdict(const letter& l) {
  const std::string all(reinterpret_cast<const char*>(l.data), static_cast<std::size_t>(l.data_size));
  const auto report = static_cast<std::size_t>(l.call.counts[3]);
  return {static_cast<int>(l.call.counts[0]), l.call.counts[1] != 0, l.call.counts[2] != 0, all.substr(0, report),
          all.substr(report)};
}

last_word unpack_last(const letter& l) { return {static_cast<int>(l.call.counts[0]), l.call.counts[1] != 0}; }

std::uint64_t group_number(std::span<const num> ranks) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a, and once more mixed
  for (num rank : ranks) hash = (hash ^ static_cast<std::uint64_t>(rank)) * 1099511628211u;
  hash ^= hash >> 32;
  return hash * 0x9e3779b97f4a7c15u;
}

}  // namespace shardplan::runtime::detail
