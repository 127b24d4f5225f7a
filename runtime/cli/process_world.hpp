// SPDX-License-Identifier: Apache-2.0
// What processes of which each is one rank do in common beside a run: compare what they were given, let one of them
// work while the others wait, bring results together, and end together. Needs a communicator, and no engine by name.
#ifndef SHARDPLAN_RUNTIME_CLI_PROCESS_WORLD_HPP
#define SHARDPLAN_RUNTIME_CLI_PROCESS_WORLD_HPP

#include <algorithm>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cli/given_fact.hpp"
#include "runtime/engine/processes.hpp"
#include "runtime/error.hpp"
#include "runtime/sharded/results.hpp"

namespace shardplan::runtime {

/// Entries as whole numbers, to be sent; and back.
std::vector<num> to_numbers(const std::vector<ledger_entry>& entries);
recorder to_recorder(std::span<const num> numbers);

template <ProcessCommunicator C>
class process_world {
 public:
  using milliseconds = std::chrono::milliseconds;

  explicit process_world(C& comm) : comm_(comm), world_(make_group()) {}

  C& comm() { return comm_; }
  num rank() const { return comm_.rank(); }
  num size() const { return comm_.world_size(); }
  bool first() const { return rank() == 0; }

  /// Throws input_error naming ranks and values, the same on all, when anything differs.
  void agree(const std::vector<given_fact>& mine) {
    std::string text;
    for (const given_fact& f : mine) (text += f.name) += '\0', (text += f.value) += '\0';
    std::vector<std::vector<given_fact>> all;
    for (const std::string& of_rank : all_texts(text)) {
      all.emplace_back();
      for (std::size_t begin = 0; begin < of_rank.size();) {
        const std::size_t middle = of_rank.find('\0', begin), end = of_rank.find('\0', middle + 1);
        all.back().push_back({of_rank.substr(begin, middle - begin), of_rank.substr(middle + 1, end - middle - 1)});
        begin = end + 1;
      }
    }
    if (const std::string wrong = describe_differences(all); !wrong.empty()) throw input_error(wrong);
  }

  /// Rank 0 works in a thread of its own, and meanwhile tells the others that it does, who wait without a limit.
  /// What the work throws is thrown on rank 0, run_aborted elsewhere. When the others are lost while it works, which
  /// cannot be stopped, `leave` is called with that exception; it must end the process.
  void on_first(const std::function<void()>& work, const std::function<void(std::exception_ptr)>& leave) {
    if (size() == 1) return work();
    enum state : num { busy, done, failed };
    comm_.label(phase::check);
    if (!first()) {
      num now = busy;
      while (now == busy) comm_.broadcast(world_, std::span<num>(&now, 1), 0);
      if (now == failed) throw run_aborted{};
      return;
    }
    std::packaged_task<void()> task(work);
    std::future<void> result = task.get_future();
    std::thread worker(std::move(task));
    const auto interval = std::clamp(comm_.timeout() / 8, milliseconds(1), milliseconds(500));
    try {
      while (result.wait_for(interval) != std::future_status::ready) {
        num still = busy;
        comm_.broadcast(world_, std::span<num>(&still, 1), 0);
      }
    } catch (...) {
      leave(std::current_exception());
    }
    worker.join();
    num now = done;
    std::exception_ptr wrong;
    try {
      result.get();
    } catch (...) {
      wrong = std::current_exception();
      now = failed;
    }
    comm_.broadcast(world_, std::span<num>(&now, 1), 0);
    if (wrong) std::rethrow_exception(wrong);
  }

  /// Makes the values those of rank 0.
  void share(std::vector<num>& values) {
    comm_.label(phase::check);
    num count = static_cast<num>(values.size());
    comm_.broadcast(world_, std::span<num>(&count, 1), 0);
    values.resize(static_cast<std::size_t>(count));
    comm_.broadcast(world_, std::span<num>(values), 0);
  }

  void share(expert_choices& choices) {
    std::vector<num> shape{choices.rows, choices.length, choices.per_token};
    share(shape);
    share(choices.experts);
    choices.rows = shape[0], choices.length = shape[1], choices.per_token = shape[2];
  }

  void share(std::vector<expert_choices>& by_step) {
    std::vector<num> steps{static_cast<num>(by_step.size())};
    share(steps);
    by_step.resize(static_cast<std::size_t>(steps[0]));
    for (expert_choices& choices : by_step) share(choices);
  }

  /// What all ranks recorded, by rank, on rank 0; nothing elsewhere.
  std::vector<recorder> gather_ledgers() {
    const std::vector<num> mine = to_numbers(comm_.ledger().entries());
    comm_.label(phase::check);
    const std::vector<num> counts = all_counts(static_cast<num>(mine.size()));
    std::vector<num> all(first() ? static_cast<std::size_t>(sum(counts)) : 0);
    comm_.gather(world_, std::span<const num>(mine), std::span<num>(all), std::span<const num>(counts), 0);
    std::vector<recorder> out;
    std::size_t begin = 0;
    for (num r = 0; first() && r < size(); ++r) {
      const auto count = static_cast<std::size_t>(counts[static_cast<std::size_t>(r)]);
      out.push_back(to_recorder(std::span<const num>(all).subspan(begin, count)));
      begin += count;
    }
    return out;
  }

  using verdicts_by_rank = std::vector<std::optional<verdict>>;

  /// Tells all how this process ended, and learns how all did. `say` gets the verdicts as far as known, prints the
  /// worst, and returns its exit code: rank 0 says it for all; a rank that does not hear of rank 0, or was told to end,
  /// says it for itself, `alone`.
  last_word end(verdict mine, const std::function<int(const verdicts_by_rank&, bool alone)>& say) {
    constexpr milliseconds grace{250};  // within which who is alive answers
    if (mine.exit_code != 0) mine.wait = comm_.present_wait();
    mine.stays = !comm_.told_to_end();
    comm_.tell(mine, mine.stays ? milliseconds(0) : grace / 5);
    if (mine.stays) {
      const verdicts_by_rank known = verdicts(mine);
      const bool lost = std::any_of(known.begin(), known.end(), [](const auto& v) {
        return v && v->own && v->exit_code == engine_error::exit_code;
      });
      const milliseconds patience = lost ? std::min(grace, comm_.timeout()) : comm_.timeout();
      if (first()) {
        comm_.wait_for_verdicts(patience);
        const verdicts_by_rank all = verdicts(mine);
        const bool complete = std::all_of(all.begin(), all.end(), [](const auto& v) { return v && v->stays; });
        const last_word word{say(all, false), complete};
        comm_.tell_last(word, grace);
        return word;
      }
      if (const std::optional<last_word> word = comm_.wait_for_last(patience + 2 * grace)) return *word;
    }
    return {say(verdicts(mine), true), false};
  }

 private:
  auto make_group() {
    rank_group all;
    all.index = comm_.rank();
    all.steps.push_back({comm_.world_size(), 1});
    return comm_.group(all, {});
  }

  static num sum(const std::vector<num>& counts) {
    num all = 0;
    for (num c : counts) all += c;
    return all;
  }

  std::vector<num> all_counts(num mine) {
    std::vector<num> counts(static_cast<std::size_t>(size()));
    comm_.all_gather(world_, std::span<const num>(&mine, 1), std::span<num>(counts));
    return counts;
  }

  /// The texts of all ranks, by rank: a character is sent as a number, for they are few.
  std::vector<std::string> all_texts(const std::string& mine) {
    comm_.label(phase::check);
    const std::vector<num> counts = all_counts(static_cast<num>(mine.size()));
    const std::vector<std::int32_t> sent(mine.begin(), mine.end());
    std::vector<std::int32_t> all(static_cast<std::size_t>(sum(counts)));
    comm_.all_gather(world_, std::span<const std::int32_t>(sent), std::span<std::int32_t>(all),
                     std::span<const num>(counts));
    std::vector<std::string> out;
    auto next = all.begin();
    for (num count : counts) {
      std::string& text = out.emplace_back();
      for (num i = 0; i < count; ++i) text.push_back(static_cast<char>(*next++));
    }
    return out;
  }

  verdicts_by_rank verdicts(const verdict& mine) const {
    verdicts_by_rank all;
    for (num r = 0; r < size(); ++r) all.push_back(r == rank() ? mine : comm_.verdict_of(r));
    return all;
  }

  C& comm_;
  typename C::group_type world_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CLI_PROCESS_WORLD_HPP
