// SPDX-License-Identifier: Apache-2.0
// For tests that hold a plan against the baseline: rows to run on, a plan carried out by threads, the comparison.
#ifndef SHARDPLAN_TESTS_UNIT_EQUALITY_HELPERS_HPP
#define SHARDPLAN_TESTS_UNIT_EQUALITY_HELPERS_HPP

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <shardplan/check.hpp>
#include <string>
#include <vector>

#include "checkpoint_helpers.hpp"
#include "runtime/cli/thread_instances.hpp"
#include "runtime/reference/reference.hpp"
#include "runtime/verify/baseline.hpp"
#include "runtime/verify/compare.hpp"
#include "runtime/verify/inputs.hpp"

namespace shardplan::runtime {

/// A checkpoint of tests/data, opened once.
inline const checkpoint& weights_of(const std::string& fixture) {
  static std::map<std::string, checkpoint> opened;
  const auto found = opened.find(fixture);
  return found != opened.end()
             ? found->second
             : opened.emplace(fixture, checkpoint::open(SHARDPLAN_TEST_DATA "/" + fixture)).first->second;
}
inline const model_spec& model_of(const std::string& fixture) { return weights_of(fixture).config().spec; }

// ---- plans

/// The plan of the text, with the flags and the stages that the model asks for.
inline plan_spec plan_for(const model_spec& m, std::string_view text) {
  const parsed_plan parsed = parse_plan(text);
  REQUIRE_MESSAGE(parsed.ok(), std::string(text) << ": " << std::string(parsed.message.view()));
  plan_spec p = parsed.plan;
  p.kv_replicate = m.num_key_value_heads % (p.tp * ulysses_degree(p)) != 0;
  p.vocab_pad = m.vocab_size % p.tp != 0;
  p.expert_pad = num_moe_layers(m) > 0 && m.num_experts % p.ep != 0;
  if (p.stages.empty() && m.num_hidden_layers % num_stages(p) != 0)
    p.stages = nearest_even_stages(m.num_hidden_layers, num_stages(p));
  return p;
}

/// The rules that refuse the plan on these rows; empty when it is legal.
inline std::string broken_rules(const model_spec& m, const plan_spec& p, const batch_rows& rows, num micro_batches) {
  question q;
  q.model = m, q.plan = p, q.engine = engine_kind::threads;
  q.batch.length = rows.length, q.batch.rows = rows.rows, q.batch.micro_batches = micro_batches;
  std::string broken;
  check(q, [&](const violation& v) { broken += std::string(v.rule) + " "; });
  return broken;
}

// ---- rows

/// Random ids, each also a label but for some; positions with gaps beside an attention_mask of ones, which makes a row
/// one document, so that ignored positions are noticed.
inline batch_rows make_rows(const model_spec& m, num rows, num length, std::uint64_t seed = 7) {
  batch_rows b;
  b.rows = rows, b.length = length;
  tests::random_numbers random{seed};
  for (num row = 0; row < rows; ++row) {
    num position = random.below(4);
    for (num i = 0; i < length; ++i, position += 1 + (random.below(3) == 0 ? random.below(4) : 0)) {
      b.input_ids.push_back(random.below(m.vocab_size));
      b.labels.push_back(random.below(4) < row % 3 ? ignored_target : random.below(m.vocab_size));
      b.position_ids.push_back(position);
    }
  }
  b.attention_mask.assign(b.input_ids.size(), 1);
  return b;
}

/// The same tokens as documents of these lengths, told by positions alone; row i has the list turned by i.
inline batch_rows make_packed(const model_spec& m, num rows, std::vector<num> documents, std::uint64_t seed = 7) {
  num length = 0;
  for (num d : documents) length += d;
  batch_rows b = make_rows(m, rows, length, seed);
  b.attention_mask.clear();
  b.position_ids.clear();
  for (num row = 0; row < rows; ++row) {
    for (num d : documents)
      for (num i = 0; i < d; ++i) b.position_ids.push_back(i);
    std::rotate(documents.begin(), documents.begin() + 1, documents.end());
  }
  return b;
}

/// The rows of one batch after those of another; both of ids, of one length.
inline batch_rows stacked(batch_rows a, const batch_rows& b) {
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  a.rows += b.rows;
  append(a.input_ids, b.input_ids), append(a.labels, b.labels), append(a.shift_labels, b.shift_labels);
  append(a.attention_mask, b.attention_mask), append(a.position_ids, b.position_ids);
  return a;
}

/// Hides tokens [begin, end) of a row: they may not be attended to, and neither they nor what predicts them is trained.
inline void hide(batch_rows& b, num row, num begin, num end) {
  if (b.attention_mask.empty()) b.attention_mask.assign(static_cast<std::size_t>(b.rows * b.length), 1);
  for (num i = begin; i < end; ++i) {
    const auto at = static_cast<std::size_t>(row * b.length + i);
    b.attention_mask[at] = 0;
    if (!b.labels.empty()) {
      b.labels[at] = ignored_target;
      if (i + 1 < b.length) b.labels[at + 1] = ignored_target;
    }
  }
}

/// Embeddings instead of ids, which no table holds.
inline batch_rows with_embeds(batch_rows b, const model_spec& m) {
  b.inputs_embeds.clear();
  tests::random_numbers random{11};
  for (std::size_t i = 0; i < b.input_ids.size() * static_cast<std::size_t>(m.hidden_size); ++i)
    b.inputs_embeds.push_back(static_cast<double>(random.below(2001) - 1000) * 1e-3);
  b.input_ids.clear();
  return b;
}

// ---- running

/// Every rank's rows: its share of the global batch.
inline row_loader shares_of(const batch_rows& rows, const plan_spec& plan) {
  const num each = rows.rows / num_data_shards(plan);
  return [rows, plan, each](num rank) { return select_rows(rows, data_index(plan, rank) * each, each); };
}

inline run_options with_gradients() {
  run_options options;
  options.gradients = true;
  return options;
}

/// Carries the plan out; every rank loads with `load`. `sent`, if given, is what each rank sent.
template <class T, class Methods = planned_methods>
gathered_result<T> run_plan(const checkpoint& weights, const plan_spec& plan, num micro_batches, const row_loader& load,
                            const run_options& options = with_gradients(), std::vector<recorder>* sent = nullptr) {
  gathered_result<T> result;
  auto ledgers = run(world_size(plan), std::chrono::seconds(120), [&](thread_communicator& comm) {
    gathered_result<T> mine = run_sharded<T, Methods>(comm, weights, plan, micro_batches, load, options);
    if (comm.rank() == 0) result = std::move(mine);
  });
  if (sent != nullptr) *sent = std::move(ledgers);
  return result;
}

inline reference_batch as_reference(const batch_rows& rows) {
  reference_batch b;
  b.rows = rows.rows, b.length = rows.length;
  b.input_ids = rows.input_ids, b.inputs_embeds = rows.inputs_embeds;
  b.labels = rows.labels, b.shift_labels = rows.shift_labels;
  b.attention_mask = rows.attention_mask, b.position_ids = rows.position_ids;
  return b;
}

/// The baseline on the same rows; `micro_batch_of_row` as micro_batches_of_rows() gives it.
template <class T>
reference_gradients<T> baseline_of(const checkpoint& weights, const batch_rows& rows,
                                   std::vector<num> micro_batch_of_row = {}) {
  reference_batch batch = as_reference(rows);
  batch.micro_batch_of_row = std::move(micro_batch_of_row);
  return reference_model<T>(weights).gradients(batch);
}

// ---- comparison

struct limits {
  double outputs = 1e-10, gradients = 1e-10;
};

/// Collects what is not equal, tensor by tensor.
class differences {
 public:
  template <class A, class B>
  void compare(const std::string& name, const std::vector<A>& ours, const std::vector<B>& theirs, double limit,
               std::span<const char> counts = {}, num width = 1, double zero_limit = 0) {
    const std::vector<double> a(ours.begin(), ours.end()), b(theirs.begin(), theirs.end());
    note(compare_tensor<double>(name, {}, a, b, limit, counts, width, zero_limit));
  }
  void note(const tensor_comparison& c) {
    worst_ = std::max(worst_, c.error);
    if (c.equal) return;
    ++count_;
    if (count_ <= 4) text_ += fmt::format("{} by {:.2g} {}; ", c.name, c.error, c.note);
    if (count_ == 5) text_ += "...";
  }
  bool none() const { return count_ == 0; }
  const std::string& text() const { return text_; }
  double worst() const { return worst_; }

 private:
  num count_ = 0;
  std::string text_;
  double worst_ = 0;
};

/// Every gradient, by name. `theirs` is a map or a parameter_set.
template <class T, class U>
void compare_gradients(differences& d, const std::map<std::string, std::vector<T>>& ours,
                       const std::map<std::string, std::vector<U>>& theirs, double limit) {
  double largest = 0;
  for (const auto& [name, values] : theirs)
    for (U x : values) largest = std::max(largest, std::abs(static_cast<double>(x)));
  const auto names = [](const auto& tensors) {
    std::string all;
    for (const auto& entry : tensors) all += entry.first + " ";
    return all;
  };
  if (names(ours) != names(theirs)) d.note({"the names of the gradients", {}, INFINITY, 0, false, {}});
  for (const auto& [name, values] : theirs)
    if (ours.count(name) != 0) d.compare("grad." + name, ours.at(name), values, limit, {}, 1, 1e-10 * largest);
}

template <class T>
std::map<std::string, std::vector<T>> by_name(const reference::parameter_set<T>& set) {
  std::map<std::string, std::vector<T>> out;
  set.for_each([&](const parameter& p, std::span<const T> values) {
    out[std::string(name_of(p).view())].assign(values.begin(), values.end());
  });
  return out;
}

/// Outputs over real positions, the loss, the number of targets, and every gradient. Fails where nothing was compared.
template <class T>
differences compare_all(const gathered_result<T>& ours, const reference_gradients<T>& theirs, const batch_rows& rows,
                        const limits& limit) {
  differences d;
  const std::vector<char> real = real_tokens(rows);
  d.compare("logits", ours.logits, theirs.result.logits, limit.outputs, real, theirs.result.vocab);
  d.compare("token_loss", ours.token_loss, theirs.result.token_loss, limit.outputs, real);
  d.compare("loss", std::vector{ours.loss}, std::vector{theirs.result.loss}, limit.outputs);
  d.compare("num_items", std::vector{ours.num_items}, std::vector{theirs.result.num_items}, 0);
  compare_gradients(d, ours.gradients, by_name(theirs.gradients), limit.gradients);
  d.compare("gradient norm", std::vector{ours.gradient_norm}, std::vector{theirs.norm}, limit.gradients);
  const bool shown = std::any_of(ours.logits.begin(), ours.logits.end(), [](T x) { return x != 0; });
  if (!shown || (theirs.result.num_items > 0 && (theirs.norm == 0 || theirs.result.loss == 0)))
    d.note({"nothing", {}, INFINITY, 0, false, "every value is zero"});
  return d;
}

/// One model and one batch, on which many plans are held against the baseline.
class equality {
 public:
  equality(const checkpoint& weights, batch_rows rows) : weights_(weights), rows_(std::move(rows)) {}
  equality(const std::string& fixture, batch_rows rows) : equality(weights_of(fixture), std::move(rows)) {}

  /// The plan, legal, gives the baseline's outputs and gradients. `micro_batches` 0: pp.
  void expect(std::string_view text, num micro_batches = 0) {
    const model_spec& m = weights_.config().spec;
    const plan_spec plan = plan_for(m, text);
    if (micro_batches == 0) micro_batches = plan.pp;
    INFO(std::string(text), ", ", micro_batches, " micro-batches of ", rows_.rows, " rows of ", rows_.length);
    REQUIRE(broken_rules(m, plan, rows_, micro_batches) == "");
    const differences d = compare_all(run_plan<double>(weights_, plan, micro_batches, shares_of(rows_, plan)),
                                      baseline(plan, micro_batches), rows_, {});
    CHECK_MESSAGE(d.none(), d.text());
    worst_ = std::max(worst_, d.worst());
    ++plans_;
  }
  /// The same for a plan that may be illegal for the model, and is then passed over.
  bool expect_if_legal(std::string_view text) {
    const plan_spec plan = plan_for(weights_.config().spec, text);
    const bool legal = broken_rules(weights_.config().spec, plan, rows_, plan.pp) == "";
    if (legal) expect(text);
    return legal;
  }
  const reference_gradients<double>& baseline(const plan_spec& plan, num micro_batches) {
    std::vector<num> cut;  // only the routers' loss asks how rows are grouped
    if (weights_.config().output_router_logits) cut = micro_batches_of_rows(plan, rows_.rows, micro_batches);
    auto found = baselines_.find(cut);
    if (found == baselines_.end()) found = baselines_.emplace(cut, baseline_of<double>(weights_, rows_, cut)).first;
    return found->second;
  }
  const batch_rows& rows() const { return rows_; }
  num plans() const { return plans_; }
  double worst() const { return worst_; }

 private:
  const checkpoint& weights_;
  batch_rows rows_;
  std::map<std::vector<num>, reference_gradients<double>> baselines_;
  num plans_ = 0;
  double worst_ = 0;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_TESTS_UNIT_EQUALITY_HELPERS_HPP
