// SPDX-License-Identifier: Apache-2.0
// Matrix products by launcher, and the way a row-major product is asked of a column-major library.
#include "runtime/device/cuda/products.hpp"
#include "tests/device/lab.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::lab;

namespace {

constexpr cuda::flips ways[] = {{false, false}, {false, true}, {true, false}};
struct shape {
  num m, n, k;
};
constexpr shape shapes[] = {{1, 1, 1}, {3, 5, 7}, {1, 9, 4}, {64, 33, 100}, {0, 3, 2}, {4, 0, 2}, {4, 3, 0}};

/// Values of a matrix whose rows lie `gap` apart.
struct extent {
  num rows, cols, stride;
  extent(num r, num c, num gap) : rows(r), cols(c), stride(c + gap) {}
  num size() const { return rows * stride; }
};

}  // namespace

TEST_CASE_TEMPLATE("products in every direction", T, float, double, bf16) {
  using A = accumulated<T>;
  std::mt19937 random(41);
  for (const cuda::flips f : ways)
    for (const auto& [m, n, k] : shapes)
      for (num gap : {0, 3})
        for (double beta : {0.0, 0.5}) {
          CAPTURE(f.a);
          CAPTURE(f.b);
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(k);
          const extent ea(f.a ? k : m, f.a ? m : k, gap), eb(f.b ? n : k, f.b ? k : n, gap), ec(m, n, gap);
          const auto a = random_values<T>(random, ea.size()), b = random_values<T>(random, eb.size());
          auto c = random_values<T>(random, ec.size());
          const std::vector<T> before = c;
          if (beta == 0)
            for (num i = 0; i < m; ++i)
              for (num j = 0; j < n; ++j) c[static_cast<std::size_t>(i * ec.stride + j)] = cuda::narrow<T>(NAN);
          const std::vector<A> wide_before = random_values<A>(random, ec.size());
          std::vector<double> expected = {}, wide = {};
          const buffer<double> x = exact(a), y = exact(b), z = exact(before), wz = exact(wide_before);
          for (num i = 0; i < m; ++i)
            for (num j = 0; j < ec.stride; ++j) {
              const auto at = static_cast<std::size_t>(i * ec.stride + j);
              double sum = 0;
              for (num l = 0; l < k && j < n; ++l)
                sum += x[static_cast<std::size_t>(f.a ? l * ea.stride + i : i * ea.stride + l)] *
                       y[static_cast<std::size_t>(f.b ? j * eb.stride + l : l * eb.stride + j)];
              expected.push_back(j < n ? 0.25 * sum + (beta == 0 ? 0 : beta * z[at]) : z[at]);  // gaps stay
              wide.push_back(j < n ? 0.25 * sum + (beta == 0 ? 0 : beta * wz[at]) : wz[at]);
            }
          const auto [same_type, accumulated_type] = everywhere([&](auto& on) {
            auto ga = give(on, a), gb = give(on, b), gc = give(on, c);
            auto gw = give(on, wide_before);
            const matrix_view<const T> va(ga.data(), ea.rows, ea.cols, ea.stride),
                vb(gb.data(), eb.rows, eb.cols, eb.stride);
            const cuda::product_of_group<T> one{va, vb, {gc.data(), m, n, ec.stride}};
            const cuda::product_of_group<T, A> other{va, vb, {gw.data(), m, n, ec.stride}};
            cuda::gemm_group<T>(on, f, std::span(&one, 1), A(0.25), A(beta));
            if (f.a)
              cuda::gemm_tn<T>(on, other.a, other.b, other.c, A(0.25), A(beta));
            else if (f.b)
              cuda::gemm_nt<T>(on, other.a, other.b, other.c, A(0.25), A(beta));
            else
              cuda::gemm_nn<T>(on, other.a, other.b, other.c, A(0.25), A(beta));
            return std::tuple(take(on, gc), take(on, gw));
          });
          CHECK(error_of(same_type, expected) <= limit<T>);
          CHECK(error_of(accumulated_type, wide) <= limit<A>);
        }
}

TEST_CASE("a column-major library is asked for the transposed product") {
  std::mt19937 random(42);
  for (const cuda::flips f : ways) {
    const num m = 3, n = 5, k = 7;
    const extent ea(f.a ? k : m, f.a ? m : k, 2), eb(f.b ? n : k, f.b ? k : n, 1), ec(m, n, 4);
    const auto a = random_values<double>(random, ea.size()), b = random_values<double>(random, eb.size());
    std::vector<double> c(static_cast<std::size_t>(ec.size()), 0.0), expected = c;
    const matrix_view<const double> va(a.data(), ea.rows, ea.cols, ea.stride),
        vb(b.data(), eb.rows, eb.cols, eb.stride);
    const cuda::column_major_product p(f, va, vb, matrix_view<double>(c.data(), m, n, ec.stride));
    // What such a library does: element (i, j) of a matrix is at i + j * stride.
    const auto element = [](const std::vector<double>& x, num i, num j, num stride, bool transpose) {
      return x[static_cast<std::size_t>(transpose ? j + i * stride : i + j * stride)];
    };
    for (num i = 0; i < p.m; ++i)
      for (num j = 0; j < p.n; ++j)
        for (num l = 0; l < p.k; ++l)
          c[static_cast<std::size_t>(i + j * p.result_stride)] += element(b, i, l, p.first_stride, p.transpose_first) *
                                                                  element(a, l, j, p.second_stride, p.transpose_second);
    const cuda::host_launcher on;
    cuda::product<double, double>(on, f, va, vb, matrix_view<double>(expected.data(), m, n, ec.stride), 1, 0);
    CHECK(error_of(c, expected) <= limit<double>);
  }
}

TEST_CASE("shapes that do not agree are refused") {
  const cuda::host_launcher on;
  std::vector<float> x(100);
  const matrix_view<const float> a(x.data(), 3, 4), b(x.data(), 4, 5);
  CHECK_THROWS_AS(cuda::gemm_nt<float>(on, a, b, matrix_view<float>(x.data(), 3, 5)), std::invalid_argument);
  CHECK_THROWS_AS(cuda::gemm_tn<float>(on, a, b, matrix_view<float>(x.data(), 3, 5)), std::invalid_argument);
  CHECK_THROWS_AS(cuda::gemm_nn<float>(on, a, b, matrix_view<float>(x.data(), 3, 4)), std::invalid_argument);
}
