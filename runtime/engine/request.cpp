// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/request.hpp"

#include <algorithm>  // find
#include <cstring>    // memcpy

namespace shardplan::runtime {

namespace {

std::size_t at(num i) { return static_cast<std::size_t>(i); }

std::string text(num value) { return std::to_string(value); }

std::string text(std::span<const num> counts) {
  std::string out;
  for (num c : counts) out += (out.empty() ? "" : "+") + text(c);
  return out.empty() ? "none" : out;
}

/// The sum, or -1 when one is negative or it does not fit.
num total(std::span<const num> counts) {
  num sum = 0;
  for (num c : counts) {
    if (c < 0 || c > INT64_MAX - sum) return -1;
    sum += c;
  }
  return sum;
}

bool same_counts(std::span<const num> a, std::span<const num> b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) return false;
  return true;
}

/// Must every member hand over as many elements as every other?
bool equal_sizes(const request& r) {
  switch (r.what) {
    case operation::all_reduce:
    case operation::broadcast:
      return true;
    case operation::all_gather:
    case operation::reduce_scatter:
      return r.counts.empty();
    default:
      return false;
  }
}

/// What two members must have in common, whatever else is right with either.
bool same_kind(const request& a, const request& b) {
  return a.what == b.what && a.type == b.type && a.reduce == b.reduce && a.peer == b.peer && a.axes == b.axes &&
         (a.what == operation::all_to_all || same_counts(a.counts, b.counts)) &&
         (!equal_sizes(a) || (a.in_size == b.in_size && a.out_size == b.out_size));
}

/// What is wrong with one member's sizes, given the group's size; "" when nothing is.
std::string fault(const request& r, num index, num n) {
  const bool rooted = r.what == operation::broadcast || r.what == operation::gather;
  if (rooted && (r.peer < 0 || r.peer >= n)) return "root " + text(r.peer) + " is no member of " + text(n);
  if (r.what == operation::all_to_all) {
    if (r.counts.size() != at(n) || r.receive_counts.size() != at(n))
      return text(static_cast<num>(r.counts.size())) + " send counts and " +
             text(static_cast<num>(r.receive_counts.size())) + " receive counts for " + text(n) + " members";
    if (total(r.counts) != r.in_size) return "send counts " + text(r.counts) + " for " + text(r.in_size) + " elements";
    if (total(r.receive_counts) != r.out_size)
      return "receive counts " + text(r.receive_counts) + " for " + text(r.out_size) + " elements";
    return "";
  }
  if (r.what != operation::all_gather && r.what != operation::reduce_scatter && r.what != operation::gather) return "";
  const bool scatters = r.what == operation::reduce_scatter;
  const num part = scatters ? r.out_size : r.in_size;
  const num whole = scatters ? r.in_size : r.out_size;
  if (r.counts.empty() && r.what != operation::gather)
    return whole == part * n ? "" : text(n) + " parts of " + text(part) + " do not make " + text(whole) + " elements";
  if (r.counts.size() != at(n)) return text(static_cast<num>(r.counts.size())) + " counts for " + text(n) + " members";
  if (total(r.counts) < 0) return "counts " + text(r.counts);
  if (part != r.counts[at(index)])
    return "its part has " + text(part) + " elements, the counts say " + text(r.counts[at(index)]);
  const num expected = r.what == operation::gather && r.peer != index ? 0 : total(r.counts);
  if (whole != expected) return "the whole has " + text(whole) + " elements, the counts say " + text(expected);
  return "";
}

}  // namespace

std::string describe(axis_set axes) {
  std::string out;
  for (std::size_t i = 0; i < num_axes; ++i)
    if (axes.has(static_cast<axis>(i))) out += (out.empty() ? "" : "+") + std::string(name_of(static_cast<axis>(i)));
  return out.empty() ? "no axis" : out;
}

std::string describe(const request& r) {
  std::string out(name_of(r.what));
  if (r.what == operation::all_reduce || r.what == operation::reduce_scatter)
    out += "(" + std::string(name_of(r.reduce)) + ")";
  const std::string type(name_of(r.type));
  if (r.what == operation::receive) {
    out += " of " + text(r.out_size) + " " + type + " from member " + text(r.peer);
  } else if (r.what != operation::barrier) {
    out += " of " + text(r.in_size) + " " + type;
    if (!r.counts.empty()) out += " (counts " + text(r.counts) + ")";
    if (r.what == operation::send) out += " to member " + text(r.peer);
    if (r.what == operation::broadcast || r.what == operation::gather) out += " with root " + text(r.peer);
  }
  out += " over " + describe(r.axes) + " (" + std::string(name_of(r.why));
  return out + (r.layer < 0 ? ")" : ", layer " + text(r.layer) + ")");
}

std::string describe_ranks(std::span<const num> ranks) {
  std::string out = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) out += (i == 0 ? " " : ", ") + text(ranks[i]);
  return out;
}

std::string disagreement(std::span<const request* const> calls, std::span<const num> ranks) {
  const auto rank = [&](std::size_t i) { return "rank " + text(ranks[i]); };
  for (std::size_t i = 1; i < calls.size(); ++i)
    if (!same_kind(*calls[0], *calls[i]))
      return rank(0) + " and " + rank(i) + " disagree: " + rank(0) + " calls " + describe(*calls[0]) + ", " + rank(i) +
             " calls " + describe(*calls[i]);
  const num n = static_cast<num>(calls.size());
  for (num i = 0; i < n; ++i) {
    const std::string wrong = fault(*calls[at(i)], i, n);
    if (!wrong.empty()) return rank(at(i)) + " calls " + describe(*calls[at(i)]) + ": " + wrong;
  }
  if (calls[0]->what != operation::all_to_all) return "";
  for (std::size_t i = 0; i < calls.size(); ++i)
    for (std::size_t j = 0; j < calls.size(); ++j)
      if (calls[i]->counts[j] != calls[j]->receive_counts[i])
        return rank(i) + " and " + rank(j) + " disagree in " + describe(*calls[i]) + ": " + rank(i) + " sends " +
               text(calls[i]->counts[j]) + " elements, " + rank(j) + " expects " + text(calls[j]->receive_counts[i]);
  return "";
}

std::vector<num> require_members(const rank_group& ranks, axis_set axes, num rank, num world_size) {
  const auto refuse = [&](const std::string& why) {
    throw collective_error("rank " + text(rank) + " asks for a group over " + describe(axes) + ": " + why);
  };
  std::vector<num> members;
  for (num i = 0; i < ranks.size(); ++i) {
    const num member = ranks.member(i);
    if (member < 0 || member >= world_size) refuse("rank " + text(member) + " is not in the world");
    if (std::find(members.begin(), members.end(), member) != members.end())
      refuse("rank " + text(member) + " is there twice");
    members.push_back(member);
  }
  if (ranks.index < 0 || ranks.index >= ranks.size() || ranks.member(ranks.index) != rank)
    refuse("it is not member " + text(ranks.index));
  return members;
}

void require_peer(const request& r, num n, num rank) {
  if (r.peer >= 0 && r.peer < n) return;
  throw collective_error("rank " + text(rank) + " calls " + describe(r) + ": the group has " + text(n) + " members");
}

void require_same_message(const request& sent, num from, const request& received, num to) {
  if (sent.type == received.type && sent.in_size == received.out_size) return;
  const std::string sender = "rank " + text(from), receiver = "rank " + text(to);
  throw collective_error(sender + " and " + receiver + " disagree: " + sender + " calls " + describe(sent) + ", " +
                         receiver + " calls " + describe(received));
}

void collect_alone(const request& r, num rank) {
  const request* const call = &r;
  const std::string wrong = disagreement(std::span(&call, 1), std::span(&rank, 1));
  if (!wrong.empty()) throw collective_error(wrong);
  if (r.out_size > 0 && r.in != r.out) std::memcpy(r.out, r.in, at(r.out_bytes()));
}

request without_buffers(request r) {
  r.in = nullptr;
  r.out = nullptr;
  r.counts = r.receive_counts = {};
  return r;
}

num part_size(const request& r, num i, num n) {
  if (!r.counts.empty()) return r.counts[at(i)];
  return (r.what == operation::reduce_scatter ? r.in_size : r.out_size) / n;
}

num part_offset(const request& r, num i, num n) {
  if (r.counts.empty()) return i * part_size(r, i, n);
  return total(r.counts.first(at(i)));
}

}  // namespace shardplan::runtime
