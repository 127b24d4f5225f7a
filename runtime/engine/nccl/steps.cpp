// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/steps.hpp"

#include <algorithm>  // any_of

namespace shardplan::runtime {

namespace {

/// Parts of different sizes: a broadcast from each member, or a reduction to each.
std::vector<nccl_step> uneven(const request& r, nccl_function kind, num index, num n) {
  std::vector<nccl_step> out;
  for (num i = 0; i < n; ++i) {
    const num count = part_size(r, i, n), offset = part_offset(r, i, n);
    if (count == 0) continue;
    if (kind == nccl_function::broadcast)
      out.push_back({kind, i == index ? 0 : -1, offset, count, i});
    else
      out.push_back({kind, offset, i == index ? 0 : -1, count, i});
  }
  return out;
}

/// Counts that are equal are as good as none: one call of NCCL serves all parts.
bool has_uneven_parts(const request& r) {
  return std::any_of(r.counts.begin(), r.counts.end(), [&](num c) { return c != r.counts[0]; });
}

num sum_before(std::span<const num> counts, num i) {
  num sum = 0;
  for (num c : counts.first(static_cast<std::size_t>(i))) sum += c;
  return sum;
}

std::vector<nccl_step> all_to_all(const request& r, num index, num n) {
  std::vector<nccl_step> out;
  for (num i = 0; i < n; ++i) {
    const num sent = r.counts[static_cast<std::size_t>(i)], received = r.receive_counts[static_cast<std::size_t>(i)];
    const num from = sum_before(r.counts, i), to = sum_before(r.receive_counts, i);
    if (i == index) {
      if (sent > 0) out.push_back({nccl_function::copy, from, to, sent, i});
      continue;
    }
    if (sent > 0) out.push_back({nccl_function::send, from, -1, sent, i});
    if (received > 0) out.push_back({nccl_function::receive, -1, to, received, i});
  }
  return out;
}

std::vector<nccl_step> gather(const request& r, num index, num n) {
  if (index != r.peer)
    return r.in_size > 0 ? std::vector<nccl_step>{{nccl_function::send, 0, -1, r.in_size, r.peer}}
                         : std::vector<nccl_step>{};
  std::vector<nccl_step> out;
  for (num i = 0; i < n; ++i) {
    const num count = part_size(r, i, n), to = part_offset(r, i, n);
    if (count == 0) continue;
    out.push_back(i == index ? nccl_step{nccl_function::copy, 0, to, count, i}
                             : nccl_step{nccl_function::receive, -1, to, count, i});
  }
  return out;
}

}  // namespace

std::vector<nccl_step> nccl_steps_of(const request& r, num index, num n) {
  switch (r.what) {
    case operation::all_reduce:
      if (r.in_size == 0) return {};
      return {{nccl_function::all_reduce, 0, 0, r.in_size, -1}};
    case operation::all_gather:
      if (has_uneven_parts(r)) return uneven(r, nccl_function::broadcast, index, n);
      if (r.in_size == 0) return {};
      return {{nccl_function::all_gather, 0, 0, r.in_size, -1}};
    case operation::reduce_scatter:
      if (has_uneven_parts(r)) return uneven(r, nccl_function::reduce, index, n);
      if (r.out_size == 0) return {};
      return {{nccl_function::reduce_scatter, 0, 0, r.out_size, -1}};
    case operation::all_to_all:
      return all_to_all(r, index, n);
    case operation::broadcast:
      if (r.in_size == 0) return {};
      return {{nccl_function::broadcast, index == r.peer ? 0 : -1, 0, r.in_size, r.peer}};
    case operation::gather:
      return gather(r, index, n);
    case operation::send:
    case operation::receive:
    case operation::barrier:
      break;
  }
  return {};
}

}  // namespace shardplan::runtime
