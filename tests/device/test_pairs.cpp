// SPDX-License-Identifier: Apache-2.0
// Pairs sorted by expert and rows that follow them, blocks of dispatch, heads of a Ulysses group: against what the
// executor does on the CPU.
#include <numeric>  // exclusive_scan, accumulate

#include "runtime/device/cuda/exchange.hpp"
#include "runtime/device/cuda/pairs.hpp"
#include "runtime/sharded/experts.hpp"
#include "tests/device/lab.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::lab;

namespace {

struct pairs_case {
  num r, per_token, experts;  // of all ranks
  num first, count;           // here
};
constexpr pairs_case pair_cases[] = {{0, 2, 8, 0, 8},  {1, 1, 1, 0, 1},      {5, 2, 8, 0, 8},
                                     {6, 3, 8, 2, 4},  {900, 4, 16, 0, 16},  {700, 8, 300, 7, 270},
                                     {40, 2, 8, 6, 2}, {3, 2, 512, 100, 20}, {300, 8, 9, 4, 0}};

/// Experts of each token; some have no token at all, and padding has -1.
std::vector<num> chosen_experts(std::mt19937& random, const pairs_case& c) {
  std::vector<num> experts, all(static_cast<std::size_t>(c.experts));
  std::iota(all.begin(), all.end(), num{0});
  for (num i = 0; i < c.r; ++i) {
    std::shuffle(all.begin(), all.end(), random);
    for (num k = 0; k < c.per_token; ++k) {
      const num e = all[static_cast<std::size_t>(k % c.experts)];
      experts.push_back(i % 5 == 3 ? -1 : e % 4 == 2 ? e - 1 : e);  // every fourth has none
    }
  }
  return experts;
}

}  // namespace

TEST_CASE_TEMPLATE("pairs are sorted, and rows go to experts and back", T, float, double, bf16) {
  using A = accumulated<T>;
  std::mt19937 random(21);
  for (const pairs_case& c : pair_cases)
    for (num H : {1, 33, 64, 300}) {
      CAPTURE(c.r);
      CAPTURE(c.count);
      CAPTURE(H);
      routing<double> chosen{c.per_token, chosen_experts(random, c), {}, {}};
      const pairs_by_expert expected(chosen.experts, c.first, c.count);
      const num p = static_cast<num>(expected.order.size()), all = c.r * c.per_token;
      const auto x = random_values<T>(random, c.r * H), results = random_values<T>(random, p * H),
                 dy = random_values<T>(random, c.r * H);
      const auto weights = random_values<A>(random, all);
      chosen.weights = exact(weights);

      const auto [order, place, counts, rows, y, drows, dweights, dx] = everywhere_and_late([&](auto& on) {
        auto ge = give(on, chosen.experts), gc = poisoned<num>(on, c.count), go = poisoned<num>(on, all),
             gp = poisoned<num>(on, all);
        cuda::sort_pairs(on, read(ge), c.first, gc.span(), go.span(), gp.span());
        const auto pairs = read(go).first(static_cast<std::size_t>(p));
        auto gx = give(on, x), gr = give(on, results), gdy = give(on, dy), gdx = give(on, x);
        auto gw = give(on, weights), gdw = poisoned<A>(on, all);
        auto grows = poisoned<T>(on, p * H), gdrows = poisoned<T>(on, p * H), gy = poisoned<T>(on, c.r * H);
        cuda::rows_of_pairs<T>(on, read(gx), pairs, c.per_token, H, grows.span());
        cuda::combine_pairs<T>(on, read(gr), read(gp), read(gw), c.per_token, H, gy.span());
        cuda::combine_pairs_backward<T>(on, read(gdy), read(gr), pairs, read(gw), c.per_token, H, gdrows.span(),
                                        gdw.span());
        cuda::add_rows_of_pairs<T>(on, gdx.span(), read(gr), read(gp), c.per_token, H);
        auto sorted = take(on, go);
        sorted.resize(static_cast<std::size_t>(p));
        return std::tuple(sorted, take(on, gp), take(on, gc), take(on, grows), take(on, gy), take(on, gdrows),
                          take(on, gdw), take(on, gdx));
      });
      CHECK(order == expected.order);
      CHECK(counts == expected.counts);
      std::vector<num> inverse(static_cast<std::size_t>(all), -1);
      for (num j = 0; j < p; ++j) inverse[static_cast<std::size_t>(expected.order[static_cast<std::size_t>(j)])] = j;
      CHECK(place == inverse);

      const buffer<double> ex = exact(x), er = exact(results), edy = exact(dy), ew = exact(weights);
      CHECK(error_of(rows, rows_of_pairs<double>(ex, expected, c.per_token, H)) == 0);
      CHECK(error_of(y, combine_pairs<double>(er, expected, ew, c.per_token, H)) <= limit<T>);
      buffer<double> edw, edx = ex;
      CHECK(error_of(drows, combine_pairs_backward<double>(edy, er, expected, ew, c.per_token, H, edw)) <= limit<T>);
      CHECK(error_of(dweights, edw) <= limit<A>);
      add_rows_of_pairs<double>(edx, er, expected, c.per_token, H);
      CHECK(error_of(dx, edx) <= limit<T>);
    }
}

TEST_CASE_TEMPLATE("blocks by sender become blocks by expert, and go back", T, float, double, bf16) {
  std::mt19937 random(22);
  for (num senders : {1, 3})
    for (num slots : {1, 5})
      for (num width : {1, 64, 70, 300}) {
        std::vector<num> counts, starts(static_cast<std::size_t>(senders * slots));  // (sender, slot)
        for (num i = 0; i < senders * slots; ++i) counts.push_back(i % 4 == 1 ? 0 : static_cast<num>(random() % 9));
        std::exclusive_scan(counts.begin(), counts.end(), starts.begin(), num{0});
        std::vector<cuda::row_block> blocks;
        num rows = 0;
        for (num slot = 0; slot < slots; ++slot)
          for (num sender = 0; sender < senders; ++sender) {
            const auto at = static_cast<std::size_t>(sender * slots + slot);
            blocks.push_back({starts[at], rows, counts[at]});
            rows += counts[at];
          }
        const auto received = random_values<T>(random, rows * width);
        std::vector<T> expected(received.size());
        for (const cuda::row_block& b : blocks)
          std::copy_n(received.begin() + b.received * width, b.rows * width, expected.begin() + b.place * width);
        const auto [sorted, back] = everywhere_and_late([&](auto& on) {
          auto from = give(on, received), to = poisoned<T>(on, rows * width), home = poisoned<T>(on, rows * width);
          auto table = give(on, blocks);
          cuda::sort_blocks<T>(on, read(from), read(table), width, to.span());
          cuda::unsort_blocks<T>(on, read(to), read(table), width, home.span());
          return std::tuple(take(on, to), take(on, home));
        });
        CHECK(error_of(sorted, exact(expected)) == 0);
        CHECK(error_of(back, exact(received)) == 0);
      }
}

TEST_CASE_TEMPLATE("tokens and heads are traded, a head of several ranks being summed", T, float, double, bf16) {
  std::mt19937 random(23);
  for (num n : {0, 1, 5})
    for (const auto& [heads, ranks] : {std::pair<num, num>{4, 1}, {8, 4}, {6, 3}, {2, 8}, {1, 4}})
      for (num head_dim : {2, 64}) {
        CAPTURE(n);
        CAPTURE(heads);
        CAPTURE(ranks);
        const num share = num_traded_heads(heads, ranks);
        const auto x = random_values<T>(random, n * heads * head_dim),
                   in = random_values<T>(random, ranks * n * share * head_dim);
        const auto [packed, summed] = everywhere_and_late([&](auto& on) {
          auto gx = give(on, x), gi = give(on, in), gp = poisoned<T>(on, ranks * n * share * head_dim),
               gs = poisoned<T>(on, n * heads * head_dim);
          cuda::pack_heads<T>(on, read(gx), heads, head_dim, ranks, gp.span());
          cuda::sum_heads<T>(on, read(gi), heads, head_dim, ranks, gs.span());
          return std::tuple(take(on, gp), take(on, gs));
        });
        const buffer<double> ex = exact(x), ei = exact(in);
        std::vector<double> epacked, esummed(ex.size(), 0.0);
        for (num rank = 0; rank < ranks; ++rank)
          for (num i = 0; i < n; ++i)
            for (num j = 0; j < share * head_dim; ++j) {
              const num at = (i * heads + first_traded_head(heads, ranks, rank)) * head_dim + j;
              esummed[static_cast<std::size_t>(at)] += ei[epacked.size()];
              epacked.push_back(ex[static_cast<std::size_t>(at)]);
            }
        CHECK(error_of(packed, epacked) == 0);
        CHECK(error_of(summed, esummed) <= limit<T>);
      }
}
