// SPDX-License-Identifier: Apache-2.0
// The pieces of the baseline against numbers worked out by hand.
#include <doctest/doctest.h>

#include "reference_helpers.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::reference;

namespace {

token_info tokens_of(num rows, num length, std::vector<num> document, std::vector<char> hidden = {}) {
  token_info tokens;
  tokens.rows = rows, tokens.length = length;
  tokens.document = std::move(document), tokens.is_hidden = std::move(hidden);
  tokens.micro_batch.resize(rows);
  return tokens;
}

}  // namespace

TEST_CASE_TEMPLATE("rmsnorm", T, float, double) {
  const auto x = make_tensor<T>(2, 2, {3, 4, 0, 0}), weight = make_tensor<T>(1, 2, {2, -1});
  tensor<T> y(2, 2);
  rmsnorm(x.view(), weight.all(), 0.5, y.view());
  check_close<T>(y.all(), {6 / std::sqrt(13.0), -4 / std::sqrt(13.0), 0, 0});  // mean(9, 16) + 0.5 = 13
}

TEST_CASE_TEMPLATE("linear", T, float, double) {
  const auto x = make_tensor<T>(2, 2, {1, 2, 3, 4}), weight = make_tensor<T>(3, 2, {1, 0, 0, 1, 1, 1});
  const auto bias = make_tensor<T>(1, 3, {10, 20, 30});
  tensor<T> y(2, 3);
  linear(x.view(), weight.view(), static_cast<const tensor<T>*>(nullptr), y.view());
  check_close<T>(y.all(), {1, 2, 3, 3, 4, 7});
  linear(x.view(), weight.view(), &bias, y.view());
  check_close<T>(y.all(), {11, 22, 33, 13, 24, 37});
}

TEST_CASE_TEMPLATE("rotary embedding turns halves, by angles that shrink with the pair", T, float, double) {
  rope_config rope;
  rope.theta = 100;
  const auto frequencies = make_rotary_frequencies<T>(rope, 4);
  check_close<T>(frequencies.radians_per_position, {1, 0.1});
  const std::vector<num> positions = {0, 3};
  const auto table = make_rotary_table(frequencies, std::span<const num>(positions));
  auto x = make_tensor<T>(2, 4, {1, 2, 3, 4, 1, 2, 3, 4});
  rotary(table, x.view());
  check_close<T>(x.all(), {1, 2, 3, 4,  //
                           std::cos(3.0) - 3 * std::sin(3.0), 2 * std::cos(0.3) - 4 * std::sin(0.3),
                           3 * std::cos(3.0) + std::sin(3.0), 4 * std::cos(0.3) + 2 * std::sin(0.3)});
}

TEST_CASE_TEMPLATE("YaRN blends two frequencies along a ramp", T, float, double) {
  rope_config rope;
  rope.type = rope_config::scaling::yarn;
  rope.theta = 10000, rope.factor = 4, rope.original_max_positions = 4096;
  const num D = 16;
  // Pairs of the ramp's ends: 16 ln(4096 / (32 * 2 pi)) / (2 ln 10000) = 2.6, 16 ln(4096 / (2 pi)) / (2 ln 10000)
  // = 5.6.
  const double slowed[] = {0, 0, 0, 0.25, 0.5, 0.75, 1, 1};
  std::vector<double> expected;
  for (num j = 0; j < D / 2; ++j) {
    const double radians = std::pow(10000.0, -2.0 * double(j) / double(D));
    expected.push_back(radians * (1 - slowed[j]) + radians / 4 * slowed[j]);
  }
  auto frequencies = make_rotary_frequencies<T>(rope, D);
  check_close<T>(frequencies.radians_per_position, expected);
  CHECK(frequencies.scale == doctest::Approx(0.1 * std::log(4.0) + 1).epsilon(1e-6));
  rope.mscale = 0.5, rope.mscale_all_dim = 2;
  CHECK(make_rotary_frequencies<T>(rope, D).scale ==
        doctest::Approx((0.05 * std::log(4.0) + 1) / (0.2 * std::log(4.0) + 1)).epsilon(1e-6));
  rope.attention_factor = 1.5;
  CHECK(make_rotary_frequencies<T>(rope, D).scale == T(1.5));
  rope.truncate = false;
  frequencies = make_rotary_frequencies<T>(rope, D);
  CHECK(frequencies.radians_per_position[2] == T(expected[2]));
  CHECK(frequencies.radians_per_position[3] > T(expected[3]));  // now 0.15 of the way, not 0.25
}

TEST_CASE_TEMPLATE("attention weighs the values a query sees", T, float, double) {
  // Scores of D = 4 are halved. Keys are such that query i scores key j with 2 ln(j + 1): weights 1 : 2 : 3 : 4.
  const std::vector<double> ones = {1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0};
  std::vector<double> keys(16), values(16);
  for (int j = 0; j < 4; ++j) keys[4 * j] = 2 * std::log(j + 1.0), values[4 * j] = 10 * (j + 1);
  const auto q = make_tensor<T>(4, 4, ones), k = make_tensor<T>(4, 4, keys), v = make_tensor<T>(4, 4, values);
  tensor<T> out(4, 4);
  const auto first_column = [&](const token_info& tokens, num window = 0) {
    attention(tokens, window, 4, q.view(), k.view(), v.view(), out.view());
    return std::vector<T>{out.row(0)[0], out.row(1)[0], out.row(2)[0], out.row(3)[0]};
  };
  check_close<T>(first_column(tokens_of(1, 4, {0, 0, 0, 0})), {10, 50 / 3.0, 140 / 6.0, 30});
  check_close<T>(first_column(tokens_of(1, 4, {0, 0, 0, 0}), 2), {10, 50 / 3.0, 130 / 5.0, 250 / 7.0});  // window of 2
  check_close<T>(first_column(tokens_of(1, 4, {0, 0, 2, 2}), 3), {10, 50 / 3.0, 30, 250 / 7.0});         // documents
  check_close<T>(first_column(tokens_of(2, 2, {0, 0, 0, 0})), {10, 50 / 3.0, 30, 250 / 7.0});            // two rows
  check_close<T>(first_column(tokens_of(1, 4, {0, 0, 0, 0}, {1, 1, 0, 0})), {0, 0, 30, 250 / 7.0});      // padding
}

TEST_CASE_TEMPLATE("attention of long rows is that of plain loops", T, float, double) {
  // Windows, documents and hidden keys that do not end where blocks of queries do.
  const num B = 2, S = 301, D = 6, heads = 4, kv_heads = 2;
  const num documents[] = {0, 5, 90, 250};
  std::vector<num> first_key(B * S), document(B * S);
  std::vector<char> hidden(B * S);
  for (num i = 0; i < B * S; ++i) {
    const num s = i % S;
    for (num begin : documents)
      if (i >= S && begin <= s) document[i] = begin;  // the second row is packed
    first_key[i] = std::max(document[i], s - 40);
    hidden[i] = i * i % 7 == 1;
  }
  const auto make = [&](num cols, double step) {
    tensor<T> x(B * S, cols);
    for (num i = 0; i < B * S * cols; ++i) x.all()[i] = T(2 * std::sin(step * double(i)));
    return x;
  };
  const tensor<T> q = make(heads * D, 0.7), k = make(kv_heads * D, 1.3);
  tensor<T> v = make(kv_heads * D, 2.9), out(B * S, heads * D);
  for (num i = 0; i < B * S; ++i)  // hidden means not even a trace
    if (hidden[i]) std::fill(v.row(i), v.row(i + 1), std::numeric_limits<T>::max() / 8);
  attention(tokens_of(B, S, document, hidden), 41, D, q.view(), k.view(), v.view(), out.view());

  double worst = 0;
  for (num i = 0; i < B * S; ++i)
    for (num h = 0; h < heads; ++h) {
      double sum = 0, weighted[D] = {};
      for (num j = i - i % S + first_key[i]; j <= i; ++j) {
        if (hidden[j]) continue;
        double score = 0;
        for (num d = 0; d < D; ++d) score += double(q.row(i)[h * D + d]) * double(k.row(j)[h / 2 * D + d]);
        const double weight = std::exp(score / std::sqrt(double(D)));
        sum += weight;
        for (num d = 0; d < D; ++d) weighted[d] += weight * double(v.row(j)[h / 2 * D + d]);
      }
      for (num d = 0; d < D; ++d)
        worst = std::max(worst, std::abs(double(out.row(i)[h * D + d]) - (sum > 0 ? weighted[d] / sum : 0)));
    }
  CHECK(worst <= (sizeof(T) == 4 ? 1e-5 : 1e-13));
}

TEST_CASE_TEMPLATE("query heads share key/value heads in runs", T, float, double) {
  // 4 query heads on 2 key/value heads: 0, 0, 1, 1. With one token each head returns the value it reads.
  const auto q = make_tensor<T>(1, 8, {1, 2, 3, 4, 5, 6, 7, 8}), k = make_tensor<T>(1, 4, {1, 1, 1, 1});
  const auto v = make_tensor<T>(1, 4, {1, 2, 3, 4});
  tensor<T> out(1, 8);
  attention(tokens_of(1, 1, {0}), 0, 2, q.view(), k.view(), v.view(), out.view());
  check_close<T>(out.all(), {1, 2, 1, 2, 3, 4, 3, 4});
}

TEST_CASE_TEMPLATE("the router takes the most probable experts", T, float, double) {
  // Logits ln 2, ln 5, ln 2, ln 1: probabilities .2, .5, .2, .1. Experts 0 and 2 tie: the lower index goes first.
  const auto x = make_tensor<T>(1, 1, {1});
  const auto w = make_tensor<T>(4, 1, {std::log(2.0), std::log(5.0), std::log(2.0), 0});
  const auto two = route(2, false, x, w);
  CHECK(two.experts == std::vector<num>{1, 0});
  check_close<T>(two.weights, {0.5, 0.2});
  CHECK(two.margins[0] == doctest::Approx(0).epsilon(1e-6));
  const auto three = route(3, true, x, w);
  CHECK(three.experts == std::vector<num>{1, 0, 2});
  check_close<T>(three.weights, {5 / 9.0, 2 / 9.0, 2 / 9.0});
  CHECK(three.margins[0] == doctest::Approx(0.1).epsilon(1e-6));
  CHECK(std::isinf(route(4, true, x, w).margins[0]));
}

TEST_CASE_TEMPLATE("experts and dense networks", T, float, double) {
  const auto silu = [](double z) { return z / (1 + std::exp(-z)); };
  // H = 1, I = 1; expert e has gate e + 1, up 10, down e + 1. Expert 2 gets no token.
  const auto x = make_tensor<T>(2, 1, {1, -2});
  const auto gate_up = make_tensor<T>(6, 1, {1, 10, 2, 10, 3, 10}), down = make_tensor<T>(3, 1, {1, 2, 3});
  routing<T> routes;
  routes.top_k = 2;
  routes.experts = {1, 0, 0, 1};
  routes.weights = {T(0.75), T(0.25), T(0.5), T(0.5)};
  tensor<T> y(2, 1);
  experts(routes, x, gate_up, down, y);
  check_close<T>(y.all(), {0.75 * 20 * silu(2) + 0.25 * 10 * silu(1), 0.5 * -20 * silu(-2) + 0.5 * -40 * silu(-4)});

  const auto gate = make_tensor<T>(2, 1, {1, 2}), up = make_tensor<T>(2, 1, {3, 4});
  const auto both = make_tensor<T>(1, 2, {5, 6});
  mlp(x, gate, up, both, y);
  check_close<T>(y.all(), {15 * silu(1) + 24 * silu(2), -30 * silu(-2) - 48 * silu(-4)});
}

TEST_CASE_TEMPLATE("cross-entropy", T, float, double) {
  const auto logits = make_tensor<T>(3, 2, {std::log(3.0), 0, 0, 0, 1000, 0});
  std::vector<T> loss(3);
  cross_entropy<T>(logits.view(), std::array<num, 3>{1, -100, 1}, loss);
  check_close<T>(loss, {std::log(4.0), 0, 1000});
}

// ---- backwards by hand; that they are those of the model is seen by test_reference_gradients.cpp

TEST_CASE_TEMPLATE("backwards by hand", T, float, double) {
  const auto x = make_tensor<T>(2, 2, {1, 2, 3, 4}), weight = make_tensor<T>(3, 2, {1, 0, 0, 1, 1, 1});
  const auto d_y = make_tensor<T>(2, 3, {1, 10, 100, 2, 20, 200});
  tensor<T> d_x(2, 2), d_weight(3, 2), d_bias(1, 3);
  linear_backward(x.view(), weight.view(), d_y.view(), d_x.view(), d_weight.view(), &d_bias);
  check_close<T>(d_x.all(), {101, 110, 202, 220});
  check_close<T>(d_weight.all(), {7, 10, 70, 100, 700, 1000});
  check_close<T>(d_bias.all(), {3, 30, 300});

  // x = (3, 4), mean(9, 16) + 0.5 = 13: y = w x / sqrt(13), and every x moves the root by -x / (2 * 13 sqrt(13)).
  const auto row = make_tensor<T>(1, 2, {3, 4}), w = make_tensor<T>(1, 2, {2, -1}), d = make_tensor<T>(1, 2, {1, 5});
  tensor<T> d_row(1, 2), d_w(1, 2);
  rmsnorm_backward(row.view(), w.all(), 0.5, d.view(), d_row.view(), d_w.all());
  const double root = std::sqrt(13.0), sum = 1 * 2 * 3 + 5 * -1 * 4;
  check_close<T>(d_row.all(), {2 / root - 3 * sum / (26 * root), -5 / root - 4 * sum / (26 * root)});
  check_close<T>(d_w.all(), {3 / root, 20 / root});

  const auto logits = make_tensor<T>(2, 2, {std::log(3.0), 0, 7, 7});
  tensor<T> d_logits(2, 2);
  cross_entropy_backward<T>(logits.view(), std::array<num, 2>{1, -100}, 0.5, d_logits.view());
  check_close<T>(d_logits.all(), {0.375, -0.375, 0, 0});
}

TEST_CASE("backwards add") {
  // Run twice, each gives twice as much; nothing that was there before is lost.
  const num N = 5, H = 4, D = 2, E = 3, I = 3;
  const auto make = [](num rows, num cols, double step) {
    tensor<double> t(rows, cols);
    for (num i = 0; i < rows * cols; ++i) t.all()[i] = std::sin(step * double(i + 1));
    return t;
  };
  const auto x = make(N, H, 0.7), d = make(N, H, 2.3), v = make(N, D, 0.3);
  std::vector<tensor<double>> sums(4);
  const auto adds = [&](std::vector<std::array<num, 2>> shapes, auto backward) {
    for (std::size_t i = 0; i < shapes.size(); ++i) sums[i] = tensor<double>(shapes[i][0], shapes[i][1]);
    backward();
    const auto once = sums;
    backward();
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      INFO("gradient ", i);
      CHECK(largest_of<double>(once[i].all()) > 0);
      for (num j = 0; j < shapes[i][0] * shapes[i][1]; ++j)
        CHECK(sums[i].all()[j] == doctest::Approx(2 * once[i].all()[j]).epsilon(1e-13));
    }
  };
  const auto weight = make(H, H, 1.1), norm = make(1, H, 0.9);
  adds({{N, H}, {1, H}}, [&] { rmsnorm_backward(x.view(), norm.all(), 0.1, d.view(), sums[0].view(), sums[1].all()); });
  adds({{N, H}, {H, H}, {1, H}},
       [&] { linear_backward(x.view(), weight.view(), d.view(), sums[0].view(), sums[1].view(), &sums[2]); });
  adds({{N, H}, {N, D}, {N, D}}, [&] {
    const token_info tokens = tokens_of(1, N, {0, 0, 0, 0, 0});
    attention_backward(tokens, 0, D, x.view(), v.view(), v.view(), d.view(), sums[0].view(), sums[1].view(),
                       sums[2].view());
  });
  const auto router = make(E, H, 1.3), gate_up = make(E * 2 * I, H, 0.8), down = make(E * H, I, 1.7);
  const auto routes = route(2, true, x, router);
  adds({{N, H}, {E, H}}, [&] {
    route_backward<double>(true, routes, x, router, make(N, 2, 1.1).all(), tensor<double>(N, E), sums[0], sums[1]);
  });
  adds({{N, 2}, {N, H}, {E * 2 * I, H}, {E * H, I}},
       [&] { experts_backward(routes, x, gate_up, down, d, sums[0].all(), sums[1], sums[2], sums[3]); });
  const auto gate = make(I, H, 0.6), up = make(I, H, 1.2), out = make(H, I, 2.1);
  adds({{N, H}, {I, H}, {I, H}, {H, I}},
       [&] { mlp_backward(x, gate, up, out, d, sums[0], sums[1], sums[2], sums[3]); });
  adds({{N, H}}, [&] {
    cross_entropy_backward<double>(x.view(), std::array<num, 5>{1, 0, 3, -100, 2}, 0.25, sums[0].view());
  });
  adds({{N, E}}, [&] {
    const token_info tokens = tokens_of(1, N, {0, 0, 0, 0, 0});
    balance_sums balance(tokens, E);
    balance.add(tokens, routes);
    balance_loss_backward(tokens, balance, 0.5, sums[0]);
  });
}
