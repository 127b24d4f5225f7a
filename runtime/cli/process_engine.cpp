// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/process_engine.hpp"

#include "runtime/engine/request.hpp"

namespace shardplan::cli {
namespace {

using runtime::verdict;

outcome answer_of(const verdict& v) {
  const json report = json::parse(v.report);
  outcome out;
  out.exit_code = v.exit_code;
  out.document = report["document"];
  out.text = report["text"];
  out.messages = report["messages"];
  return out;
}

/// "; rank 1 waits for rank 3 in ...", of all that wait; "; rank 3 does not answer". Alone: what this rank waits for.
std::string describe_ends(const std::vector<std::optional<verdict>>& all, num rank, bool alone) {
  std::string out;
  std::vector<num> missing;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] && !all[r]->wait.empty() && (!alone || static_cast<num>(r) == rank)) out += "; " + all[r]->wait;
    if (!all[r]) missing.push_back(static_cast<num>(r));
  }
  if (!alone && !missing.empty())
    out += fmt::format("; {} {} not answer", runtime::describe_ranks(missing), missing.size() == 1 ? "does" : "do");
  return out;
}

}  // namespace

verdict to_verdict(const outcome& mine) {
  const json report{{"document", mine.document}, {"text", mine.text}, {"messages", mine.messages}};
  verdict v;
  v.exit_code = mine.exit_code;
  v.own = !mine.aborted;
  v.report = report.dump(-1, ' ', true, json::error_handler_t::replace);
  return v;
}

outcome worst_of(const std::vector<std::optional<verdict>>& all, num rank, bool alone) {
  const verdict* worst = nullptr;
  std::vector<num> say_so;
  bool all_answer = true;
  for (std::size_t r = 0; r < all.size(); ++r) {
    all_answer = all_answer && all[r];
    if (!all[r] || !all[r]->own) continue;
    const bool same = worst != nullptr && all[r]->exit_code == worst->exit_code && all[r]->report == worst->report;
    if (worst == nullptr || all[r]->exit_code > worst->exit_code) {
      worst = &*all[r];
      say_so.clear();
    } else if (!same) {
      continue;
    }
    say_so.push_back(static_cast<num>(r));
  }
  const std::string ends = describe_ends(all, rank, alone);
  if (worst == nullptr || (worst->exit_code == 0 && !all_answer))
    return failure(engine_error::exit_code, "engine",
                   fmt::format("rank {}: the run has not come to its end{}", rank, ends));
  outcome out = answer_of(*worst);
  if (out.exit_code == 0 || !out.document.contains("error")) return out;
  const std::string kind = out.document["error"]["kind"], message = out.document["error"]["message"];
  if (kind == "engine") return failure(out.exit_code, kind, message + ends);  // names ranks itself
  if (say_so.size() == all.size()) return out;
  const std::string who = runtime::describe_ranks(say_so) + ": ";
  out.document["error"]["message"] = who + message;
  const std::string program = "shardplan: ";
  out.messages.insert(out.messages.starts_with(program) ? program.size() : 0, who);
  return out;
}

}  // namespace shardplan::cli
