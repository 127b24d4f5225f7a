// SPDX-License-Identifier: Apache-2.0
// Cross-entropy and embedding of a vocabulary that is cut, against those of the CPU.
#include "runtime/device/cuda/embedding.hpp"
#include "runtime/device/cuda/vocabulary.hpp"
#include "runtime/device/ops.hpp"
#include "tests/device/lab.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::runtime::lab;

TEST_CASE_TEMPLATE("pieces of the cross-entropy", T, float, double, bf16) {
  using A = accumulated<T>;
  std::mt19937 random(31);
  for (num n : {0, 1, 6})
    for (num width : {0, 1, 100, 256, 3001})
      for (num first : {0, 40}) {
        CAPTURE(n);
        CAPTURE(width);
        CAPTURE(first);
        const auto logits = random_values<T>(random, n * width, -9, 9);
        std::vector<num> targets;
        for (num i = 0; i < n; ++i)  // of this part, of other parts on both sides, none
          targets.push_back(i % 6 == 2   ? ignored_target
                            : i % 6 == 4 ? first + width
                            : i % 6 == 5 ? first - 1
                            : width == 0 ? first
                                         : first + static_cast<num>(random() % static_cast<unsigned>(width)));
        const buffer<double> e = exact(logits);
        const auto size = static_cast<std::size_t>(n);
        buffer<double> largest(size), sums(size), picked(size), log_sum(size), loss(size), dlogits = e;
        row_max<double>(std::span<const double>(e), largest);
        row_exp_sum<double>(std::span<const double>(e), std::span<const double>(largest), sums);
        pick_targets<double>(std::span<const double>(e), targets, first, picked);
        for (std::size_t i = 0; i < size; ++i) {
          log_sum[i] = std::log(sums[i]) + largest[i];
          loss[i] = targets[i] == ignored_target ? 0 : log_sum[i] - picked[i];
        }
        cross_entropy_backward<double>(dlogits, targets, first, log_sum, 0.125);

        const auto [glargest, gpicked, gsums, glog_sum, gloss, gdlogits] = everywhere_and_late([&](auto& on) {
          auto l = give(on, logits);
          auto t = give(on, targets);
          auto m = poisoned<A>(on, n), s = poisoned<A>(on, n), p = poisoned<A>(on, n), loss = poisoned<A>(on, n);
          cuda::row_max<T>(on, read(l), m.span());
          cuda::row_exp_sum<T>(on, read(l), read(m), s.span());
          cuda::pick_targets<T>(on, read(l), read(t), first, p.span());
          const auto before = take(on, s);
          cuda::losses_of_tokens<A>(on, s.span(), read(m), read(p), read(t), loss.span());
          cuda::cross_entropy_backward<T>(on, l.span(), read(t), first, read(s), A{0.125});
          return std::tuple(take(on, m), take(on, p), before, take(on, s), take(on, loss), take(on, l));
        });
        CHECK(error_of(glargest, largest) == 0);
        CHECK(error_of(gpicked, picked) == 0);
        if (width == 0) continue;  // the sums of a vocabulary without any part here are those of others
        CHECK(error_of(gsums, sums) <= limit<A>);
        CHECK(error_of(glog_sum, log_sum) <= limit<A>);
        CHECK(error_of(gloss, loss) <= limit<A>);
        CHECK(error_of(gdlogits, dlogits) <= limit<T>);
      }
}

TEST_CASE_TEMPLATE("ids are looked up, and their gradients added in order of tokens", T, float, double, bf16) {
  using A = accumulated<T>;
  std::mt19937 random(32);
  for (num n : {0, 1, 40, 700})
    for (num H : {1, 64, 70, 300})
      for (num rows : {0, 1, 23}) {
        CAPTURE(n);
        CAPTURE(H);
        CAPTURE(rows);
        const num first = 5;
        std::vector<num> ids;  // repeated, some before and some after this part of the table
        for (num i = 0; i < n; ++i) ids.push_back(static_cast<num>(random() % static_cast<unsigned>(rows + 11)));
        const auto table = random_values<T>(random, rows * H), dx = random_values<T>(random, n * H);
        const auto grown = random_values<A>(random, rows * H);
        std::vector<double> eout(static_cast<std::size_t>(n * H), 0.0);
        std::vector<A> in_order = grown;  // the very sums
        for (num i = 0; i < n; ++i)
          if (const num row = ids[static_cast<std::size_t>(i)] - first; row >= 0 && row < rows)
            for (num h = 0; h < H; ++h) {
              eout[static_cast<std::size_t>(i * H + h)] = cuda::widen(table[static_cast<std::size_t>(row * H + h)]);
              in_order[static_cast<std::size_t>(row * H + h)] += cuda::widen(dx[static_cast<std::size_t>(i * H + h)]);
            }
        const auto [out, dtable] = everywhere_and_late([&](auto& on) {
          auto gt = give(on, table), gdx = give(on, dx), go = poisoned<T>(on, n * H);
          auto gi = give(on, ids);
          auto gd = give(on, grown);
          cuda::look_up<T>(on, read(gt), read(gi), first, H, go.span());
          cuda::look_up_backward<T>(on, read(gdx), read(gi), first, H, gd.span());
          return std::tuple(take(on, go), take(on, gd));
        });
        CHECK(error_of(out, eout) == 0);
        CHECK(dtable == in_order);
      }
}
