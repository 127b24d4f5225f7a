// SPDX-License-Identifier: Apache-2.0
// A dispatch kind of one's own, option of a plan and what the executor runs: a row travels once to each rank that has
// any of its experts and comes back as one sum, where the library's own dispatch sends it once per choice.
#include <cstdio>
#include <shardplan/policies.hpp>

#include "runtime/engine/threads/threads.hpp"
#include "runtime/reference/reference.hpp"
#include "runtime/sharded/run.hpp"
#include "runtime/verify/inputs.hpp"

using namespace shardplan;
using namespace shardplan::runtime;

struct once_per_rank final : planned_methods {
  static constexpr void choose_dispatch(plan_spec& p) { p.dispatch = dispatch_kind::dispatch; }  // who routes which
  template <class T>
  struct experts {
    contribution<T> here;             // what the experts of this rank add to rows
    routing<T> arrived;               // choices of the rows that came
    std::vector<num> rows, to, from;  // rows that leave, rank after rank; how many go to and come from each
    auto exchange(const auto& view, const auto& values, num width, std::vector<num> out, std::vector<num> in) const {
      for (std::size_t rank = 0; rank < in.size(); ++rank) in[rank] *= width, out[rank] *= width;
      std::decay_t<decltype(values)> got(static_cast<std::size_t>(std::accumulate(in.begin(), in.end(), num{0})));
      view.comm.all_to_all(view.group(axis::ep | axis::etp), read_only(values), std::span<const num>(out),
                           std::span(got), std::span<const num>(in));
      return got;
    }
    template <class V>
    V there(const auto& view, const V& values, num width) const {
      V leaving;
      for (num row : rows) std::copy_n(values.begin() + row * width, width, std::back_inserter(leaving));
      return exchange(view, leaving, width, to, from);
    }
    buffer<T> home(const auto& view, const buffer<T>& parts, num width, std::size_t size) const {
      const buffer<T> back = exchange(view, parts, width, from, to);
      buffer<T> sum(size, T{0});
      for (num i = 0; i < static_cast<num>(back.size()); ++i) sum[rows[i / width] * width + i % width] += back[i];
      return sum;
    }
    buffer<T> forward(const auto& view, std::span<const T> x, const routing<T>& chosen, const auto& weights) {
      const num H = view.model().hidden_size, k = chosen.per_token, slots = expert_slots(view.plan, view.model());
      const std::vector<num> each(view.plan.ep * view.plan.etp, 1);
      rows.clear(), to.assign(each.size(), 0);
      for (num rank = 0; rank < static_cast<num>(each.size()); ++rank)  // etp ranks hold slices of the same experts
        for (num row = 0; row < static_cast<num>(x.size()) / H; ++row)
          for (num j = 0; j < k; ++j)
            if (const num expert = chosen.experts[row * k + j]; expert >= 0 && expert / slots == rank / view.plan.etp)
              rows.push_back(row), ++to[rank], j = k;
      from = exchange(view, to, 1, each, each);
      const auto x_here = there(view, buffer<T>(x.begin(), x.end()), H);
      arrived = {k, there(view, chosen.experts, k), there(view, chosen.weights, k), {}};
      return home(view, here.forward(view, read_only(x_here), arrived, weights), H, x.size());
    }
    buffer<T> backward(const auto& view, std::span<const T> dy, const routing<T>& chosen, const auto& weights,
                       std::span<T> dgate_up, std::span<T> ddown, buffer<T>& dchosen) {
      const num H = view.model().hidden_size;
      const auto dy_here = there(view, buffer<T>(dy.begin(), dy.end()), H);
      const auto dx = here.backward(view, read_only(dy_here), arrived, weights, dgate_up, ddown, dchosen);
      dchosen = home(view, dchosen, chosen.per_token, chosen.weights.size());
      return home(view, dx, H, dy.size());
    }
  };
};

int main() {
  using mine = plan<context_parallel<2, ring, zigzag>, tensor_parallel<4>, expert_parallel<4, once_per_rank>>;
  const checkpoint weights = checkpoint::open(SHARDPLAN_TEST_DATA "/tiny");
  const batch_rows rows = read_inputs(SHARDPLAN_TEST_DATA "/tiny/expected.safetensors", weights.config().spec);
  const reference_batch batch{.rows = 4, .length = 16, .input_ids = rows.input_ids, .labels = rows.labels};
  const auto theirs = reference_model<double>(weights).gradients(batch);
  run(8, std::chrono::seconds(60), [&](thread_communicator& rank) {
    const auto load = [&](num) { return rows; };
    const auto ours = run_sharded<double, once_per_rank>(rank, weights, mine::spec, 1, load, {.gradients = true});
    if (rank.rank() == 0)
      std::printf("loss %.6f (baseline %.6f), gradients' norm %.6f (baseline %.6f)\n", ours.loss, theirs.result.loss,
                  ours.gradient_norm, theirs.norm);
  });
}
//> loss 5.404638 (baseline 5.404638), gradients' norm 4.181225 (baseline 4.181225)
