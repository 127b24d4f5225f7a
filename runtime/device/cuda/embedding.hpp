// SPDX-License-Identifier: Apache-2.0
// The embedding of ids, whose table is cut: its rows are those of ids [first, first + rows).
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_EMBEDDING_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_EMBEDDING_HPP

#include "runtime/device/cuda/loops.hpp"

namespace shardplan::runtime::cuda {

template <class T>
struct look_up_body {
  static constexpr int at_once = in_16_bytes<T>;
  const T* table;
  const num* ids;
  num first, rows, width;
  T* out;
  bool is_aligned() const { return are_aligned<at_once>(table, out) && width % at_once == 0; }
  SHARDPLAN_HOST_DEVICE void operator()(num token, columns c) const {
    const num row = ids[token] - first;
    const bool here = row >= 0 && row < rows;
    c.each(constant<at_once>{}, [&](num i, auto n) {
      if (here)
        copy_neighbours(table + row * width + i, out + token * width + i, n);
      else
        store(out + token * width + i, n, [](int) { return narrow<T>(0); });
    });
  }
};

template <class T>
struct look_up_backward_arguments {
  const T* dx;
  const num* ids;
  num tokens, first, rows, width;
  accumulated<T>* dtable;
};

/// One block per token. The block of the first token of an id owns the id's row: it looks for the others, some tokens
/// at a time, and adds their gradients in order of tokens. So nothing is added by two blocks, and sums repeat.
template <class T>
struct look_up_backward_kernel {
  static constexpr int threads = 256, group = 16, groups = threads / group;
  using arguments = look_up_backward_arguments<T>;
  struct shared {
    bool earlier[threads];  // did a thread find the id in an earlier token?
    bool same[threads];     // of the tokens at hand, which have the id?
    bool any[groups];
  };
  struct state {
    bool owns;
  };
  // One step to look for an earlier token, then three for each piece of as many tokens as there are threads.
  SHARDPLAN_HOST_DEVICE static num steps(const arguments& a, num block) {
    return 1 + 3 * ((a.tokens + threads - 1) / threads - block / threads);
  }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state& mine, shared& shared) {
    const num id = a.ids[at.block];
    if (id < a.first || id >= a.first + a.rows) return;
    if (s == 0) {
      bool found = false;
      for (num i = at.thread; i < at.block && !found; i += threads) found = a.ids[i] == id;
      shared.earlier[at.thread] = found;
      return;
    }
    if (s == 1) {
      mine.owns = true;
      for (int t = 0; t < threads; ++t) mine.owns = mine.owns && !shared.earlier[t];
    }
    if (!mine.owns) return;
    const num first = (at.block / threads + (s - 1) / 3) * threads;
    if ((s - 1) % 3 == 0) {
      const num token = first + at.thread;
      shared.same[at.thread] = token >= at.block && token < a.tokens && a.ids[token] == id;
    } else if ((s - 1) % 3 == 1) {
      if (at.thread >= groups) return;
      bool any = false;
      for (int i = 0; i < group; ++i) any = any || shared.same[at.thread * group + i];
      shared.any[at.thread] = any;
    } else {
      accumulated<T>* to = a.dtable + (id - a.first) * a.width;
      for (int g = 0; g < groups; ++g) {
        if (!shared.any[g]) continue;
        for (int t = g * group; t < (g + 1) * group; ++t) {
          if (!shared.same[t]) continue;
          const T* from = a.dx + (first + t) * a.width;
          for (num i = at.thread; i < a.width; i += threads) to[i] += widen(from[i]);
        }
      }
    }
  }
};

/// out (n, H): the table's (rows, H) row of each id, 0 where it is in another part of the table.
template <class T, Launcher L>
void look_up(L& on, std::span<const T> table, std::span<const num> ids, num first, num width,
             std::span<std::type_identity_t<T>> out) {
  if (width == 0) return;
  for_each_row(
      on, static_cast<num>(ids.size()), width,
      look_up_body<T>{table.data(), ids.data(), first, static_cast<num>(table.size()) / width, width, out.data()});
}

/// dtable (rows, H) grows by dx (n, H) in the row of each token's id.
template <class T, Launcher L>
void look_up_backward(L& on, std::span<const T> dx, std::span<const num> ids, num first, num width,
                      std::span<accumulated<T>> dtable) {
  if (width == 0) return;
  const num n = static_cast<num>(ids.size());
  on.template launch<look_up_backward_kernel<T>>(
      n, {dx.data(), ids.data(), n, first, static_cast<num>(dtable.size()) / width, width, dtable.data()});
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_EMBEDDING_HPP
