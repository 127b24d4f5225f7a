// SPDX-License-Identifier: Apache-2.0
// Loops over elements and rows whose turns know nothing of each other: most operations are one of these and a body.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_LOOPS_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_LOOPS_HPP

#include "runtime/device/cuda/real.hpp"

namespace shardplan::runtime::cuda {

/// body(i) for each i of [0, size)
template <class Body>
struct elements_kernel : one_step {
  static constexpr int threads = 256, per_thread = 4;
  struct arguments {
    Body body;
    num size;
  };
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num, const place& at, state&, shared&) {
    const num first = at.block * (threads * per_thread) + at.thread;
    for (int j = 0; j < per_thread; ++j)
      if (const num i = first + j * threads; i < a.size) a.body(i);
  }
};

/// Columns of a row that one thread has: neighbours in memory belong to neighbouring threads.
struct columns {
  num begin, end;
  int step;
};

/// body(row, columns) for each of `rows` rows of `width` columns. What depends on the row alone, a body computes once
/// before it goes through its columns.
template <class Body, int Threads>
struct rows_kernel : one_step {
  static constexpr int threads = Threads, tile = Threads * 4;  // columns that a block takes
  struct arguments {
    Body body;
    num width, tiles;
  };
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num, const place& at, state&, shared&) {
    const num first = at.block % a.tiles * tile, end = first + tile < a.width ? first + tile : a.width;
    a.body(at.block / a.tiles, columns{first + at.thread, end, threads});
  }
};

template <Launcher L, class Body>
void for_each_element(L& on, num size, const Body& body) {
  using kernel = elements_kernel<Body>;
  on.template launch<kernel>(ceil_div(size, kernel::threads * kernel::per_thread), {body, size});
}

template <Launcher L, class Body>
void for_each_row(L& on, num rows, num width, const Body& body) {
  with_threads_for(width, [&](auto threads) {
    using kernel = rows_kernel<Body, threads>;
    const num tiles = ceil_div(width, kernel::tile);
    on.template launch<kernel>(rows * tiles, {body, width, tiles});
  });
}

/// One thread per column and group of rows: the sum over `rows` of term(row, column), for each column.
template <class Term, class A>
struct column_sums_kernel {
  static constexpr int threads = 256, width_of_tile = 32, lanes = threads / width_of_tile;
  static constexpr num chunk = 512;  // rows that a block sums
  struct arguments {
    Term term;
    num rows, width, tiles;
    A* out;    // (chunks, width)
    bool add;  // to what is there
  };
  struct shared {
    A of_lane[lanes][width_of_tile];
  };
  struct state {};
  SHARDPLAN_HOST_DEVICE static num steps(const arguments&, num) { return 2; }
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num s, const place& at, state&, shared& shared) {
    const num chunk_here = at.block / a.tiles;
    const int lane = at.thread / width_of_tile, within = at.thread % width_of_tile;
    const num column = at.block % a.tiles * width_of_tile + within;
    if (s == 0) {
      const num last = (chunk_here + 1) * chunk, end = last < a.rows ? last : a.rows;
      A sum = 0;
      if (column < a.width)
        for (num row = chunk_here * chunk + lane; row < end; row += lanes) sum += a.term(row, column);
      shared.of_lane[lane][within] = sum;
    } else if (lane == 0 && column < a.width) {
      A sum = shared.of_lane[0][within];
      for (int i = 1; i < lanes; ++i) sum += shared.of_lane[i][within];
      A& out = a.out[chunk_here * a.width + column];
      out = a.add ? out + sum : sum;
    }
  }
};

/// Sums that are there already.
template <class A>
struct partial_sums {
  const A* values;  // (rows, width)
  num width;
  SHARDPLAN_HOST_DEVICE A operator()(num row, num column) const { return values[row * width + column]; }
};

/// `out` (width) grows by the sum over rows of term(row, column), in an order that only `rows` decides.
template <class A, Launcher L, class Term>
void add_column_sums(L& on, num rows, const Term& term, std::span<A> out) {
  using kernel = column_sums_kernel<Term, A>;
  const num width = static_cast<num>(out.size()), tiles = ceil_div(width, kernel::width_of_tile);
  const num chunks = ceil_div(rows, kernel::chunk);
  if (chunks <= 1) return on.template launch<kernel>(chunks * tiles, {term, rows, width, tiles, out.data(), true});
  auto partial = on.template allocate<A>(chunks * width);
  on.template launch<kernel>(chunks * tiles, {term, rows, width, tiles, partial.data(), false});
  add_column_sums<A>(on, chunks, partial_sums<A>{partial.data(), width}, out);
}

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_LOOPS_HPP
