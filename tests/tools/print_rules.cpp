// SPDX-License-Identifier: Apache-2.0
// Prints docs/rules.md: every rule as the library itself tells it, with the smallest question that breaks it and no
// other, found by trying small changes of a small model, plan and batch.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <shardplan/shardplan.hpp>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace shardplan;

std::string text(std::string_view s) { return std::string(s); }
std::string text(num n) { return std::to_string(n); }

// ---- what is tried

/// The dims of tests/data/tiny.
question small_question() {
  question q;
  model_spec& m = q.model;
  m.num_hidden_layers = 8;
  m.hidden_size = 32;
  m.num_attention_heads = 8;
  m.num_key_value_heads = 4;
  m.head_dim = 8;
  m.intermediate_size = 32;
  m.moe_intermediate_size = 16;
  m.num_experts = 8;
  m.num_experts_per_tok = 2;
  m.vocab_size = 96;
  m.max_position_embeddings = 256;
  return q;
}

/// One change of the small question. Of two changes of one `what`, only one is made.
struct change {
  std::string what;
  num value = 0;
  std::string told;  ///< beside the plan, which tells itself; empty for changes of the plan
  num cost = 0;      ///< the smaller, the sooner shown
  std::function<void(question&)> make;
};

std::vector<change> all_changes() {
  std::vector<change> out;
  const auto degrees = [&](std::string what, num plan_spec::*degree, std::initializer_list<num> values) {
    for (num v : values) out.push_back({what, v, "", 10 + v, [=](question& q) { q.plan.*degree = v; }});
  };
  for (const plan_axis& a : plan_axes) degrees(text(name_of(a.name)), a.degree, {0, 2, 3, 4, 5, 6, 8, 16, 65536});
  degrees("pp", &plan_spec::pp, {129});
  const auto option = [&](std::string what, std::function<void(plan_spec&)> set) {
    out.push_back({std::move(what), 1, "", 12, [=](question& q) { set(q.plan); }});
  };
  for (const char* pattern : {"layers.8.self_attn", "layers.0.self_attn.q_proj"})
    option("modules", [=](plan_spec& p) { merge(p.modules, pattern, module_style::replicated); });
  for (cp_method m : {cp_method::ring, cp_method::all_gather}) option("method", [=](plan_spec& p) { p.method = m; });
  option("method", [](plan_spec& p) { p.method = cp_method::ulysses_ring, p.method_ulysses = 2, p.method_ring = 2; });
  for (layout_kind l : {layout_kind::full, layout_kind::zigzag, layout_kind::zigzag_documents})
    option("layout", [=](plan_spec& p) { p.layout = l; });
  option("sp", [](plan_spec& p) { p.sequence_parallel = true; });
  for (dispatch_kind d : {dispatch_kind::all_reduce, dispatch_kind::all_gather})
    option("dispatch", [=](plan_spec& p) { p.dispatch = d; });
  option("kv_replicate", [](plan_spec& p) { p.kv_replicate = true; });
  option("vocab_pad", [](plan_spec& p) { p.vocab_pad = true; });
  option("expert_pad", [](plan_spec& p) { p.expert_pad = true; });
  option("schedule", [](plan_spec& p) { p.schedule = schedule_kind::interleaved, p.virtual_stages = 2; });
  option("schedule", [](plan_spec& p) { p.schedule = schedule_kind::interleaved, p.virtual_stages = 1; });
  for (const std::vector<num>& stages : {std::vector<num>{8}, {4, 5}, {4, 4}, {4, 0, 4}, {3, 3, 2}})
    option("stages", [=](plan_spec& p) {
      for (num layers : stages) p.stages.push_back(layers);
    });

  const auto beside = [&](std::string what, num value, std::function<void(question&)> set) {
    out.push_back({what, value, what + " " + text(value), 20 + value, std::move(set)});
  };
  const auto dims = [&](std::string what, num model_spec::*dim, std::initializer_list<num> values) {
    for (num v : values) beside(what, v, [=](question& q) { q.model.*dim = v; });
  };
  dims("num_hidden_layers", &model_spec::num_hidden_layers, {0, 1, 513});
  dims("num_attention_heads", &model_spec::num_attention_heads, {6, 12});
  dims("num_key_value_heads", &model_spec::num_key_value_heads, {1, 2, 3});
  dims("head_dim", &model_spec::head_dim, {7});
  dims("intermediate_size", &model_spec::intermediate_size, {33});
  dims("moe_intermediate_size", &model_spec::moe_intermediate_size, {15});
  dims("num_experts", &model_spec::num_experts, {-1, 0, 1});
  dims("vocab_size", &model_spec::vocab_size, {97});
  dims("sliding_window", &model_spec::sliding_window, {4});
  beside("rows", 3, [](question& q) { q.batch.rows = 3; });
  beside("rows", -1, [](question& q) { q.batch.rows = -1; });
  beside("micro_batches", 1, [](question& q) { q.batch.micro_batches = 1; });
  beside("length", 257, [](question& q) { q.batch.length = 257; });
  beside("world", 2, [](question& q) { q.world = 2; });
  beside("gpus_per_node", 2, [](question& q) { q.gpus_per_node = 2; });
  out.push_back({"documents", 0, "documents 5+0", 20, [](question& q) { q.batch.documents = {{5, 0}, 2}; }});
  return out;
}

// ---- what is found

template <class Rule>
bool breaks_alone(const question& q) {
  if (!broken<Rule>(q)) return false;
  std::size_t refused = 0, advised = 0;
  check(q, [&](const violation&) { ++refused; });
  if (Rule::kind != rule_kind::advice) return refused == 1;
  advise(q, [&](const violation&) { ++advised; });
  return refused == 0 && advised == 1;
}

struct example {
  num cost = -1;
  question asked;
  std::string told;
};

/// Tries every set of `left` changes that goes on from `first`, and keeps the cheapest that breaks the rule.
template <class Rule>
void search(const std::vector<change>& changes, std::size_t first, num left, const example& so_far,
            std::vector<std::string> made, example& best) {
  for (std::size_t i = first; i < changes.size(); ++i) {
    const change& c = changes[i];
    const num cost = so_far.cost + c.cost;
    if ((best.cost >= 0 && cost >= best.cost) || std::find(made.begin(), made.end(), c.what) != made.end()) continue;
    example next{cost, so_far.asked, so_far.told};
    c.make(next.asked);
    if (!c.told.empty()) next.told += (next.told.empty() ? "" : ", ") + c.told;
    made.push_back(c.what);
    if (left > 1)
      search<Rule>(changes, i + 1, left - 1, next, made, best);
    else if (breaks_alone<Rule>(next.asked))
      best = next;
    made.pop_back();
  }
}

template <class... Rules>
std::string names(list<Rules...>) {
  std::string out;
  ((out += (out.empty() ? "`" : ", `") + text(diag::type_name<Rules>()) + "`"), ...);
  return out;
}

template <class Rule>
num print() {
  static const std::vector<change> changes = all_changes();
  example best;
  for (num size = 1; size <= 4 && best.cost < 0; ++size)
    search<Rule>(changes, 0, size, {0, small_question(), ""}, {}, best);
  const violation v = detail::report<Rule>(best.asked, typename Rule::operands{});
  std::printf("### %s\n\n%s: %s.\n\n", text(v.rule).c_str(), text(name_of(v.kind)).c_str(), text(v.sentence).c_str());
  if (!v.source.empty()) std::printf("- because: %s\n", text(v.source).c_str());
  if constexpr (requires { typename Rule::presumes; })
    std::printf("- presumes: %s\n", names(typename Rule::presumes{}).c_str());
  if (best.cost < 0) {
    std::printf("- no small question breaks it alone\n\n");
    std::fprintf(stderr, "%s: nothing found\n", text(v.rule).c_str());
    return 1;
  }
  std::printf("- smallest plan that breaks it: `%s`%s%s\n", print_plan(best.asked.plan).c_str(),
              best.told.empty() ? "" : ", with ", best.told.c_str());
  std::string operands;
  for (const operand_value& o : v.operands)
    operands += (operands.empty() ? "" : ", ") + text(o.name) + " = " + text(o.value);
  std::printf("- operands: %s\n", operands.c_str());
  if (v.fix.size() > 0) std::printf("- instead: %s\n", v.fix.c_str());
  std::printf("\n");
  return 0;
}

/// How many of the rules no question was found for.
template <class... Rules>
num print(const char* title, list<Rules...>) {
  std::printf("## %s\n\n", title);
  return (print<Rules>() + ...);
}

}  // namespace

int main() {
  std::printf(
      "# Rules\n\n"
      "Generated from the rules themselves: do not edit, run the target `rules_page`. A plan is legal when no rule of\n"
      "kind `math` is broken, nor one of kind `engine` once an engine is named. `advice` is reported and accepted. A\n"
      "rule is asked only when those that it presumes hold.\n\n"
      "Each has the smallest plan found that breaks it and no other, for a model of the dims of `tests/data/tiny`: 8\n"
      "layers, 8 heads and 4 key/value heads of 8, 8 experts of width 16 of which 2 are chosen, vocabulary 96. A rule\n"
      "of your own is written as these are: `include/shardplan/facts.hpp`, `examples/04_own_rule.cpp`.\n\n");
  const num missing = print("Mesh", rule::mesh_rules{}) + print("Model", rule::model_rules{}) +
                      print("Heads and widths", rule::head_rules{}) +
                      print("Sequence and batch", rule::sequence_rules{}) + print("Pipeline", rule::pipeline_rules{}) +
                      print("Experts", rule::expert_rules{}) + print("Modules", rule::module_rules{});
  return missing == 0 ? 0 : 1;
}
