// SPDX-License-Identifier: Apache-2.0
// Loops over elements and rows whose turns know nothing of each other: most operations are one of these and a body.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_LOOPS_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_LOOPS_HPP

#include <concepts>  // same_as

#include "runtime/device/cuda/neighbours.hpp"

namespace shardplan::runtime::cuda {

/// A body that moves neighbours at once says how many, `at_once`, and by `is_aligned()` whether memory and widths allow
/// it: for rows, each row must begin where the first may. It is given numbers of values, constants, to compute on.
template <class Body>
concept MovesNeighbours = requires(const Body& body) {
  { body.is_aligned() } -> std::same_as<bool>;
  constant<Body::at_once>{};
};

/// How many values a turn of the body's loop has. Asked by the host, once for each launch.
template <class Body>
int values_of_turn(const Body& body) {
  if constexpr (MovesNeighbours<Body>)
    if (body.is_aligned()) return Body::at_once;
  return 1;
}

/// body(i) for each i of [0, size); or body(i, n) for each n of them.
template <class Body>
struct elements_kernel : one_step {
  static constexpr int threads = 256;
  struct arguments {
    Body body;
    num size;
    int of_turn, turns;  // of a thread
  };
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num, const place& at, state&, shared&) {
    const num values = static_cast<num>(threads) * a.of_turn, first = at.block * (values * a.turns);
    const num end = first + values * a.turns < a.size ? first + values * a.turns : a.size;
    const columns mine{first + at.thread * a.of_turn, end, values, a.of_turn > 1};
    if constexpr (MovesNeighbours<Body>)
      mine.each(constant<Body::at_once>{}, a.body);
    else
      for (num i = mine.begin; i < mine.end; i += mine.step) a.body(i);
  }
};

/// body(row, columns) for each of `rows` rows of `width` columns, a row by `Lanes` threads. What depends on the row
/// alone, a body computes once before it goes through its columns.
template <class Body, int Lanes>
struct rows_kernel : one_step {
  static constexpr int threads = threads_of_rows, turns = 4;
  struct arguments {
    Body body;
    num rows, width, tiles;  // a tile: the columns of a row that a block takes
    int of_turn;
  };
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num, const place& at, state&, shared&) {
    // A launch has less than 2^31 blocks, and a GPU divides 32 bits faster than 64.
    const int block = static_cast<int>(at.block), tiles = static_cast<int>(a.tiles);
    const row_of_block<Lanes> my(block / tiles, at.thread);
    if (my.row >= a.rows) return;
    const num values = static_cast<num>(Lanes) * a.of_turn, first = block % tiles * (values * turns);
    const num end = first + values * turns < a.width ? first + values * turns : a.width;
    a.body(my.row, columns{first + my.lane * a.of_turn, end, values, a.of_turn > 1});
  }
};

template <Launcher L, class Body>
void for_each_element(L& on, num size, const Body& body) {
  using kernel = elements_kernel<Body>;
  const int of_turn = values_of_turn(body), turns = of_turn > 1 ? 1 : 4;
  on.template launch<kernel>(ceil_div(size, num{kernel::threads} * of_turn * turns), {body, size, of_turn, turns});
}

template <Launcher L, class Body>
void for_each_row(L& on, num rows, num width, const Body& body) {
  const int of_turn = values_of_turn(body);
  with_threads_for(ceil_div(width, num{of_turn}), [&](auto lanes) {
    using kernel = rows_kernel<Body, lanes>;
    const num tiles = ceil_div(width, num{lanes} * of_turn * kernel::turns);
    on.template launch<kernel>(row_of_block<lanes>::blocks(rows) * tiles, {body, rows, width, tiles, of_turn});
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
    const int block = static_cast<int>(at.block), tiles = static_cast<int>(a.tiles);  // as above
    const num chunk_here = block / tiles;
    const int lane = at.thread / width_of_tile, within = at.thread % width_of_tile;
    const num column = num{block % tiles} * width_of_tile + within;
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
