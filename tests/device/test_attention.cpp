// SPDX-License-Identifier: Apache-2.0
// Attention by kernels against that of the CPU in f64, forward and backward, on random values.
#include <numeric>  // iota
#include <string>   // to_string

#include "runtime/device/attention.hpp"
#include "runtime/device/cuda/attention.hpp"
#include "tests/device/lab.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::lab;

namespace {

using places = std::vector<token_places>;  // of rows

/// Queries, and the blocks of keys in the order in which they arrive.
struct problem {
  std::string name;
  num heads, kv_heads, head_dim, window;
  places queries;
  std::vector<places> keys;

  num rows() const { return static_cast<num>(queries.size()); }
  num size() const { return tokens(queries) * rows() * heads * head_dim; }
  num key_size(std::size_t block) const { return tokens(keys[block]) * rows() * kv_heads * head_dim; }
  static num tokens(const places& p) { return static_cast<num>(p[0].offset.size()); }
};

/// How rows look, wherever somebody holds a part of them: documents of `document_length` (0: one for all), and one in
/// `padded` tokens no key (0: none of them, 1: all). Rows differ.
struct looks {
  num rows = 2, document_length = 0, padded = 0;

  places operator()(const std::vector<num>& offsets) const {
    places all(static_cast<std::size_t>(rows));
    for (num r = 0; r < rows; ++r)
      for (const num offset : offsets) {
        token_places& p = all[static_cast<std::size_t>(r)];
        const num o = offset + 3 * r;
        p.offset.push_back(o);
        p.document.push_back(document_length == 0 ? 7 : (o + 5 * r) / document_length);
        p.key.push_back(padded == 0 || o * 7919 % 1009 % padded != 0);
      }
    return all;
  }
};

std::vector<num> range(num first, num count) {
  std::vector<num> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), first);
  return all;
}

std::vector<num> ranges(num first, num count, num second, num second_count) {
  std::vector<num> all = range(first, count), more = range(second, second_count);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<problem> problems() {
  std::vector<problem> all;
  const looks plain, documents{2, 45, 0}, long_documents{2, 130, 0}, mixed{3, 64, 5}, padded{2, 0, 7}, no_key{2, 0, 1},
      one_row{1, 0, 0};
  // Every width of a tile, filled and not.
  const auto zigzag = ranges(100, 37, 300, 70), far = ranges(0, 50, 370, 33), near = ranges(137, 80, 250, 50);
  for (const num head_dim : {8, 16, 40, 64, 128, 200})
    all.push_back({"zigzag parts in a ring, head_dim " + std::to_string(head_dim),
                   4,
                   2,
                   head_dim,
                   0,
                   plain(zigzag),
                   {plain(zigzag), plain(far), plain(near)}});
  const auto row = range(40, 150), before = range(0, 40), whole = range(0, 400);
  all.push_back({"documents", 3, 3, 24, 0, documents(row), {documents(row), documents(before)}});
  all.push_back({"a window", 2, 1, 16, 33, plain(row), {plain(before), plain(row)}});
  all.push_back({"a window, documents and padding", 6, 2, 48, 50, mixed(row), {mixed(row), mixed(before)}});
  // Tiles that nobody sees, everybody sees, and those in between.
  all.push_back({"a long row", 2, 2, 8, 0, plain(whole), {plain(whole)}});
  all.push_back({"a long row and a window", 2, 2, 8, 100, plain(whole), {plain(whole)}});
  all.push_back({"a window to the edge of a tile", 1, 1, 8, 65, one_row(range(128, 64)), {one_row(range(0, 192))}});
  all.push_back({"a window over the edge of a tile", 1, 1, 8, 66, one_row(range(128, 64)), {one_row(range(0, 192))}});
  all.push_back({"a long row of documents", 2, 1, 8, 0, long_documents(whole), {long_documents(whole)}});
  all.push_back({"a long row with padding", 2, 1, 8, 0, padded(whole), {padded(whole)}});
  all.push_back({"offsets that fall",
                 2,
                 1,
                 16,
                 0,
                 plain({90, 80, 70, 60, 50, 40, 30, 20, 10}),
                 {plain({25, 15, 95, 5, 65, 45})}});
  // Nothing to see.
  all.push_back({"keys ahead, then keys that are padding",
                 2,
                 1,
                 16,
                 0,
                 plain(range(0, 70)),
                 {plain(range(200, 70)), no_key(range(0, 70))}});
  all.push_back({"queries that see nothing", 2, 1, 16, 0, plain(range(0, 100)), {plain(range(50, 100))}});
  all.push_back({"no keys", 2, 1, 16, 0, plain(range(5, 9)), {plain({})}});
  all.push_back({"no queries", 2, 1, 16, 0, plain({}), {plain(range(5, 9))}});
  all.push_back({"no block of keys", 2, 1, 16, 0, plain(range(5, 9)), {}});
  all.push_back({"one token", 8, 4, 256, 0, plain({17}), {plain({17})}});
  return all;
}

/// What is computed, and, of the CPU, what the backward was given of it. Gradients of keys: of all blocks in one.
template <class T, class A, class G>
struct results {
  std::vector<T> out;
  std::vector<A> log_sum;
  std::vector<T> dqueries;
  std::vector<G> dkeys, dvalues;
};

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// Inputs of a problem. Gradients of keys grow from what is there. What the backward is given of the forward comes
/// from the CPU, rounded, so that both compute from the same values.
template <class T, class G>
struct instance {
  using A = accumulated<T>;
  const problem& p;
  std::vector<T> queries, dout, out;
  std::vector<A> log_sum;
  std::vector<std::vector<T>> keys, values;
  std::vector<std::vector<G>> dkeys, dvalues;
  results<double, double, double> expected;

  template <class Random>
  instance(const problem& of, Random& random) : p(of) {
    queries = random_values<T>(random, p.size(), -2, 2), dout = random_values<T>(random, p.size());
    for (std::size_t b = 0; b < p.keys.size(); ++b) {
      for (auto* all : {&keys, &values}) all->push_back(random_values<T>(random, p.key_size(b), -2, 2));
      for (auto* all : {&dkeys, &dvalues}) all->push_back(random_values<G>(random, p.key_size(b)));
    }
    const auto q = exact(queries), d = exact(dout);
    online_attention<double> attention(q, p.queries, p.heads, p.head_dim, p.window);
    for (std::size_t b = 0; b < p.keys.size(); ++b)
      attention.attend(exact(keys[b]), exact(values[b]), p.keys[b], p.kv_heads);
    expected.out.resize(q.size()), expected.log_sum.resize(q.size() / static_cast<std::size_t>(p.head_dim));
    attention.finish(expected.out, expected.log_sum);
    for (double x : expected.out) out.push_back(cuda::narrow<T>(static_cast<A>(x)));
    for (double x : expected.log_sum) log_sum.push_back(static_cast<A>(x));

    const auto o = exact(out), l = exact(log_sum);
    attention_gradient<double> gradient(q, o, d, l, p.queries, p.heads, p.head_dim, p.window);
    for (std::size_t b = 0; b < p.keys.size(); ++b) {
      auto dk = exact(dkeys[b]), dv = exact(dvalues[b]);
      gradient.attend(exact(keys[b]), exact(values[b]), p.keys[b], p.kv_heads, dk, dv);
      append(expected.dkeys, {dk.begin(), dk.end()}), append(expected.dvalues, {dv.begin(), dv.end()});
    }
    expected.dqueries.assign(gradient.dqueries().begin(), gradient.dqueries().end());
  }

  /// out, log_sum, dqueries, dkeys, dvalues
  template <class L>
  auto computed(L& on) const {
    results<T, A, G> r;
    auto q = give(on, queries);
    const cuda::uploaded_places at(on, p.queries);
    cuda::online_attention<T, L> attention(on, q.data(), at, p.heads, p.head_dim, p.window);
    for (std::size_t b = 0; b < p.keys.size(); ++b) {
      auto k = give(on, keys[b]), v = give(on, values[b]);
      attention.attend(k.data(), v.data(), cuda::uploaded_places(on, p.keys[b]), p.kv_heads);
    }
    auto its_out = poisoned<T>(on, p.size());
    auto its_log_sum = poisoned<A>(on, p.size() / p.head_dim);
    attention.finish(its_out.data(), its_log_sum.data());

    auto d = give(on, dout), o = give(on, out), dq = poisoned<T>(on, p.size());
    auto l = give(on, log_sum);
    cuda::attention_gradient<T, L> gradient(on, q.data(), o.data(), d.data(), l.data(), at, p.heads, p.head_dim,
                                            p.window);
    for (std::size_t b = 0; b < p.keys.size(); ++b) {
      auto k = give(on, keys[b]), v = give(on, values[b]);
      auto dk = give(on, dkeys[b]), dv = give(on, dvalues[b]);
      gradient.attend(k.data(), v.data(), cuda::uploaded_places(on, p.keys[b]), p.kv_heads, dk.data(), dv.data());
      append(r.dkeys, take(on, dk)), append(r.dvalues, take(on, dv));
    }
    gradient.finish(dq.data());
    return std::tuple(take(on, its_out), take(on, its_log_sum), take(on, dq), r.dkeys, r.dvalues);
  }
};

/// The largest error of a value, relative to those larger than 1; infinite where it is not a number.
template <class T>
double worst_of(const std::vector<T>& result, const std::vector<double>& expected) {
  if (result.size() != expected.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double error = std::abs(static_cast<double>(cuda::widen(result[i])) - expected[i]);
    if (!std::isfinite(error)) return INFINITY;
    worst = std::max(worst, error / std::max(1.0, std::abs(expected[i])));
  }
  return worst;
}

// Rounding to the 8 bits of bf16 costs at most half of the last, and what is rounded is a little off.
template <class T>
constexpr double most = std::is_same_v<T, double>  ? 1e-12
                        : std::is_same_v<T, float> ? 1e-5
                                                   : 0x1.02p-8;
// From bf16, weights and gradients of scores are rounded to bf16 before they are multiplied, each by at most 2^-8 of
// itself. A mean of values up to 2 is off by 2^-7 at most, before it is rounded itself; sums of the backward are of as
// many such errors of either sign, and off by no more here.
template <class T>
constexpr double most_weighted = std::is_same_v<T, bf16> ? 3 * most<bf16> : most<T>;

template <class T, class G>
void check_problems() {
  std::mt19937 random(1);
  for (const problem& p : problems()) {
    CAPTURE(p.name);
    const instance<T, G> x(p, random);
    const auto [out, log_sum, dqueries, dkeys, dvalues] = everywhere([&](auto& on) { return x.computed(on); });
    CHECK(worst_of(out, x.expected.out) <= most_weighted<T>);
    CHECK(worst_of(log_sum, x.expected.log_sum) <= most<accumulated<T>>);
    CHECK(worst_of(dqueries, x.expected.dqueries) <= most_weighted<T>);
    CHECK(worst_of(dkeys, x.expected.dkeys) <= most_weighted<T>);
    CHECK(worst_of(dvalues, x.expected.dvalues) <= most_weighted<T>);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("attention and its gradients", T, float, double, bf16) { check_problems<T, T>(); }
TEST_CASE("gradients of keys are summed in f32 where they come from bf16") { check_problems<bf16, float>(); }

TEST_CASE("what attention kernels cannot do is refused") {
  everywhere([](auto& on) {
    using attention = cuda::online_attention<float, std::remove_reference_t<decltype(on)>>;
    auto x = poisoned<float>(on, 264);
    const looks row{1, 0, 0}, rows{2, 0, 0};
    const cuda::uploaded_places at(on, row({0})), at_two(on, rows({0}));
    for (const num head_dim : {0, 4, 264})
      CHECK_THROWS_AS(attention(on, x.data(), at, 1, head_dim, 0), std::invalid_argument);
    CHECK_THROWS_AS(attention(on, x.data() + 1, at, 1, 8, 0), std::invalid_argument);
    attention a(on, x.data(), at, 1, 8, 0);
    CHECK_THROWS_AS(a.attend(x.data() + 2, x.data(), at, 1), std::invalid_argument);
    CHECK_THROWS_AS(a.attend(x.data(), x.data(), at_two, 1), std::invalid_argument);
    places uneven = rows({0, 1});
    uneven[1].offset.pop_back();
    CHECK_THROWS_AS(cuda::uploaded_places(on, uneven), std::invalid_argument);
    return std::tuple(std::vector<float>());
  });
}
