// SPDX-License-Identifier: Apache-2.0
// Products against three plain loops in f64, for every operation, type and kind of shape.
#include <doctest/doctest.h>

#include <algorithm>  // max
#include <atomic>     // atomic
#include <cmath>      // abs, INFINITY
#include <limits>     // numeric_limits
#include <random>     // mt19937
#include <stdexcept>  // invalid_argument
#include <thread>     // jthread
#include <vector>     // vector

#include "runtime/device/gemm.hpp"

using namespace shardplan;
using namespace shardplan::runtime;

namespace {

enum class operation { nn, nt, tn };
constexpr operation operations[] = {operation::nn, operation::nt, operation::tn};

/// A matrix whose rows lie `gap` elements apart; the gaps hold a value that nobody may read or change.
template <class T>
struct padded_matrix {
  static constexpr T untouched = T(12345);
  num rows, cols, stride;
  std::vector<T> data;

  padded_matrix(num r, num c, num gap) : rows(r), cols(c), stride(c + gap), data(r * (c + gap), untouched) {}
  T& at(num i, num j) { return data[i * stride + j]; }
  const T& at(num i, num j) const { return data[i * stride + j]; }
  matrix_view<T> view() { return {data.data(), rows, cols, stride}; }
  matrix_view<const T> view() const { return {data.data(), rows, cols, stride}; }
  template <class Random>
  void randomize(Random& random) {
    std::uniform_real_distribution<T> uniform(-1, 1);
    for (num i = 0; i < rows; ++i)
      for (num j = 0; j < cols; ++j) at(i, j) = uniform(random);
  }
  bool gaps_untouched() const {
    for (num i = 0; i < rows; ++i)
      for (num j = cols; j < stride; ++j)
        if (at(i, j) != untouched) return false;
    return true;
  }
};

struct product {
  operation op;
  num m, n, k, gap;
  double alpha, beta;
};

/// The largest error of one random product, relative to what k roundings may cost; infinite where a gap was written.
template <class T>
double error_of(const product& p, unsigned seed) {
  std::mt19937 random(seed);
  padded_matrix<T> a(p.op == operation::tn ? p.k : p.m, p.op == operation::tn ? p.m : p.k, p.gap);
  padded_matrix<T> b(p.op == operation::nt ? p.n : p.k, p.op == operation::nt ? p.k : p.n, p.gap);
  padded_matrix<T> c(p.m, p.n, p.gap);
  a.randomize(random), b.randomize(random), c.randomize(random);
  const padded_matrix<T> before = c;
  if (p.beta == 0)
    for (num i = 0; i < p.m; ++i)
      for (num j = 0; j < p.n; ++j) c.at(i, j) = std::numeric_limits<T>::quiet_NaN();

  const T alpha = T(p.alpha), beta = T(p.beta);
  if (p.op == operation::nn) gemm_nn(a.view(), b.view(), c.view(), alpha, beta);
  if (p.op == operation::nt) gemm_nt(a.view(), b.view(), c.view(), alpha, beta);
  if (p.op == operation::tn) gemm_tn(a.view(), b.view(), c.view(), alpha, beta);

  double worst = 0;
  for (num i = 0; i < p.m; ++i)
    for (num j = 0; j < p.n; ++j) {
      double sum = 0;
      for (num l = 0; l < p.k; ++l)
        sum += double(p.op == operation::tn ? a.at(l, i) : a.at(i, l)) *
               double(p.op == operation::nt ? b.at(j, l) : b.at(l, j));
      const double expected = p.alpha * sum + (p.beta == 0 ? 0 : p.beta * double(before.at(i, j)));
      const double error = std::abs(double(c.at(i, j)) - expected);
      if (!(error <= worst)) worst = error;  // a NaN sticks
    }
  if (!a.gaps_untouched() || !b.gaps_untouched() || !c.gaps_untouched()) return INFINITY;
  return worst / (double(std::numeric_limits<T>::epsilon()) * double(p.k + 2) * std::max(1.0, std::abs(p.alpha)));
}

}  // namespace

TEST_CASE_TEMPLATE("products are those of plain loops", T, float, double) {
  const num sizes[] = {0, 1, 2, 3, 7, 8, 16, 17, 33, 64, 100};
  unsigned seed = 0;
  for (operation op : operations)
    for (num m : sizes)
      for (num n : sizes)
        for (num k : sizes) {
          const product p{op, m, n, k, (m + n + k) % 3 * 5, seed % 2 ? 1.0 : -0.75, seed % 3 ? 0.0 : 0.5};
          const double error = error_of<T>(p, ++seed);
          INFO("op ", int(op), " m ", m, " n ", n, " k ", k, " gap ", p.gap, " alpha ", p.alpha, " beta ", p.beta);
          REQUIRE(error <= 1);
        }
}

TEST_CASE_TEMPLATE("products of the sizes of a layer", T, float, double) {
  constexpr num sizes[][3] = {{256, 512, 512}, {300, 64, 700}, {1, 512, 512}, {4, 1000, 96}};
  for (operation op : operations)
    for (const auto& size : sizes)
      for (double beta : {0.0, 1.0, -2.0}) {
        const product p{op, size[0], size[1], size[2], 3, 1.0, beta};
        INFO("op ", int(op), " m ", p.m, " n ", p.n, " k ", p.k, " beta ", beta);
        CHECK(error_of<T>(p, 7) <= 1);
      }
}

TEST_CASE_TEMPLATE("an empty sum scales what was there", T, float, double) {
  std::vector<T> c = {1, 2, 3, 4};
  gemm_nt({nullptr, 2, 0}, {nullptr, 2, 0}, matrix_view<T>{c.data(), 2, 2}, 1, 2);
  CHECK(c == std::vector<T>{2, 4, 6, 8});
  c[0] = std::numeric_limits<T>::quiet_NaN();
  gemm_nn({nullptr, 2, 0}, {nullptr, 0, 2}, matrix_view<T>{c.data(), 2, 2});
  CHECK(c == std::vector<T>{0, 0, 0, 0});
}

TEST_CASE("shapes that do not agree are refused") {
  std::vector<float> x(64);
  const auto view = [&](num rows, num cols) { return matrix_view<float>{x.data(), rows, cols}; };
  CHECK_THROWS_AS(gemm_nn(view(2, 3), view(4, 2), view(2, 2)), std::invalid_argument);
  CHECK_THROWS_AS(gemm_nt(view(2, 3), view(3, 2), view(2, 3)), std::invalid_argument);
  CHECK_THROWS_AS(gemm_tn(view(2, 3), view(2, 2), view(2, 2)), std::invalid_argument);
  CHECK_THROWS_AS(gemm_nn(view(2, 3), view(3, 2), view(3, 2)), std::invalid_argument);
  CHECK_THROWS_AS(gemm_nn(matrix_view<float>{x.data(), 2, 3, 2}, view(3, 2), view(2, 2)), std::invalid_argument);
}

TEST_CASE_TEMPLATE("a group is its products, those without rows among them", T, float, double) {
  std::mt19937 random(6);
  for (const flips f : {flips{}, flips{.b = true}, flips{.a = true}}) {
    std::vector<padded_matrix<T>> a, b, c;
    for (const num rows : {3, 0, 1, 8}) {
      const num m = f.a ? 4 : rows, n = f.a ? 6 : 4, k = f.a ? rows : 6;
      a.emplace_back(f.a ? k : m, f.a ? m : k, 2), b.emplace_back(f.b ? n : k, f.b ? k : n, 1), c.emplace_back(m, n, 3);
      a.back().randomize(random), b.back().randomize(random), c.back().randomize(random);
    }
    auto expected = c;
    std::vector<product_of_group<T>> group;
    for (std::size_t i = 0; i < a.size(); ++i) {
      group.push_back({a[i].view(), b[i].view(), c[i].view()});
      if (f.a)
        gemm_tn(a[i].view(), b[i].view(), expected[i].view(), T(0.5), T(2));
      else if (f.b)
        gemm_nt(a[i].view(), b[i].view(), expected[i].view(), T(0.5), T(2));
      else
        gemm_nn(a[i].view(), b[i].view(), expected[i].view(), T(0.5), T(2));
    }
    gemm_group<T>(f, group, T(0.5), T(2));
    for (std::size_t i = 0; i < c.size(); ++i) CHECK(c[i].data == expected[i].data);
  }
}

TEST_CASE("many threads at once get what one thread gets, bit for bit") {
  constexpr num count = 200;
  const auto make = [](num i, auto zero) {
    using T = decltype(zero);
    std::mt19937 random(static_cast<unsigned>(i));
    const auto size = [&] { return static_cast<num>(random() % (random() % 4 ? 70 : 300)); };
    const num m = size(), n = size(), k = size();
    padded_matrix<T> a(m, k, 0), b(n, k, 0), c(m, n, 0);
    a.randomize(random), b.randomize(random);
    gemm_nt(a.view(), b.view(), c.view());
    return c.data;
  };
  std::vector<std::vector<float>> alone_f32;
  std::vector<std::vector<double>> alone_f64;
  for (num i = 0; i < count; ++i) alone_f32.push_back(make(i, 0.0f)), alone_f64.push_back(make(i, 0.0));

  std::atomic<int> different = 0, wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (num t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        for (num j = 0; j < count; ++j) {
          const num i = (j * 7 + t * 31) % count;
          if (make(i, 0.0f) != alone_f32[i] || make(i, 0.0) != alone_f64[i]) ++different;
          const operation op = operations[j % 3];
          if (!(error_of<float>({op, i % 41, j % 37, i % 67, t, 1, 0}, static_cast<unsigned>(i)) <= 1)) ++wrong;
        }
      });
  }
  CHECK(different == 0);
  CHECK(wrong == 0);
}

TEST_CASE("a stopwatch counts the products of its thread while it lives") {
  std::vector<float> x(256 * 256, 1), y(256 * 256);
  const matrix_view<float> a{x.data(), 256, 256}, c{y.data(), 256, 256};
  gemm_stopwatch outer;
  gemm_nn(a, a, c);
  const double first = outer.seconds();
  CHECK(first > 0);
  {
    gemm_stopwatch inner;
    CHECK(inner.seconds() == 0);
    std::jthread([&] { gemm_nn(a, a, c); }).join();
    CHECK(inner.seconds() == 0);
    gemm_nn(a, a, c);
    CHECK(inner.seconds() > 0);
  }
  CHECK(outer.seconds() == first);
  gemm_nn(a, a, c);
  CHECK(outer.seconds() > first);
}
