// SPDX-License-Identifier: Apache-2.0
// shardplan sweep: verifies every legal plan of a number of ranks. The baseline runs once per number of rows.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <array>
#include <cstdio>
#include <map>
#include <shardplan/plan_text.hpp>
#include <shardplan/search.hpp>

#include "runtime/cli/plan_engine.hpp"
#include "runtime/cli/threads_engine.hpp"
#include "runtime/verify/inputs.hpp"
#include "runtime/verify/ledger_comparison.hpp"
#include "runtime/verify/report.hpp"

namespace shardplan::cli {
namespace {

using namespace runtime;

struct options {
  std::string checkpoint;
  num world = 0, sample = 0;
  training_options training;
  bool ledger = false;
};

/// A bar on standard error, where that is a terminal.
class progress_bar {
 public:
  progress_bar(std::size_t total, bool wanted)
      : total_(total), shown_(wanted && isatty(STDERR_FILENO) != 0 && total > 0) {}
  ~progress_bar() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;

  void show(std::size_t done, std::size_t failed) {
    constexpr std::size_t width = 40;
    const std::size_t percent = done * 100 / total_;
    if (!shown_ || (percent == last_ && failed == last_failed_)) return;
    last_ = percent, last_failed_ = failed;
    fmt::print(stderr, "\r[{:<{}}] {:3}% {} of {} plans, {} failed", std::string(done * width / total_, '#'), width,
               percent, done, total_, failed);
  }

 private:
  std::size_t total_, last_ = 101, last_failed_ = 0;
  bool shown_;
};

/// One length and one seed for all plans; two rows for every micro-batch of a data shard.
template <class T>
class sweeper {
 public:
  sweeper(const checkpoint& weights, const options& o, const common_options& common, plan_engine& engine)
      : weights_(weights), options_(o), common_(common), engine_(engine) {
    engine_.on_first([&] { model_.emplace(weights_); });
    plan_spec widest;  // no degree divides this length, so that every cut pads
    widest.cp = o.world;
    length_ = complete_sizes(weights.config().spec, widest, {}).length;
  }

  /// Null when the plan's results are equal to the baseline's, and on all but the first process; else what is wrong.
  json verify(const plan_choice& choice) {
    json wrong{{"plan", print_plan(choice.plan).view()}, {"micro_batches", choice.micro_batches}};
    try {
      const expectation& e = expected(choice);
      run_options how;
      how.gradients = options_.training.gradients;
      const plan_run<T> run = run_on_engine<T>(engine_, weights_, choice.plan, e.rows,
                                               {choice.micro_batches, common_.timeout, e.replay.choices, how});
      bool equal = true;
      engine_.on_first([&] { equal = compare_run(choice, e, run, wrong); });
      if (equal) return nullptr;
    } catch (const std::exception& e) {
      if (engine_.num_ranks() != 0) throw;  // processes are not together again after a failure
      const bool engine = dynamic_cast<const engine_error*>(&e) != nullptr;
      engine_failed_ = engine_failed_ || engine;
      wrong["error"] = {{"kind", engine ? "engine" : "internal"}, {"message", e.what()}};
    }
    return wrong;
  }
  bool engine_failed() const { return engine_failed_; }
  num length() const { return length_; }
  num entries() const { return entries_; }  ///< lines of ledgers that were compared

 private:
  static json different(const comparison& c) {
    json out = json::array();
    for (json& t : to_json(c))
      if (!t["equal"]) out.push_back(std::move(t));
    if (!c.note.empty()) out.push_back({{"name", "all"}, {"error", nullptr}, {"note", c.note}, {"equal", false}});
    return out;
  }

  struct expectation {
    batch_rows rows;
    baseline_result<T> result;
    replayed_choices replay;
  };

  bool compare_run(const plan_choice& choice, const expectation& e, const plan_run<T>& run, json& wrong) {
    const comparison c = compare(run.result, e.result, real_tokens(e.rows));
    if (!c.equal) wrong["tensors"] = different(c);
    if (!options_.ledger) return c.equal;
    const ledger_question sent{choice.micro_batches, sizeof(T), options_.training.gradients, 0};
    const ledger_comparison l = compare_ledgers(weights_, choice.plan, e.rows, sent, e.result, run.ledgers);
    entries_ += l.recorded.calls;
    if (!l.equal) wrong["ledger"] = {{"equal", false}, {"difference", l.difference}};
    return c.equal && l.equal;
  }

  const expectation& expected(const plan_choice& choice) {
    const num shards = num_data_shards(choice.plan), micro = choice.micro_batches, rows = 2 * shards * micro;
    // Which rows are a micro-batch matters to the load-balancing loss alone.
    const bool grouped = weights_.config().output_router_logits;
    const std::array<num, 3> key{rows, grouped ? shards : 1, grouped ? micro : 1};
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    expectation e;
    e.rows = random_rows(weights_.config().spec, {}, {length_, rows, 1, {}}, static_cast<std::uint64_t>(common_.seed));
    baseline_options how;
    how.gradients = options_.training.gradients;
    engine_.on_first([&] {
      e.result = model_->compute(e.rows, micro_batches_of_rows(choice.plan, rows, micro), how);
      e.replay = choices_to_replay(e.result, replay_margin<T>);
    });
    return known_.emplace(key, std::move(e)).first->second;
  }

  checkpoint weights_;
  std::optional<baseline<T>> model_;  // on the first process
  options options_;
  common_options common_;
  plan_engine& engine_;
  num length_ = 0, entries_ = 0;
  std::map<std::array<num, 3>, expectation> known_;  // by rows, data shards, micro-batches
  bool engine_failed_ = false;
};

std::string failed_text(const json& wrong) {
  constexpr std::size_t shown = 8;
  std::string why;
  if (wrong.contains("error")) why = wrong["error"]["message"];
  if (wrong.contains("ledger")) why = "ledger: " + wrong["ledger"]["difference"].get<std::string>();
  const json tensors = wrong.value("tensors", json::array());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const json& t = tensors[i];
    if (i < shown)
      why += fmt::format("{}{} {}", why.empty() ? "" : ", ", t["name"].get<std::string>(),
                         t.contains("note")     ? t["note"].get<std::string>()
                         : t["error"].is_null() ? "not finite"
                                                : fmt::format("{:.2e}", t["error"].get<double>()));
  }
  if (tensors.size() > shown) why += fmt::format(" and {} more", tensors.size() - shown);
  return fmt::format("  {} with {} micro-batches: {}\n", wrong["plan"].get<std::string>(),
                     wrong["micro_batches"].get<num>(), why);
}

template <class T>
outcome execute(const options& o, const common_options& common, plan_engine& engine, const checkpoint& weights) {
  const auto begin = std::chrono::steady_clock::now();
  const model_spec& model = weights.config().spec;
  search_options search;
  search.engine = engine.kind();
  const std::vector<plan_choice> plans = o.sample != 0
                                             ? sample_legal_plans(model, o.world, static_cast<std::size_t>(o.sample),
                                                                  static_cast<std::uint64_t>(common.seed), search)
                                             : every_legal_plan(model, o.world, search) | ::ranges::to<std::vector>();
  sweeper<T> sweep(weights, o, common, engine);
  json failed = json::array();
  {
    progress_bar bar(plans.size(), engine.is_first());
    for (std::size_t i = 0; i < plans.size(); ++i) {
      bar.show(i, failed.size());
      if (json wrong = sweep.verify(plans[i]); !wrong.is_null()) failed.push_back(std::move(wrong));
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::size_t equal = plans.size() - failed.size();

  outcome out;
  // No legal plan at all is not a yes.
  out.exit_code = sweep.engine_failed()         ? engine_error::exit_code
                  : failed.empty() && equal > 0 ? 0
                                                : plan_error::exit_code;
  out.document = {
      {"world", o.world},    {"plans", plans.size()},    {"equal", equal},
      {"failed", failed},    {"sampled", o.sample != 0}, {"dtype", name_of(common.dtype.value_or(dtype::f64))},
      {"seed", common.seed}, {"length", sweep.length()}, {"seconds", seconds}};
  out.document["gradients"] = o.training.gradients;
  if (o.ledger) out.document["ledger"] = {{"entries", sweep.entries()}};
  if (!failed.empty()) out.text = "failed\n";
  for (const json& wrong : failed) out.text += failed_text(wrong);
  out.text += fmt::format("world {}: {} {}legal plans, {} equal, {} failed, {:.1f} s\n", o.world, plans.size(),
                          o.sample != 0 ? "sampled " : "", equal, failed.size(), seconds);
  return out;
}

outcome sweep(const options& o, const common_options& common, plan_engine& engine) {
  const dtype type = plan_dtype(common);
  if (type == dtype::bf16) throw input_error("--dtype: sweep compares in f64 or f32");
  require_engine(common);
  world_of(engine, o.world);  // every plan of it has as many ranks
  const checkpoint weights = checkpoint::open(o.checkpoint);
  question q;
  q.model = weights.config().spec;
  if (const legality l = check_legality(q); !l.legal()) return refuse(l);
  agree_on_contents(engine, o.checkpoint, {});
  return type == dtype::f32 ? execute<float>(o, common, engine, weights) : execute<double>(o, common, engine, weights);
}

}  // namespace

void add_sweep(CLI::App& app, session& s) {
  const auto o = std::make_shared<options>();
  CLI::App& command = *app.add_subcommand("sweep", "verify every legal plan of a number of ranks");
  command.add_option("--checkpoint", o->checkpoint, "a directory with config.json and safetensors")
      ->required()
      ->check(not_empty, "", "")
      ->type_name("DIR");
  add_number(command, "--world", o->world, "number of ranks", 1, max_thread_ranks)->required();
  o->training.add_gradients(command, "also compare every gradient");
  command.add_flag("--ledger", o->ledger, "also compare what every rank sends with what the plan predicts");
  add_number(command, "--sample", o->sample, "so many of the plans, chosen by --seed");
  add_common(command, s);
  command.callback([o, &s] { s.action = [o, &s] { return sweep(*o, s.common, *s.engine); }; });
}

}  // namespace shardplan::cli
