// SPDX-License-Identifier: Apache-2.0
// Attention, experts and loss of a caller's own in place of the library's. Nothing of the library is changed for them.
#include <atomic>
#include <limits>

#include "equality_helpers.hpp"

namespace shardplan::runtime {
namespace {

/// Attention that gathers keys and values over all context-parallel ranks and does what the textbook says, token by
/// token. It knows nothing of layouts: places say where every token stands.
template <class T>
class textbook_attention {
 public:
  inline static std::atomic<num> forwards{0}, backwards{0};  ///< calls, by all ranks

  template <Communicator C>
  buffer<T> forward(const rank_view<C>& view, attention_inputs<T> x, std::span<const std::vector<token_places>> places,
                    num window) {
    ++forwards;
    x_ = std::move(x);
    out_.assign(x_.q.size(), T{0});
    visit(view, places, window, [&](const pair_of_tokens& at, const std::vector<T>& p, num query, num head) {
      for (std::size_t j = 0; j < p.size(); ++j)
        for (num d = 0; d < at.D; ++d)
          out_[at.query(query, head) + d] += p[j] * at.v[at.key(static_cast<num>(j), query, head) + d];
    });
    return out_;
  }

  template <Communicator C>
  attention_inputs<T> backward(const rank_view<C>& view, const buffer<T>& dout,
                               std::span<const std::vector<token_places>> places, num window) {
    ++backwards;
    attention_inputs<T> d{buffer<T>(x_.q.size(), T{0}), buffer<T>(x_.k.size()), buffer<T>(x_.v.size())};
    buffer<T> dk(x_.k.size() * places.size(), T{0}), dv(dk.size(), T{0});
    visit(view, places, window, [&](const pair_of_tokens& at, const std::vector<T>& p, num query, num head) {
      const auto dot = [&](const auto& a, std::size_t i, const auto& b, std::size_t j) {
        T sum = 0;
        for (num c = 0; c < at.D; ++c) sum += a[i + c] * b[j + c];
        return sum;
      };
      const std::size_t q = at.query(query, head);
      const T along = dot(dout, q, out_, q);
      for (std::size_t j = 0; j < p.size(); ++j) {
        const std::size_t k = at.key(static_cast<num>(j), query, head);
        const T ds = p[j] * (dot(dout, q, at.v, k) - along) / std::sqrt(static_cast<T>(at.D));
        for (num c = 0; c < at.D; ++c) {
          d.q[q + c] += ds * at.k[k + c];
          dk[k + c] += ds * x_.q[q + c];
          dv[k + c] += p[j] * dout[q + c];
        }
      }
    });
    const auto cp = view.group(axis::cp);
    view.comm.reduce_scatter(cp, read_only(dk), std::span<T>(d.k));
    view.comm.reduce_scatter(cp, read_only(dv), std::span<T>(d.v));
    return d;
  }

 private:
  struct pair_of_tokens {
    num D, rows, heads, kv_heads;
    buffer<T> k, v;  // of all ranks, one after another
    std::size_t query(num token, num head) const { return static_cast<std::size_t>((token * heads + head) * D); }
    /// Key `j` of the row of `token`, counted over all ranks.
    std::size_t key(num j, num token, num head) const {
      return static_cast<std::size_t>(((j * rows + token % rows) * kv_heads + head * kv_heads / heads) * D);
    }
  };

  /// Calls f(where, probabilities of all keys, query token, head) for every token and head of this rank.
  template <Communicator C, class F>
  void visit(const rank_view<C>& view, std::span<const std::vector<token_places>> places, num window, F&& f) {
    const auto cp = view.group(axis::cp);
    const num D = view.model().head_dim, rows = static_cast<num>(places[0].size());
    const num length = static_cast<num>(places[0][0].offset.size()), n = rows * length;
    pair_of_tokens at{D,  rows, static_cast<num>(x_.q.size()) / (n * D), static_cast<num>(x_.k.size()) / (n * D),
                      {}, {}};
    at.k.resize(x_.k.size() * places.size()), at.v.resize(at.k.size());
    view.comm.all_gather(cp, read_only(x_.k), std::span<T>(at.k));
    view.comm.all_gather(cp, read_only(x_.v), std::span<T>(at.v));
    for (num token = 0; token < n; ++token) {
      const token_places& mine = places[static_cast<std::size_t>(cp.index())][static_cast<std::size_t>(token % rows)];
      const auto me = static_cast<std::size_t>(token / rows);
      for (num head = 0; head < at.heads; ++head) {
        std::vector<T> p;
        T largest = -std::numeric_limits<T>::infinity(), sum = 0;
        for (num j = 0; j < length * cp.size(); ++j) {
          const token_places& theirs =
              places[static_cast<std::size_t>(j / length)][static_cast<std::size_t>(token % rows)];
          const auto it = static_cast<std::size_t>(j % length);
          const num behind = mine.offset[me] - theirs.offset[it];
          const bool seen = theirs.key[it] && theirs.document[it] == mine.document[me] && behind >= 0 &&
                            (window == 0 || behind < window);
          T score = 0;
          for (num d = 0; d < D; ++d) score += x_.q[at.query(token, head) + d] * at.k[at.key(j, token, head) + d];
          p.push_back(seen ? score / std::sqrt(static_cast<T>(D)) : -std::numeric_limits<T>::infinity());
          largest = std::max(largest, p.back());
        }
        if (largest == -std::numeric_limits<T>::infinity()) continue;  // sees nothing
        for (T& x : p) sum += x = std::exp(x - largest);
        for (T& x : p) x /= sum;
        f(at, p, token, head);
      }
    }
  }

  attention_inputs<T> x_;
  buffer<T> out_;
};

/// Cross-entropy with smoothed labels, and half the weight for targets of odd id:
///   weight * ((1 - s) * -log p(target) + s / V * sum over v of -log p(v))
constexpr double smoothing = 0.2, weights_of_targets[] = {1, 0.5};

template <class T>
class smoothed_loss {
 public:
  template <Layout L, Communicator C>
  sequence<token_losses, L, buffer<T>> forward(const rank_view<C>& view, const sequence<logits, L, buffer<T>>& scores,
                                               const num_sequence<targets, L>& wanted, num num_items) {
    const auto V = static_cast<T>(view.model().vocab_size);
    sequence<token_losses, L, buffer<T>> loss = plain_.forward(view, scores, wanted, num_items);
    // -log p(v) = log_sum - logit(v), and the plain loss is log_sum - logit(target): only sums of logits are missing.
    std::vector<T> sums(static_cast<std::size_t>(scores.tokens())), picked(sums.size());
    pick_targets<T>(scores.data(), wanted.data(), vocabulary_here(view).begin, picked);
    for (std::size_t i = 0; i < sums.size(); ++i)
      for (num v = 0; v < scores.width(); ++v)
        sums[i] += scores.data()[i * static_cast<std::size_t>(scores.width()) + v];
    view.comm.all_reduce(vocabulary_group(view), std::span<T>(sums), reduce_op::sum);
    view.comm.all_reduce(vocabulary_group(view), std::span<T>(picked), reduce_op::sum);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (wanted.data()[i] == ignored_target) continue;
      T& l = loss.data()[i];
      l = weight(wanted.data()[i]) * (l + static_cast<T>(smoothing) * (picked[i] - sums[i] / V));
    }
    return loss;
  }
  template <Layout L, Communicator C>
  void backward(const rank_view<C>& view, sequence<logits, L, buffer<T>>& scores,
                const num_sequence<targets, L>& wanted, num num_items) {
    plain_.backward(view, scores, wanted, num_items);  // (p - [is the target]) / num_items
    if (num_items == 0) return;
    const num first = vocabulary_here(view).begin, width = scores.width();
    const T s = static_cast<T>(smoothing) / static_cast<T>(num_items), V = static_cast<T>(view.model().vocab_size);
    for (num i = 0; i < scores.tokens(); ++i) {
      const num target = wanted.data()[static_cast<std::size_t>(i)];
      if (target == ignored_target) continue;
      for (num v = 0; v < width; ++v) {
        T& d = scores.data()[static_cast<std::size_t>(i * width + v)];
        d = weight(target) * (d + s * ((first + v == target ? 1 : 0) - 1 / V));
      }
    }
  }

 private:
  static T weight(num target) { return static_cast<T>(weights_of_targets[target % 2]); }
  vocabulary_cross_entropy<T> plain_;
};

/// Experts that see the rows of their whole group: rows, choices and weights are laid out by rank, zero elsewhere, and
/// summed; so are the results.
template <class T>
class summed_experts {
 public:
  inline static std::atomic<num> forwards{0}, backwards{0};  ///< calls, by all ranks

  template <Communicator C>
  buffer<T> forward(const rank_view<C>& view, std::span<const T> x, const routing<T>& chosen,
                    const parameters_in_use<T>& w) {
    ++forwards;
    const auto group = view.group(axis::ep | axis::etp);
    rows_.assign(static_cast<std::size_t>(group.size()), 0);
    rows_[static_cast<std::size_t>(group.index())] = static_cast<num>(x.size()) / view.model().hidden_size;
    view.comm.all_reduce(group, std::span(rows_), reduce_op::sum);
    every_ = {chosen.per_token, of_all(view, std::span(chosen.experts)), of_all(view, std::span(chosen.weights)), {}};
    const auto every_x = of_all(view, x);
    return mine(view, contribution_.forward(view, read_only(every_x), every_, w));
  }
  template <Communicator C>
  buffer<T> backward(const rank_view<C>& view, std::span<const T> dy, const routing<T>&, const parameters_in_use<T>& w,
                     std::span<T> dgate_up, std::span<T> ddown, buffer<T>& dweights) {
    ++backwards;
    const auto every_dy = of_all(view, dy);
    buffer<T> every_dweights;
    const auto dx = contribution_.backward(view, read_only(every_dy), every_, w, dgate_up, ddown, every_dweights);
    dweights = mine(view, std::move(every_dweights));
    return mine(view, dx);
  }

 private:
  /// First and number of this rank's values, of those of the group, which are `all`.
  template <Communicator C>
  std::pair<num, num> part(const rank_view<C>& view, std::size_t all) const {
    const auto at = rows_.begin() + view.group(axis::ep | axis::etp).index();
    const num rows = std::accumulate(rows_.begin(), rows_.end(), num{0});
    const num width = rows == 0 ? 0 : static_cast<num>(all) / rows;
    return {std::accumulate(rows_.begin(), at, num{0}) * width, *at * width};
  }
  template <Communicator C, class V>
  auto of_all(const rank_view<C>& view, std::span<const V> values) const {
    const auto group = view.group(axis::ep | axis::etp);
    std::vector<num> sizes(rows_.size());
    sizes[static_cast<std::size_t>(group.index())] = static_cast<num>(values.size());
    view.comm.all_reduce(group, std::span(sizes), reduce_op::sum);
    using vector = std::conditional_t<std::is_same_v<V, T>, buffer<T>, std::vector<V>>;
    vector all(static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), num{0})), V{0});
    std::copy(values.begin(), values.end(),
              all.begin() + std::accumulate(sizes.begin(), sizes.begin() + group.index(), num{0}));
    view.comm.all_reduce(group, std::span(all), reduce_op::sum);
    return all;
  }
  template <Communicator C>
  buffer<T> mine(const rank_view<C>& view, buffer<T> partial) const {
    view.comm.all_reduce(view.group(axis::ep | axis::etp), std::span(partial), reduce_op::sum);
    const auto [first, size] = part(view, partial.size());
    return {partial.begin() + first, partial.begin() + first + size};
  }

  std::vector<num> rows_;  // of each member
  routing<T> every_;
  contribution<T> contribution_;
};

struct my_methods : planned_methods {
  template <class T>
  using attention = textbook_attention<T>;
  template <class T>
  using experts = summed_experts<T>;
  template <class T>
  using loss = smoothed_loss<T>;
};

/// What my_methods must give, from the baseline alone. The loss is linear in the cross-entropies with any fixed target,
/// so it and its gradients are sums over those.
struct expectation {
  std::vector<double> token_loss;
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;

  expectation(const checkpoint& weights, const batch_rows& rows) {
    const reference_model<double> model(weights);
    const num V = weights.config().spec.vocab_size, count = count_targets(rows);
    const auto tokens = static_cast<std::size_t>(rows.rows * rows.length);
    token_loss.assign(tokens, 0);
    const auto targets_of = [&](std::size_t at) {
      return (at + 1) % static_cast<std::size_t>(rows.length) == 0 ? ignored_target : rows.labels[at + 1];
    };
    // `share` of the cross-entropy with `target`, or with the token's own (-1), for targets of one parity.
    const auto add = [&](num parity, num target, double share) {
      reference_batch batch = as_reference(rows);
      batch.labels.clear();
      batch.num_items = count;
      for (std::size_t at = 0; at < tokens; ++at) {
        const num own = targets_of(at);
        batch.shift_labels.push_back(own == ignored_target || own % 2 != parity ? ignored_target
                                     : target < 0                               ? own
                                                                                : target);
      }
      const auto all = model.gradients(batch);
      loss += share * all.result.loss;
      for (std::size_t at = 0; at < tokens; ++at) token_loss[at] += share * all.result.token_loss[at];
      for (const auto& [name, values] : by_name(all.gradients)) {
        std::vector<double>& sum = gradients[name];
        sum.resize(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) sum[i] += share * values[i];
      }
    };
    for (num parity : {0, 1}) {
      add(parity, -1, weights_of_targets[parity] * (1 - smoothing));
      for (num v = 0; v < V; ++v) add(parity, v, weights_of_targets[parity] * smoothing / static_cast<double>(V));
    }
  }
};

}  // namespace

TEST_CASE("a caller's own attention, experts and loss are used in place of the library's, whatever the plan") {
  struct example {
    const char* fixture;
    batch_rows rows;
  };
  batch_rows padded = make_rows(model_of("tied"), 2, 7);
  hide(padded, 1, 0, 3);
  for (const example& e : {example{"tied", padded}, example{"tied", make_packed(model_of("tied"), 2, {4, 1, 2})},
                           example{"sliding", make_rows(model_of("sliding"), 2, 9)}}) {
    const std::string fixture(e.fixture);
    const expectation expected(weights_of(fixture), e.rows);
    const auto plain = baseline_of<double>(weights_of(fixture), e.rows);
    CHECK(std::abs(plain.result.loss - expected.loss) > 0.1);
    for (const char* text :
         {"tp=1", "cp=2/ring/zigzag", "cp=4/ring", "tp=2,cp=2/ring/zigzag_documents", "pp=2,cp=2/ring,tp=2/sp,ep=2",
          "fsdp=2/zero2,tp=2", "dp_replicate=2,cp=2/ring/zigzag,ep=2/all_gather", "fsdp=2,tp=2,ep=2,etp=2"}) {
      INFO(fixture, " ", std::string(text));
      const plan_spec plan = plan_for(model_of(fixture), text);
      textbook_attention<double>::forwards = textbook_attention<double>::backwards = 0;
      summed_experts<double>::forwards = summed_experts<double>::backwards = 0;
      const auto ours = run_plan<double, my_methods>(weights_of(fixture), plan, 1, shares_of(e.rows, plan));
      // Numbers would not tell that it was used: they are the same.
      const num calls = model_of(fixture).num_hidden_layers * world_size(plan) / plan.pp;
      CHECK(textbook_attention<double>::forwards == calls);
      CHECK(textbook_attention<double>::backwards == calls);
      const num expert_calls = num_moe_layers(model_of(fixture)) * world_size(plan) / plan.pp;
      CHECK(expert_calls > 0);
      CHECK(summed_experts<double>::forwards == expert_calls);
      CHECK(summed_experts<double>::backwards == expert_calls);
      differences d;
      const std::vector<char> real = real_tokens(e.rows);
      d.compare("logits", ours.logits, plain.result.logits, 1e-10, real, ours.vocab);
      d.compare("token_loss", ours.token_loss, expected.token_loss, 1e-10, real);
      d.compare("loss", std::vector{ours.loss}, std::vector{expected.loss}, 1e-10);
      compare_gradients(d, ours.gradients, expected.gradients, 1e-10);
      CHECK_MESSAGE(d.none(), d.text());
    }
  }
}

}  // namespace shardplan::runtime
