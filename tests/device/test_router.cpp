// SPDX-License-Identifier: Apache-2.0
// The router's choices, their gradient and the load-balancing loss against those of the CPU.
#include "runtime/device/cuda/router.hpp"
#include "runtime/device/ops.hpp"
#include "runtime/sharded/experts.hpp"
#include "tests/device/lab.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::lab;

namespace {

struct choice_case {
  num n, experts, per_token;
  bool normalize;
};
constexpr choice_case cases[] = {{0, 8, 2, true},    {1, 1, 1, true},    {5, 8, 2, false},
                                 {7, 8, 8, true},    {3, 33, 4, true},   {9, 128, 8, true},
                                 {600, 16, 3, true}, {4, 300, 5, false}, {2, 1000, 1, true}};

/// Scores in steps, so that many are equal, and equal in every type.
template <class A>
std::vector<A> stepped_scores(std::mt19937& random, num size) {
  std::uniform_int_distribution<int> steps(-12, 12);
  std::vector<A> scores;
  for (num i = 0; i < size; ++i) scores.push_back(static_cast<A>(steps(random)) / 8);
  return scores;
}

/// Which experts every third row is told to take: in no order.
std::vector<num> forced_experts(std::mt19937& random, const choice_case& c) {
  std::vector<num> forced(static_cast<std::size_t>(c.n * c.per_token), -1), all(static_cast<std::size_t>(c.experts));
  for (num e = 0; e < c.experts; ++e) all[static_cast<std::size_t>(e)] = e;
  for (num i = 1; i < c.n; i += 3) {
    std::shuffle(all.begin(), all.end(), random);
    std::copy_n(all.begin(), c.per_token, forced.begin() + i * c.per_token);
  }
  return forced;
}

std::vector<char> some_of(std::mt19937& random, num n) {
  std::vector<char> out;
  for (num i = 0; i < n; ++i) out.push_back(random() % 4 != 0);
  return out;
}

}  // namespace

TEST_CASE_TEMPLATE("experts are chosen as on the CPU, ties and replayed choices included", A, float, double) {
  std::mt19937 random(11);
  for (const choice_case& c : cases) {
    CAPTURE(c.n);
    CAPTURE(c.experts);
    CAPTURE(c.per_token);
    const auto scores = stepped_scores<A>(random, c.n * c.experts);
    const auto forced = forced_experts(random, c);
    const auto real = some_of(random, c.n);
    const auto dweights = random_values<A>(random, c.n * c.per_token);

    buffer<double> p = exact(scores), ew(forced.size());
    std::vector<num> chosen = forced;
    choose_experts<double>(p, c.experts, c.per_token, c.normalize, chosen, ew);
    std::vector<num> routed = chosen;
    for (num i = 0; i < c.n; ++i)
      if (!real[static_cast<std::size_t>(i)]) std::fill_n(routed.begin() + i * c.per_token, c.per_token, -1);
    buffer<double> ds = p;
    const buffer<double> edw = exact(dweights);
    choose_experts_backward<double>(std::span<double>(ds), c.experts, c.per_token, c.normalize,
                                    std::span<const num>(routed), std::span<const double>(ew),
                                    std::span<const double>(edw));

    const auto [gp, gchosen, gw, grouted, gds] = everywhere([&](auto& on) {
      auto s = give(on, scores), dw = give(on, dweights), w = poisoned<A>(on, c.n * c.per_token);
      auto e = give(on, forced);
      auto r = give(on, real);
      cuda::choose_experts<A>(on, s.span(), c.experts, c.per_token, c.normalize, e.span(), w.span());
      const auto probabilities = take(on, s);
      const auto experts = take(on, e);
      cuda::leave_out_padding(on, e.span(), read(r), c.per_token);
      cuda::choose_experts_backward<A>(on, s.span(), c.experts, c.per_token, c.normalize, read(e), read(w), read(dw));
      return std::tuple(probabilities, experts, take(on, w), take(on, e), take(on, s));
    });
    CHECK(gchosen == chosen);
    CHECK(grouted == routed);
    CHECK(error_of(gp, p) <= limit<A>);
    CHECK(error_of(gw, ew) <= limit<A>);
    if (c.experts > 1) CHECK(error_of(gds, ds) <= 10 * limit<A>);  // differences of nearly equal values
  }
}

TEST_CASE("scores that are no numbers choose experts that exist") {
  std::vector<float> scores(3 * 40, 0.5f);
  scores[5] = NAN, scores[40 + 7] = INFINITY;
  for (num e = 0; e < 39; ++e) scores[static_cast<std::size_t>(80 + e)] = -INFINITY;
  const auto [chosen] = everywhere([&](auto& on) {
    auto s = give(on, scores), w = poisoned<float>(on, 9);
    auto e = give(on, std::vector<num>(9, -1));
    cuda::choose_experts<float>(on, s.span(), 40, 3, true, e.span(), w.span());
    return std::tuple(take(on, e));
  });
  CHECK(chosen == std::vector<num>{0, 1, 2, 0, 1, 2, 39, 0, 1});
}

TEST_CASE_TEMPLATE("statistics and gradient of the load-balancing loss", A, float, double) {
  std::mt19937 random(12);
  for (const choice_case& c : cases)
    for (bool any : {true, false}) {
      CAPTURE(c.n);
      CAPTURE(c.experts);
      auto scores = random_values<A>(random, c.n * c.experts);
      routing<double> chosen{c.per_token, std::vector<num>(static_cast<std::size_t>(c.n * c.per_token), -1),
                             buffer<double>(static_cast<std::size_t>(c.n * c.per_token)), exact(scores)};
      choose_experts<double>(chosen.probabilities, c.experts, c.per_token, c.normalize, chosen.experts, chosen.weights);
      const std::vector<A> p(chosen.probabilities.begin(), chosen.probabilities.end());
      chosen.probabilities = exact(p);
      const auto counted = any ? some_of(random, c.n) : std::vector<char>(static_cast<std::size_t>(c.n), 0);
      const auto ds = random_values<A>(random, c.n * c.experts);

      balance_statistics<double> statistics(cpu_device{}, c.experts);
      statistics.add_rows(cpu_device{}, chosen, counted);
      statistics.add_rows(cpu_device{}, chosen, counted);
      buffer<double> eds = exact(ds);
      statistics.add_gradient(cpu_device{}, eds, chosen, counted, 0.25);

      const auto [gstatistics, gds] = everywhere([&](auto& on) {
        auto gp = give(on, p), gd = give(on, ds), gs = give(on, std::vector<A>(statistics.values().size(), A{0}));
        auto ge = give(on, chosen.experts);
        auto gc = give(on, counted);
        for (int twice = 0; twice < 2; ++twice)
          cuda::add_balance<A>(on, read(ge), read(gp), read(gc), c.per_token, gs.span());
        cuda::add_balance_gradient<A>(on, gd.span(), read(gp), read(gs), read(gc), A{0.25});
        return std::tuple(take(on, gs), take(on, gd));
      });
      CHECK(error_of(gstatistics, statistics.values()) <= limit<A>);
      CHECK(error_of(gds, eds) <= limit<A>);
    }
}
