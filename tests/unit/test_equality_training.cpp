// SPDX-License-Identifier: Apache-2.0
// Optimizer steps under a plan are those of one rank; states that one plan saved are continued by another.
#include <fstream>
#include <nlohmann/json.hpp>

#include "equality_helpers.hpp"
#include "runtime/reference/training.hpp"

namespace shardplan::runtime {
namespace {

namespace fs = std::filesystem;

run_options steps_of(num steps, double learning_rate = 1e-2) {
  run_options options;
  options.steps = steps;
  options.optimizer.learning_rate = learning_rate;
  options.optimizer.weight_decay = 0.1;  // enough to be noticed where it is forgotten, or done twice
  return options;
}

/// The baseline's parameters and losses after some steps on the same rows.
struct trained {
  std::map<std::string, std::vector<double>> parameters;
  std::vector<double> losses;
};
trained train_baseline(const checkpoint& weights, const batch_rows& rows, num steps) {
  reference_adamw options;
  options.learning_rate = 1e-2, options.weight_decay = 0.1;
  reference_training<double> training(reference_model<double>(weights), options);
  trained out;
  for (num i = 0; i < steps; ++i) out.losses.push_back(training.step(as_reference(rows)).result.loss);
  out.parameters = by_name(training.model().weights());
  return out;
}

differences compare_training(const gathered_result<double>& ours, const trained& theirs, std::size_t first_step = 0) {
  differences d;
  compare_gradients(d, ours.parameters, theirs.parameters, 1e-10);
  d.compare("losses", ours.step_losses,
            std::vector<double>(theirs.losses.begin() + static_cast<num>(first_step), theirs.losses.end()), 1e-10);
  return d;
}

gathered_result<double> train(const std::string& fixture, const char* text, const batch_rows& rows, num micro_batches,
                              const run_options& options) {
  const plan_spec plan = plan_for(model_of(fixture), text);
  return run_plan<double>(weights_of(fixture), plan, micro_batches, shares_of(rows, plan), options);
}

/// All of a tensor of the newest state below `root`.
std::vector<double> saved(const fs::path& root, const std::string& name, const parameter& p) {
  std::vector<double> values(static_cast<std::size_t>(p.size()));
  sharded_state::open(root).read<double>(name, {p.shape.begin(), p.shape.end()}, p.whole(), values);
  return values;
}

/// Reads the newest state below `from` as the plan cuts it, and writes it below `to`.
void copy_state(const std::string& fixture, const char* text, const fs::path& from, const fs::path& to) {
  const plan_spec plan = plan_for(model_of(fixture), text);
  run(world_size(plan), std::chrono::seconds(60), [&](thread_communicator& comm) {
    const rank_view<thread_communicator> view{weights_of(fixture).config(), plan, comm};
    adamw<double> optimizer{adamw_options{}};
    gradient_shards<double> parameters;
    load_state(view, from, optimizer, [&](const parameter& p, buffer<double>&& values) {
      parameters[{p.layer, p.kind}] = std::move(values);
    });
    save_state(view, to, parameters, optimizer);
  });
}

/// Parameters and moments, to the last bit.
void expect_same_states(const std::string& fixture, const fs::path& a, const fs::path& b) {
  CHECK(sharded_state::open(a).step() == sharded_state::open(b).step());
  for_each_parameter(model_of(fixture), [&](const parameter& p) {
    for (std::string_view prefix : {std::string_view(), first_moment, second_moment}) {
      const std::string name = std::string(prefix) + std::string(name_of(p).view());
      INFO(name);
      CHECK(saved(a, name, p) == saved(b, name, p));
    }
  });
}

/// Plans of other worlds, stages, experts and zero stages; 8 rows and 2 micro-batches fit them all.
constexpr const char* plans[] = {"tp=1",
                                 "fsdp=2/zero1",
                                 "fsdp=2/zero2,tp=2/sp",
                                 "fsdp=4/zero3,ep=2",
                                 "fsdp=2/zero3,dp_replicate=2,ep=2",
                                 "pp=2,cp=2/ring/zigzag,ep=2",
                                 "pp=2/interleaved2,tp=2",
                                 "tp=4/sp,ep=2/all_gather,etp=2",
                                 "cp=4/ulysses2xring2,fsdp=1/zero1",
                                 "pp=2,fsdp=2/zero2,cp=2/all_gather/zigzag,ep=4",
                                 "pp=4,tp=2",
                                 "fsdp=4/zero3,ep=4",
                                 "tp=2/sp,cp=2/ring/zigzag,etp=2"};

}  // namespace

TEST_CASE("three optimizer steps under a plan are three steps of the baseline") {
  for (const char* name : {"tied", "sparse_step", "attention_bias"}) {
    const std::string fixture(name);
    const batch_rows rows = make_rows(model_of(fixture), 8, 7);
    const trained theirs = train_baseline(weights_of(fixture), rows, 3);
    CHECK(theirs.losses[0] - theirs.losses[2] > 0.1);  // the steps are large enough to matter
    num compared = 0;
    for (const char* text : plans) {
      INFO(fixture, " ", std::string(text));
      if (broken_rules(model_of(fixture), plan_for(model_of(fixture), text), rows, 2) != "") continue;
      const differences d = compare_training(train(fixture, text, rows, 2, steps_of(3)), theirs);
      CHECK_MESSAGE(d.none(), d.text());
      ++compared;
    }
    CHECK(compared >= 5);
  }
}

TEST_CASE("two optimizer steps under the compositions that the project was asked for, and each on a pipeline") {
  struct batch_format {
    batch_rows rows;
    const char* context;
  };
  num compared = 0;
  for (const batch_format& b : {batch_format{make_rows(model_of("tiny"), 8, 13), "cp=2/ring/zigzag"},
                                {make_packed(model_of("tiny"), 8, {4, 1, 8}), "cp=2/ulysses"}}) {
    const trained theirs = train_baseline(weights_of("tiny"), b.rows, 2);
    for (const char* rest :
         {",ep=2", ",fsdp=2,ep=4", ",fsdp=2,ep=2", ",tp=2,ep=4", ",dp_replicate=2,ep=2", ",dp_replicate=2,fsdp=2,ep=2",
          ",tp=2,ep=2/all_reduce", ",tp=2", ",fsdp=2", ",dp_replicate=2"})
      for (const char* pipeline : {"", ",pp=2"}) {
        const std::string text = std::string(b.context) + rest + pipeline;
        INFO(text);
        const differences d = compare_training(train("tiny", text.c_str(), b.rows, 2, steps_of(2)), theirs);
        CHECK_MESSAGE(d.none(), d.text());
        ++compared;
      }
  }
  CHECK(compared == 40);
}

TEST_CASE("every step replays its own choices of experts") {
  // Other ones in every step, row, place and layer; what the routers would say has no part in it.
  const std::string fixture = "tiny";
  const batch_rows rows = make_rows(model_of(fixture), 4, 7);
  std::vector<expert_choices> forced(3, {4, 7, 2, {}});
  for (num step = 0; step < 3; ++step)
    for (num i = 0; i < 8 * 4 * 7; ++i) {
      forced[static_cast<std::size_t>(step)].experts.push_back((i * 5 + i / 7 + step) % 8);
      forced[static_cast<std::size_t>(step)].experts.push_back((i * 5 + i / 7 + step + 1 + i % 6) % 8);
    }
  const auto train_with = [&](const char* text, std::span<const expert_choices> replay) {
    run_options options = steps_of(3);
    options.replay = replay;
    return train(fixture, text, rows, 2, options);
  };
  const auto one = train_with("tp=1", forced);
  for (const char* text : {"cp=2/ring/zigzag", "pp=2,tp=2/sp", "fsdp=2/zero1,ep=2", "tp=2,ep=2/all_reduce"}) {
    INFO(std::string(text));
    const differences d = compare_training(train_with(text, forced), {one.parameters, one.step_losses});
    CHECK_MESSAGE(d.none(), d.text());
  }
  // Without choices a step is the routers', and with those of another step it is another one: from there on.
  for (const std::size_t step : {std::size_t{1}, std::size_t{2}})
    for (const std::vector<num>& other : {std::vector<num>(), forced[0].experts}) {
      std::vector<expert_choices> some = forced;
      some[step].experts = other;
      const std::vector<double> losses = train_with("fsdp=2,ep=2", some).step_losses;
      for (std::size_t i = 0; i < 3; ++i) CHECK((std::abs(losses[i] - one.step_losses[i]) < 1e-10) == (i < step));
    }
}

TEST_CASE("a state that is not finite is refused, and the one before stays the newest") {
  const batch_rows rows = make_rows(model_of("tied"), 4, 7);
  const tests::temporary_directory directory;
  run_options options = steps_of(1);
  options.save = directory.path;
  train("tied", "fsdp=2,tp=2", rows, 1, options);
  options.resume = directory.path;
  options.optimizer.learning_rate = 1e308;  // parameters overflow
  std::string why;
  try {
    train("tied", "pp=2,fsdp=2", rows, 2, options);
  } catch (const plan_error& e) {
    why = e.what();
  }
  CHECK(why.find("not saved: model.embed_tokens.weight") != std::string::npos);
  CHECK(sharded_state::open(directory.path).step() == 1);
}

TEST_CASE("gradients and a first loss asked for beside steps are those of the weights as they were read") {
  const batch_rows rows = make_rows(model_of("tied"), 4, 7);
  run_options options = steps_of(2);
  options.gradients = true;
  const auto ours = train("tied", "fsdp=2,tp=2/sp", rows, 2, options);
  const differences d = compare_all(ours, baseline_of<double>(weights_of("tied"), rows), rows, {});
  CHECK_MESSAGE(d.none(), d.text());
  CHECK(ours.step_losses.size() == 2);
  CHECK(ours.step_losses[1] < ours.step_losses[0]);
}

TEST_CASE("a state saved under one plan is continued under another") {
  const std::string fixture = "sparse_step";
  const batch_rows rows = make_rows(model_of(fixture), 8, 7);
  const trained theirs = train_baseline(weights_of(fixture), rows, 3);
  const std::size_t count = std::size(plans);
  for (std::size_t i = 0; i < count; ++i) {
    const char *first = plans[i], *second = plans[(i * 3 + 4) % count];
    INFO(std::string(first), " then ", std::string(second));
    if (broken_rules(model_of(fixture), plan_for(model_of(fixture), first), rows, 2) != "") continue;
    if (broken_rules(model_of(fixture), plan_for(model_of(fixture), second), rows, 2) != "") continue;
    const tests::temporary_directory directory;
    const num before = i % 2 == 0 ? 2 : 1;
    run_options save = steps_of(before);
    save.save = directory.path;
    train(fixture, first, rows, 2, save);
    run_options resume = steps_of(3 - before);
    resume.resume = directory.path;
    const differences d =
        compare_training(train(fixture, second, rows, 2, resume), theirs, static_cast<std::size_t>(before));
    CHECK_MESSAGE(d.none(), d.text());
  }
}

TEST_CASE("a state goes through any plan to the last bit") {
  const std::string fixture = "tied";
  const batch_rows rows = make_rows(model_of(fixture), 8, 7);
  const tests::temporary_directory directory;
  run_options save = steps_of(2);
  save.save = directory.path / "state";
  const auto ours = train(fixture, "pp=2,fsdp=2/zero1,ep=2", rows, 2, save);
  for_each_parameter(model_of(fixture), [&](const parameter& p) {
    const std::string name(name_of(p).view());
    CHECK(saved(directory.path / "state", name, p) == ours.parameters.at(name));
  });
  num copies = 0;
  for (const char* text : plans) {
    if (broken_rules(model_of(fixture), plan_for(model_of(fixture), text), rows, 2) != "") continue;
    INFO(std::string(text));
    const fs::path copy = directory.path / std::to_string(copies++);
    copy_state(fixture, text, directory.path / "state", copy);
    expect_same_states(fixture, directory.path / "state", copy);
  }
  CHECK(copies >= 8);
}

TEST_CASE("a state that was not finished does not count") {
  const std::string fixture = "tied";
  const batch_rows rows = make_rows(model_of(fixture), 8, 7);
  const trained theirs = train_baseline(weights_of(fixture), rows, 2);
  const tests::temporary_directory directory;
  const fs::path root = directory.path / "state", kept = directory.path / "kept";
  run_options save = steps_of(1);
  save.save = root;
  train(fixture, "fsdp=2,cp=2", rows, 2, save);
  copy_state(fixture, "tp=1", root, kept);

  // A newer step of which one rank's file is half written, and one that lacks its index.
  const fs::path newer = state_directory(root, 2, 0);
  fs::create_directory(newer);
  const std::string whole = tests::read_text(state_file(state_directory(root, 1, 0), 0));
  tests::write_text(state_file(newer, 0), whole.substr(0, whole.size() / 2));
  tests::write_text(state_file(newer, 1), whole);
  fs::create_directory(state_directory(root, 3, 0));
  tests::write_text(root / "latest.tmp", "step-00000003");
  CHECK(sharded_state::open(root).step() == 1);
  expect_same_states(fixture, root, kept);

  // A run that goes on from there writes the second step beside what was left of it.
  run_options resume = steps_of(1);
  resume.resume = root, resume.save = root;
  const differences d = compare_training(train(fixture, "pp=2,tp=2", rows, 2, resume), theirs, 1);
  CHECK_MESSAGE(d.none(), d.text());
  CHECK(sharded_state::open(root).step() == 2);
  CHECK(fs::exists(state_directory(root, 2, 1)));
}

TEST_CASE("a state whose pieces leave out a value, or hold one twice, is refused") {
  const tests::temporary_directory directory;
  run_options save;
  save.save = directory.path;
  train("tied", "fsdp=2,tp=2", make_rows(model_of("tied"), 4, 7), 1, save);
  const fs::path file = state_directory(directory.path, 0, 0) / "index.json";
  const nlohmann::json index = nlohmann::json::parse(tests::read_text(file));
  const std::string name = "model.layers.1.mlp.experts.down_proj";
  const auto refusal = [&](auto&& change) {
    nlohmann::json changed = index;
    change(changed["tensors"][name]["pieces"]);
    tests::write_text(file, changed.dump());
    return tests::message_of([&] { sharded_state::open(directory.path); });
  };
  CHECK(refusal([](nlohmann::json&) {}) == "no error");
  const std::string less = refusal([](nlohmann::json& pieces) { pieces.erase(1); });
  CHECK(less.find(name + ": the pieces must be ") != std::string::npos);
  CHECK(less.find(" values together, but are ") != std::string::npos);
  // As many values as there should be; but local numbers of experts, which every rank would begin with 0.
  const std::string twice = refusal([](nlohmann::json& pieces) { pieces[1]["region"][0] = pieces[0]["region"][0]; });
  CHECK(twice.find("the pieces must be apart, but those of ranks ") != std::string::npos);
}

TEST_CASE("a resumed step needs the moments and their count") {
  // With steps of one size the second step would be another one if moments, or their corrections, began anew.
  const batch_rows rows = make_rows(model_of("tied"), 4, 7);
  const tests::temporary_directory directory;
  run_options save = steps_of(1);
  save.save = directory.path;
  const auto first = train("tied", "tp=1", rows, 1, save);
  const trained theirs = train_baseline(weights_of("tied"), rows, 2);
  run_options resume = steps_of(1);
  resume.resume = directory.path;
  for (const char* text : {"tp=1", "fsdp=2/zero1", "fsdp=2/zero2", "fsdp=2/zero3", "fsdp=1/zero1,cp=2"}) {
    INFO(std::string(text));
    const differences d = compare_training(train("tied", text, rows, 1, resume), theirs, 1);
    CHECK_MESSAGE(d.none(), d.text());
  }
}

}  // namespace shardplan::runtime
