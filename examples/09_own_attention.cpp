// SPDX-License-Identifier: Apache-2.0
// Attention and loss of one's own in place of the planned ones: keys and values fetched in one message, a loss in bits.
#include <cstdio>
#include <shardplan/plan_text.hpp>

#include "runtime/engine/threads/threads.hpp"
#include "runtime/reference/reference.hpp"
#include "runtime/sharded/run.hpp"
#include "runtime/verify/inputs.hpp"

using namespace shardplan;
using namespace shardplan::literals;
using namespace shardplan::runtime;
constexpr double bits = 1.4426950408889634;  // in a nat: log2(e)

struct methods : planned_methods {
  template <class T>
  struct attention {
    using all_places = std::span<const std::vector<token_places>>;  // [cp rank][row]
    buffer<T> q, kv, out, log_sum;                                  // kv: this rank's keys, then its values
    buffer<T> fetch(const auto& view) const {
      buffer<T> all(kv.size() * static_cast<std::size_t>(view.plan.cp));
      view.comm.all_gather(view.group(axis::cp), read_only(kv), std::span<T>(all));
      return all;
    }
    auto half(auto& all, std::size_t i) const { return std::span(all).subspan(i * kv.size() / 2, kv.size() / 2); }
    buffer<T> forward(const auto& view, attention_inputs<T> x, all_places places, num window) {
      const num D = view.model().head_dim, tp = view.plan.tp, heads = view.model().num_attention_heads / tp;
      q = std::move(x.q), kv = std::move(x.k), kv.insert(kv.end(), x.v.begin(), x.v.end());
      const buffer<T> all = fetch(view);
      online_attention<T> seen(q, places[view.at(axis::cp)], heads, D, window);
      for (std::size_t r = 0; r < places.size(); ++r)
        seen.attend(half(all, 2 * r), half(all, 2 * r + 1), places[r], view.model().num_key_value_heads / tp);
      out.resize(q.size()), log_sum.resize(q.size() / static_cast<std::size_t>(D));
      seen.finish(out, log_sum);
      return out;
    }
    attention_inputs<T> backward(const auto& view, buffer<T> dout, all_places places, num window) {
      const num D = view.model().head_dim, tp = view.plan.tp, heads = view.model().num_attention_heads / tp;
      buffer<T> all = fetch(view), dall(all.size(), T{0}), dkv(kv.size());
      attention_gradient<T> back(q, out, dout, log_sum, places[view.at(axis::cp)], heads, D, window);
      for (std::size_t r = 0; r < places.size(); ++r)
        back.attend(half(all, 2 * r), half(all, 2 * r + 1), places[r], view.model().num_key_value_heads / tp,
                    half(dall, 2 * r), half(dall, 2 * r + 1));
      view.comm.reduce_scatter(view.group(axis::cp), read_only(dall), std::span<T>(dkv));
      const auto middle = dkv.begin() + static_cast<num>(kv.size() / 2);
      return {back.dqueries(), {dkv.begin(), middle}, {middle, dkv.end()}};
    }
  };

  template <class T>
  struct loss : vocabulary_cross_entropy<T> {
    auto forward(const auto& view, const auto& scores, const auto& wanted, num items) {
      auto losses = vocabulary_cross_entropy<T>::forward(view, scores, wanted, items);
      for (T& x : losses.data()) x *= bits;
      return losses;
    }
    void backward(const auto& view, auto& scores, const auto& wanted, num items) {
      vocabulary_cross_entropy<T>::backward(view, scores, wanted, items);
      for (T& x : scores.data()) x *= bits;
    }
  };
};

int main() {
  const checkpoint weights = checkpoint::open(SHARDPLAN_TEST_DATA "/tiny");
  const batch_rows rows = read_inputs(SHARDPLAN_TEST_DATA "/tiny/expected.safetensors", weights.config().spec);
  run_options options;
  options.gradients = true;
  run(8, std::chrono::seconds(60), [&](thread_communicator& rank) {
    const auto load = [&](num) { return rows; };
    const auto ours = run_sharded<double, methods>(rank, weights, "cp=4/ring/zigzag,tp=2"_plan, 1, load, options);
    if (rank.rank() == 0) std::printf("ours: %.6f bits, gradients' norm %.6f\n", ours.loss, ours.gradient_norm);
  });
  const reference_batch batch{.rows = 4, .length = 16, .input_ids = rows.input_ids, .labels = rows.labels};
  const auto theirs = reference_model<double>(weights).gradients(batch);
  std::printf("baseline: %.6f bits, gradients' norm %.6f\n", theirs.result.loss * bits, theirs.norm * bits);
}
//> ours: 7.797244 bits, gradients' norm 6.032233
//> baseline: 7.797244 bits, gradients' norm 6.032233
