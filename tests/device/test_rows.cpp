// SPDX-License-Identifier: Apache-2.0
// Operations on rows and elements against those of the CPU.
#include "runtime/device/cuda/elementwise.hpp"
#include "runtime/device/cuda/exchange.hpp"
#include "runtime/device/cuda/norm.hpp"
#include "runtime/device/cuda/optimizer.hpp"
#include "runtime/device/cuda/pairs.hpp"
#include "runtime/device/cuda/rotary.hpp"
#include "runtime/device/cuda/totals.hpp"
#include "runtime/device/ops.hpp"
#include "runtime/sharded/optimizer.hpp"
#include "tests/device/lab.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::lab;

namespace {

constexpr num rows_of_norms[] = {0, 1, 5, 600};  // 600: two chunks of a sum over rows

template <class T>
std::vector<T> joined(std::vector<T> a, const std::vector<T>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE_TEMPLATE("norms and their gradients", T, float, double, bf16) {
  std::mt19937 random(1);
  constexpr double eps = 0.05;  // the gradient of a row of one value is what eps leaves of it
  for (num n : rows_of_norms)
    for (num width : widths) {
      if (n > 100 && width > 300) continue;
      CAPTURE(n);
      CAPTURE(width);
      const auto x = random_values<T>(random, n * width), w = random_values<T>(random, width),
                 dy = random_values<T>(random, n * width);
      const auto grown = random_values<accumulated<T>>(random, width);
      const auto [out, in_place, dx, dw] = everywhere_and_late([&](auto& on) {
        auto gx = give(on, x), gw = give(on, w), gdy = give(on, dy), gdw = give(on, grown), same = give(on, x);
        auto gout = poisoned<T>(on, n * width), gdx = poisoned<T>(on, n * width);
        cuda::rms_norm<T>(on, read(gx), read(gw), eps, gout.span());
        cuda::rms_norm<T>(on, read(same), read(gw), eps, same.span());
        cuda::rms_norm_backward<T>(on, read(gx), read(gw), eps, read(gdy), gdx.span(), gdw.span());
        return std::tuple(take(on, gout), take(on, same), take(on, gdx), take(on, gdw));
      });
      const auto ex = exact(x), ew = exact(w), edy = exact(dy);
      buffer<double> eout(ex.size()), edx(ex.size()), edw = exact(grown);
      rms_norm<double>(ex, ew, eps, eout);
      rms_norm_backward<double>(std::span<const double>(ex), ew, eps, edy, edx, edw);
      CHECK(error_of(out, eout) <= limit<T>);
      CHECK(error_of(in_place, eout) <= limit<T>);
      CHECK(error_of(dx, edx) <= limit<T>);
      CHECK(error_of(dw, edw) <= limit<accumulated<T>>);
    }
}

TEST_CASE_TEMPLATE("sums, biases and copies", T, float, double, bf16) {
  std::mt19937 random(2);
  for (num n : {0, 1, 7, 1100})
    for (num width : widths) {
      if (n > 100 && width > 300) continue;
      CAPTURE(n);
      CAPTURE(width);
      const auto x = random_values<T>(random, n * width), y = random_values<T>(random, n * width),
                 bias = random_values<T>(random, width);
      const auto grown = random_values<accumulated<T>>(random, width);
      const auto [sum, biased, dbias, copied, rounded, filled, restored] = everywhere_and_late([&](auto& on) {
        auto gx = give(on, x), gy = give(on, y), gb = give(on, bias), gd = give(on, grown), gs = give(on, x);
        auto gc = poisoned<T>(on, n * width), gf = poisoned<T>(on, n * width);
        auto gr = poisoned<bf16>(on, n * width);
        cuda::add<T>(on, gs.span(), read(gy));
        cuda::copy<T>(on, read(gx), gc.span());
        auto gb16 = poisoned<T>(on, n * width);
        cuda::convert<bf16, T>(on, read(gx), gr.span());
        cuda::convert<T, bf16>(on, read(gr), gb16.span());
        cuda::add_bias<T>(on, gx.span(), read(gb));
        cuda::add_bias_backward<T>(on, read(gy), gd.span());
        cuda::fill<T>(on, gf.span(), cuda::narrow<T>(2));
        return std::tuple(take(on, gs), take(on, gx), take(on, gd), take(on, gc), take(on, gr), take(on, gf),
                          take(on, gb16));
      });
      const auto ex = exact(x), ey = exact(y), eb = exact(bias);
      buffer<double> es = ex, eadd = ex, ed = exact(grown);
      add<double>(es, ey);
      add_bias<double>(eadd, eb);
      add_bias_backward<double>(std::span<const double>(ey), ed);
      CHECK(error_of(sum, es) <= limit<T>);
      CHECK(error_of(biased, eadd) <= limit<T>);
      CHECK(error_of(dbias, ed) <= limit<accumulated<T>>);
      CHECK(error_of(copied, ex) == 0);
      CHECK(error_of(rounded, ex) <= limit<bf16>);
      CHECK(error_of(restored, exact(rounded)) == 0);
      CHECK(error_of(filled, buffer<double>(filled.size(), 2.0)) == 0);
    }
}

TEST_CASE_TEMPLATE("neighbours are moved at once where memory and widths allow it", T, float, double, bf16) {
  constexpr int several = cuda::in_16_bytes<T>;
  constexpr num width = 16;
  alignas(16) T memory[3][2 * width + several];
  alignas(16) accumulated<T> table[width + several];
  // Each of what the body moves begins late in one turn.
  const auto check = [&](auto body_of) {
    CHECK(cuda::values_of_turn(body_of(memory[0], memory[1], memory[2], width)) == several);
    CHECK(cuda::values_of_turn(body_of(memory[0] + several, memory[1], memory[2], 2 * width)) == several);
    CHECK(cuda::values_of_turn(body_of(memory[0] + 1, memory[1], memory[2], width)) == 1);
    CHECK(cuda::values_of_turn(body_of(memory[0], memory[1] + several - 1, memory[2], width)) == 1);
    CHECK(cuda::values_of_turn(body_of(memory[0], memory[1], memory[2] + 1, width)) == 1);
    CHECK(cuda::values_of_turn(body_of(memory[0], memory[1], memory[2], width - 1)) == 1);
  };
  check([](T* a, T* b, T* c, num w) { return cuda::swiglu_body<T>{a, b, c, w, width}; });
  check([](T* a, T* b, T* c, num w) { return cuda::swiglu_body<T>{a, b, c, 2 * width, w}; });
  check([](T* a, T* b, T* c, num w) { return cuda::swiglu_backward_body<T>{a, b, c, w, width}; });
  check([](T* a, T* b, T* c, num w) { return cuda::swiglu_backward_body<T>{a, b, c, 2 * width, w}; });
  const auto check_two = [&](auto body_of) {  // bodies that move two
    CHECK(cuda::values_of_turn(body_of(memory[0], memory[1], width)) == several);
    CHECK(cuda::values_of_turn(body_of(memory[0] + 1, memory[1], width)) == 1);
    CHECK(cuda::values_of_turn(body_of(memory[0], memory[1] + 1, width)) == 1);
  };
  check_two([](T* a, T* b, num) { return cuda::copy_body<T>{a, b}; });
  check_two([](T* a, T* b, num) { return cuda::add_body<T, T>{a, b}; });
  check_two([](T* a, T* b, num w) { return cuda::add_bias_body<T>{a, b, w}; });
  check_two([](T* a, T* b, num w) { return cuda::rows_of_pairs_body<T>{a, nullptr, 1, w, b}; });
  check_two([](T* a, T* b, num w) { return cuda::combine_pairs_body<T>{a, nullptr, nullptr, 1, w, b, true}; });
  check_two([](T* a, T* b, num w) { return cuda::copy_blocks_body<T>{a, nullptr, 0, w, b, true}; });
  check_two([](T* a, T* b, num w) { return cuda::pack_heads_body<T>{a, 1, 1, w, 1, b}; });
  check_two([](T* a, T* b, num w) { return cuda::sum_heads_body<T>{a, 1, 1, w, 1, b}; });
  CHECK(cuda::values_of_turn(cuda::fill_body<T>{memory[0], T{}}) == several);
  CHECK(cuda::values_of_turn(cuda::fill_body<T>{memory[0] + 1, T{}}) == 1);
  CHECK(cuda::values_of_turn(cuda::rotate_body<T>{memory[0], table, 1, width, 1}) == several);
  CHECK(cuda::values_of_turn(cuda::rotate_body<T>{memory[0], table + 1, 1, width, 1}) == 1);
  CHECK(cuda::values_of_turn(cuda::rotate_body<T>{memory[0], table, 1, width - 1, 1}) == 1);
  // Whoever moves them elsewhere is refused.
  CHECK_NOTHROW(cuda::load(memory[0] + several, cuda::constant<several>{}));
  CHECK_THROWS_AS(cuda::load(memory[0] + 1, cuda::constant<several>{}), std::logic_error);
  CHECK_NOTHROW(cuda::load(memory[0] + 1, cuda::constant<1>{}));
}

TEST_CASE("a gradient grows by one that is stored in fewer bits") {
  std::mt19937 random(3);
  const auto x = random_values<float>(random, 1300);
  const auto y = random_values<bf16>(random, 1300);
  const auto [sum] = everywhere_and_late([&](auto& on) {
    auto gx = give(on, x);
    auto gy = give(on, y);
    cuda::add<float, bf16>(on, gx.span(), read(gy));
    return std::tuple(take(on, gx));
  });
  buffer<double> expected = exact(x);
  add<double>(expected, exact(y));
  CHECK(error_of(sum, expected) <= limit<float>);
}

TEST_CASE_TEMPLATE("swiglu, with gates next to ups and apart", T, float, double, bf16) {
  std::mt19937 random(4);
  for (num n : {0, 1, 9})
    for (num width : widths) {
      CAPTURE(n);
      CAPTURE(width);
      const auto wide = random_values<T>(random, n * 2 * width, -6, 6), dy = random_values<T>(random, n * width);
      // Seen as two halves, the same values are gates and ups apart.
      const std::vector<T> gate(wide.begin(), wide.begin() + n * width), up(wide.begin() + n * width, wide.end());
      const auto [out, dwide, apart, in_place, dgate, dup] = everywhere_and_late([&](auto& on) {
        auto gw = give(on, wide), gg = give(on, gate), gu = give(on, up), gdy = give(on, dy), gi = give(on, gate);
        auto gout = poisoned<T>(on, n * width), ga = poisoned<T>(on, n * width);
        cuda::swiglu<T>(on, read(gw), width, gout.span());
        cuda::swiglu<T>(on, read(gg), read(gu), ga.span());
        cuda::swiglu<T>(on, read(gi), read(gu), gi.span());
        cuda::swiglu_backward<T>(on, gw.span(), width, read(gdy));
        cuda::swiglu_backward<T>(on, gg.span(), gu.span(), read(gdy));
        return std::tuple(take(on, gout), take(on, gw), take(on, ga), take(on, gi), take(on, gg), take(on, gu));
      });
      const auto edy = exact(dy), eg = exact(gate), eu = exact(up);
      buffer<double> ew = exact(wide), eout(edy.size()), ea(edy.size()), edg = eg, edu = eu;
      swiglu<double>(std::span<const double>(ew), width, eout);
      swiglu<double>(std::span<const double>(eg), std::span<const double>(eu), ea);
      swiglu_backward<double>(ew, width, std::span<const double>(edy));
      swiglu_backward<double>(std::span<double>(edg), std::span<double>(edu), std::span<const double>(edy));
      CHECK(error_of(out, eout) <= limit<T>);
      CHECK(error_of(dwide, ew) <= limit<T>);
      CHECK(error_of(apart, ea) <= limit<T>);
      CHECK(error_of(in_place, ea) <= limit<T>);
      CHECK(error_of(joined(dgate, dup), [&] {
              edg.insert(edg.end(), edu.begin(), edu.end());
              return edg;
            }()) <= limit<T>);
    }
}

TEST_CASE_TEMPLATE("rotary tables and rotations", T, float, double, bf16) {
  using A = accumulated<T>;
  std::mt19937 random(5);
  for (num n : {0, 1, 6})
    for (num heads : {1, 3})
      for (num head_dim : {2, 6, 64, 128, 1030}) {
        CAPTURE(n);
        CAPTURE(heads);
        CAPTURE(head_dim);
        rotary_frequencies f = make_rotary_frequencies({}, head_dim, 4096);
        f.scale = 1.25;
        std::vector<num> positions;
        for (num i = 0; i < n; ++i) positions.push_back(17 + i * i * 37);
        const auto x = random_values<T>(random, n * heads * head_dim);
        const auto [table, there, back] = everywhere_and_late([&](auto& on) {
          auto gf = give(on, f.inverse);
          auto gp = give(on, positions);
          auto gt = poisoned<A>(on, n * head_dim);
          auto gx = give(on, x), gd = give(on, x);
          cuda::rotary_table<A>(on, read(gf), f.scale, read(gp), gt.span());
          cuda::rotate<T>(on, gx.span(), read(gt), head_dim);
          cuda::rotate_backward<T>(on, gd.span(), read(gt), head_dim);
          return std::tuple(take(on, gt), take(on, gx), take(on, gd));
        });
        buffer<A> etable(static_cast<std::size_t>(n * head_dim));  // in A: its angles are rounded as the model's are
        rotary_table<A>(f.inverse, f.scale, positions, etable);
        CHECK(error_of(table, etable) <= limit<A>);
        const buffer<double> angles(etable.begin(), etable.end());
        buffer<double> ethere = exact(x), eback = ethere;
        rotate<double>(ethere, angles, head_dim);
        rotate_backward<double>(eback, angles, head_dim);
        CHECK(error_of(there, ethere) <= limit<T>);
        CHECK(error_of(back, eback) <= limit<T>);
      }
}

TEST_CASE_TEMPLATE("all values and their squares are added up, in double", T, float, double, bf16) {
  std::mt19937 random(7);
  for (num size : {0, 1, 255, 256, 257, 3000, 300000}) {
    CAPTURE(size);
    const auto values = random_values<T>(random, size);
    double sum = 3, squares = 5;
    for (double x : exact(values)) sum += x, squares += x * x;
    const auto [totals] = everywhere_and_late([&](auto& on) {
      auto x = give(on, values);
      return std::tuple(std::vector{cuda::add_up<T>(on, read(x), 3), cuda::add_up_squares<T>(on, read(x), 5)});
    });
    CHECK(std::abs(totals[0] - sum) <= 1e-12 * static_cast<double>(size + 1));
    CHECK(std::abs(totals[1] - squares) <= 1e-12 * squares);
  }
}

TEST_CASE_TEMPLATE("steps of AdamW", A, float, double) {
  std::mt19937 random(6);
  for (num size : {0, 1, 1500}) {
    const adamw_options options{
        .learning_rate = 0.01, .beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-3, .weight_decay = 0.1};
    const auto values = random_values<A>(random, size), gradient = random_values<A>(random, size);
    adamw<double> expected(options);
    buffer<double> evalues = exact(values);
    const std::pair key{num{0}, parameter_kind::embed_tokens};
    for (int step = 0; step < 3; ++step) {
      expected.next();
      expected.update(key, evalues, exact(gradient));
    }
    const auto [gvalues, first, second] = everywhere_and_late([&](auto& on) {
      auto v = give(on, values), g = give(on, gradient);
      auto m = give(on, std::vector<A>(values.size(), A{0})), s = give(on, std::vector<A>(values.size(), A{0}));
      for (int step = 1; step <= 3; ++step)
        cuda::adamw_update<A>(
            on, {A(0.01), A(0.8), A(0.9), A(1e-3), A(0.1), A(1 - std::pow(0.8, step)), A(1 - std::pow(0.9, step))},
            read(g), v.span(), m.span(), s.span());
      return std::tuple(take(on, v), take(on, m), take(on, s));
    });
    CHECK(error_of(gvalues, evalues) <= limit<A>);
    CHECK(error_of(first, expected.at(key, evalues.size()).first) <= limit<A>);
    CHECK(error_of(second, expected.at(key, evalues.size()).second) <= limit<A>);
  }
}
