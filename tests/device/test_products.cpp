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
            const product_of_group<T> one{va, vb, {gc.data(), m, n, ec.stride}};
            const product_of_group<T, A> other{va, vb, {gw.data(), m, n, ec.stride}};
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

namespace {

/// Products as of experts, of which the i-th has counts[i] rows; its matrices lie one after another, with gaps of `gap`
/// between rows, in `a`, `b` and `c`.
struct group {
  cuda::flips f;
  std::vector<extent> a, b, c;

  group(cuda::flips f_, const std::vector<num>& counts, num wide, num narrow, num gap) : f(f_) {
    for (const num rows : counts) {
      const num m = f.a ? narrow : rows, n = f.a ? wide : narrow, k = f.a ? rows : wide;
      a.emplace_back(f.a ? k : m, f.a ? m : k, gap), b.emplace_back(f.b ? n : k, f.b ? k : n, 2 * gap);
      c.emplace_back(m, n, gap);
    }
  }
  static num size(const std::vector<extent>& of) {
    num all = 0;
    for (const extent& e : of) all += e.size();
    return all;
  }
  template <class T, class C>
  std::vector<product_of_group<T, C>> in(const T* x, const T* y, C* z) const {
    std::vector<product_of_group<T, C>> all;
    for (std::size_t i = 0; i < a.size(); ++i) {
      all.push_back({{x, a[i].rows, a[i].cols, a[i].stride},
                     {y, b[i].rows, b[i].cols, b[i].stride},
                     {z, c[i].rows, c[i].cols, c[i].stride}});
      x += a[i].size(), y += b[i].size(), z += c[i].size();
    }
    return all;
  }
};

constexpr cuda::flips forward_flips{false, true}, input_flips{false, false}, weight_flips{true, false};
const std::vector<num> shares[] = {{}, {0}, {5}, {0, 7, 0, 1, 16, 3, 0}, {1, 1, 1}, {0, 0}};

}  // namespace

TEST_CASE_TEMPLATE("products of a group", T, float, double, bf16) {
  using A = accumulated<T>;
  std::mt19937 random(43);
  for (const cuda::flips f : {forward_flips, input_flips, weight_flips})
    for (const std::vector<num>& counts : shares)
      for (num gap : {0, 3, 8})
        for (double beta : {0.0, 1.0}) {
          const group g(f, counts, 24, 16, gap);
          const auto a = random_values<T>(random, g.size(g.a)), b = random_values<T>(random, g.size(g.b));
          const auto c = random_values<T>(random, g.size(g.c));
          const auto wide = random_values<A>(random, g.size(g.c));
          // What the CPU does, asked in double.
          const buffer<double> x = exact(a), y = exact(b);
          buffer<double> expected = exact(c), expected_wide = exact(wide);
          runtime::gemm_group<double>(f, g.in(x.data(), y.data(), expected.data()), 0.5, beta);
          runtime::gemm_group<double>(f, g.in(x.data(), y.data(), expected_wide.data()), 0.5, beta);
          const auto [same_type, accumulated_type] = everywhere([&](auto& on) {
            auto ga = give(on, a), gb = give(on, b), gc = give(on, c);
            auto gw = give(on, wide);
            const T *pa = ga.data(), *pb = gb.data();
            cuda::gemm_group<T>(on, f, g.in(pa, pb, gc.data()), A(0.5), A(beta));
            cuda::gemm_group<T, A>(on, f, g.in(pa, pb, gw.data()), A(0.5), A(beta));
            return std::tuple(take(on, gc), take(on, gw));
          });
          CAPTURE(f.a);
          CAPTURE(f.b);
          CAPTURE(counts.size());
          CAPTURE(gap);
          CHECK(error_of(same_type, expected) <= limit<T>);
          CHECK(error_of(accumulated_type, expected_wide) <= limit<A>);
        }
}

TEST_CASE("a grouped call is asked for the transposed products, their pointers on the device") {
  std::mt19937 random(44);
  for (const cuda::flips f : {forward_flips, input_flips, weight_flips}) {
    const group g(f, {5, 1, 9, 2}, 6, 4, 3);
    auto a = random_values<double>(random, g.size(g.a)), b = random_values<double>(random, g.size(g.b));
    auto c = random_values<double>(random, g.size(g.c)), expected = c;
    const double *x = a.data(), *y = b.data();
    const auto products = g.in(x, y, c.data());
    const cuda::column_major_group<double> call(f, products, 2, 0.5);
    // What such a library does: products i of group i, element (i, j) of a matrix at i + j * stride.
    const cuda::host_launcher on;
    auto pointers = cuda::pointers_on_device(on, call.pointers);
    const auto of = [&](std::size_t operand, std::size_t i) {
      return static_cast<double*>(pointers.data()[operand * products.size() + i]);
    };
    REQUIRE(pointers.size() == 3 * static_cast<num>(products.size()));
    for (std::size_t p = 0; p < products.size(); ++p) {
      REQUIRE(call.size[p] == 1);
      for (num i = 0; i < call.m[p]; ++i)
        for (num j = 0; j < call.n[p]; ++j) {
          double sum = 0;
          for (num l = 0; l < call.k[p]; ++l)
            sum += of(0, p)[f.b ? l + i * call.first_stride[p] : i + l * call.first_stride[p]] *
                   of(1, p)[f.a ? j + l * call.second_stride[p] : l + j * call.second_stride[p]];
          double& to = of(2, p)[i + j * call.result_stride[p]];
          to = call.alpha[p] * sum + call.beta[p] * to;
        }
    }
    runtime::gemm_group<double>(f, g.in(x, y, expected.data()), 2, 0.5);
    CHECK(error_of(c, expected) <= limit<double>);
  }
}

TEST_CASE("one grouped call takes operands and results of one type, aligned to 16 bytes") {
  alignas(16) bf16 x[64] = {};
  alignas(16) float wide[64] = {};
  const auto group = [&](num a, num b, num c) {
    return std::vector<product_of_group<bf16>>{{{x, 1, 8}, {x, 8, 8}, {x, 1, 8}},
                                               {{x + a, 1, 8}, {x + b, 8, 8}, {x + c, 1, 8}}};
  };
  const auto in_one_type = [&](num a, num b, num c) {
    const auto products = group(a, b, c);
    return cuda::suits_grouped_call(std::span<const product_of_group<bf16>>(products));
  };
  CHECK(in_one_type(8, 16, 24));
  CHECK_FALSE(in_one_type(4, 16, 24));
  CHECK_FALSE(in_one_type(8, 12, 24));
  CHECK_FALSE(in_one_type(8, 16, 28));
  const std::vector<product_of_group<bf16, float>> mixed{{{x, 1, 8}, {x, 8, 8}, {wide, 1, 8}}};
  CHECK_FALSE(cuda::suits_grouped_call(std::span<const product_of_group<bf16, float>>(mixed)));
}

TEST_CASE("pointers come to the device in order, however many there are") {
  for (const num size : {num{0}, num{1}, cuda::pointers_body::most, 2 * cuda::pointers_body::most + 5}) {
    std::vector<void*> pointers;  // nobody looks there; not the host's memory, which no kernel may be given
    for (num i = 0; i < size; ++i) pointers.push_back(reinterpret_cast<void*>(8 * (i + 1)));
    const auto [there] = everywhere([&](auto& on) {
      auto memory = cuda::pointers_on_device(on, pointers);
      return std::tuple(take(on, memory));
    });
    CHECK(there == pointers);
  }
}

TEST_CASE("shapes that do not agree are refused") {
  const cuda::host_launcher on;
  std::vector<float> x(100);
  const matrix_view<const float> a(x.data(), 3, 4), b(x.data(), 4, 5);
  CHECK_THROWS_AS(cuda::gemm_nt<float>(on, a, b, matrix_view<float>(x.data(), 3, 5)), std::invalid_argument);
  CHECK_THROWS_AS(cuda::gemm_tn<float>(on, a, b, matrix_view<float>(x.data(), 3, 5)), std::invalid_argument);
  CHECK_THROWS_AS(cuda::gemm_nn<float>(on, a, b, matrix_view<float>(x.data(), 3, 4)), std::invalid_argument);
  const std::vector<product_of_group<float>> products{{a, b, {x.data(), 3, 5}}, {a, b, {x.data(), 3, 4}}};
  CHECK_THROWS_AS(cuda::gemm_group<float>(on, {}, products), std::invalid_argument);
}
