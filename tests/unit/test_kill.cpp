// SPDX-License-Identifier: Apache-2.0
// A process that is killed while it saves: what was saved before is whole, and what was being saved is not there.
#include <doctest/doctest.h>
#include <signal.h>    // SIGKILL, kill
#include <sys/wait.h>  // waitpid
#include <unistd.h>    // fork, pipe

#include <chrono>
#include <shardplan/plan_parse.hpp>
#include <thread>

#include "checkpoint_helpers.hpp"
#include "runtime/checkpoint/write_checkpoint.hpp"
#include "runtime/engine/threads/threads.hpp"
#include "runtime/sharded/training_state.hpp"

namespace shardplan::runtime {
namespace {

namespace fs = std::filesystem;

const checkpoint& weights() {
  static const checkpoint opened = checkpoint::open(SHARDPLAN_TEST_DATA "/tied");
  return opened;
}
const model_spec& model() { return weights().config().spec; }

/// Starts a process that calls `save(1)`, `save(2)` ... and kills it after the first, at a moment within about one and
/// a half more.
template <class Save>
void save_until_killed(tests::random_numbers& random, Save save) {
  int saved[2];
  REQUIRE(::pipe(saved) == 0);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    try {
      for (num step = 1;; ++step) {
        save(step);
        if (::write(saved[1], "", 1) != 1) ::_exit(1);
      }
    } catch (...) {
      ::_exit(1);
    }
  }
  ::close(saved[1]);  // so that the end of a child that fails is seen
  char once = 0;
  CHECK(::read(saved[0], &once, 1) == 1);
  const auto took = std::chrono::steady_clock::now() - begin;
  std::this_thread::sleep_for(took * random.below(1500) / 1000);
  REQUIRE(::kill(child, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  ::close(saved[0]);
  CHECK(WIFSIGNALED(status));  // it was still saving
}

/// Every parameter has one value, every moment another, both told by the step.
void save_step(const fs::path& root, num step) {
  const plan_spec plan = parse_plan("fsdp=2,tp=2").plan;
  run(world_size(plan), std::chrono::seconds(60), [&](thread_communicator& comm) {
    const rank_view<thread_communicator> view{weights().config(), plan, comm};
    adamw<double> optimizer{adamw_options{}};
    gradient_shards<double> parameters;
    std::map<gradient_store<double>::key, moments<double>> state;
    for_each_parameter(model(), [&](const parameter& p) {
      const auto n = static_cast<std::size_t>(owned(model(), plan, p, state_kind::optimizer, comm.rank()).size());
      const auto value = static_cast<double>(step);
      parameters[{p.layer, p.kind}].assign(n, value);
      state[{p.layer, p.kind}] = {buffer<double>(n, value + 0.5), buffer<double>(n, value + 0.25)};
    });
    optimizer.resume(step, std::move(state));
    save_state(view, root, parameters, optimizer);
  });
}

bool holds_step(const sharded_state& state) {
  bool good = true;
  for_each_parameter(model(), [&](const parameter& p) {
    const double first = static_cast<double>(state.step());
    for (const auto& [prefix, value] :
         {std::pair(std::string_view(), first), {first_moment, first + 0.5}, {second_moment, first + 0.25}}) {
      std::vector<double> read(static_cast<std::size_t>(p.size()));
      state.read<double>(std::string(prefix) + std::string(name_of(p).view()), {p.shape.begin(), p.shape.end()},
                         p.whole(), read);
      good = good && read == std::vector<double>(read.size(), value);
    }
  });
  return good;
}

void write_step(const fs::path& root, num step) {
  std::map<std::string, std::vector<float>> parameters;
  for_each_parameter(model(), [&](const parameter& p) {
    parameters[std::string(name_of(p).view())].assign(static_cast<std::size_t>(p.size()), static_cast<float>(step));
  });
  write_checkpoint(root / std::to_string(step), weights(), parameters, tensor_dtype::f32, 10000);  // several files
}

}  // namespace

TEST_CASE("a process killed while it saves states leaves the one before, whole") {
  tests::random_numbers random{3};
  num half_written = 0;
  const tests::temporary_directory directory;
  const fs::path root = directory.path / "state";
  save_step(root, 1);
  for (int kill = 0; kill < 40; ++kill) {
    const num last = sharded_state::open(root).step();
    save_until_killed(random, [&](num step) { save_step(root, last + step); });
    const sharded_state state = sharded_state::open(root);
    CHECK(state.step() > last);
    CHECK(holds_step(state));
    for (const auto& entry : fs::directory_iterator(root))
      if (entry.is_directory() && !fs::exists(entry.path() / "index.json") && fs::remove_all(entry.path()) > 0)
        ++half_written;
  }
  MESSAGE("half written directories seen: ", half_written);
  CHECK(half_written > 0);  // the moments were those that matter
}

TEST_CASE("a process killed while it writes a checkpoint leaves whole ones, or none") {
  tests::random_numbers random{4};
  num written = 0, half_written = 0;
  for (int kill = 0; kill < 20; ++kill) {
    const tests::temporary_directory directory;
    save_until_killed(random, [&](num step) { write_step(directory.path, step); });
    for (const auto& entry : fs::directory_iterator(directory.path)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(".")) {
        ++half_written;
        continue;
      }
      const checkpoint read = checkpoint::open(entry.path());
      for_each_parameter(model(), [&](const parameter& p) {
        std::vector<float> values(static_cast<std::size_t>(p.size()));
        read.read<float>(p, p.whole(), values);
        CHECK(values == std::vector<float>(values.size(), std::stof(name)));
      });
      ++written;
    }
  }
  MESSAGE(written, " checkpoints were written; half written directories seen: ", half_written);
  CHECK(written >= 20);
  CHECK(half_written > 0);
}

}  // namespace shardplan::runtime
