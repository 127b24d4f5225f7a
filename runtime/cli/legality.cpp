// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <shardplan/nearest.hpp>
#include <shardplan/plan_text.hpp>

#include "runtime/cli/command.hpp"

namespace shardplan::cli {

json to_json(const violation& v) {
  json operands = json::object();
  for (const operand_value& o : v.operands) operands[std::string(o.name)] = o.value;
  json out{{"rule", v.rule},
           {"kind", name_of(v.kind)},
           {"sentence", v.sentence},
           {"operands", operands},
           {"fix", v.fix.view()}};
  if (!v.source.empty()) out["source"] = v.source;
  return out;
}

std::string to_text(const violation& v) {
  std::string out = fmt::format("  {}\n    {}\n    ", v.rule, v.sentence);
  for (std::size_t i = 0; i < v.operands.size(); ++i)
    out += fmt::format("{}{} = {}", i == 0 ? "" : ", ", v.operands[i].name, v.operands[i].value);
  out += "\n";
  if (v.fix.size() > 0) out += fmt::format("    fix: {}\n", v.fix.view());
  return out;
}

legality check_legality(const question& q) {
  legality l;
  l.asked = q;
  check(q, [&](const violation& v) { l.violations.push_back(v); });
  advise(q, [&](const violation& v) { l.advice.push_back(v); });
  if (!l.legal())
    if (const nearest_plan n = nearest_legal_plan(q); n.found) l.nearest = n.plan;
  return l;
}

std::string illegal_text(const legality& l) {
  const std::size_t n = l.violations.size();
  std::string out = fmt::format("illegal: {} {} broken\n", n, n == 1 ? "rule is" : "rules are");
  for (const violation& v : l.violations) out += to_text(v);
  out += l.nearest ? fmt::format("nearest legal plan: {}\n", print_plan(*l.nearest).view())
                   : "no legal plan was found near it\n";
  return out;
}

json legality_json(const legality& l) {
  json violations = json::array(), advice = json::array();
  for (const violation& v : l.violations) violations.push_back(to_json(v));
  for (const violation& v : l.advice) advice.push_back(to_json(v));
  json out{{"legal", l.legal()},
           {"plan", print_plan(l.asked.plan).view()},
           {"world", world_size(l.asked.plan)},
           {"violations", violations},
           {"nearest", nullptr},
           {"advice", advice}};
  if (l.nearest) out["nearest"] = print_plan(*l.nearest).view();
  return out;
}

outcome refuse(const legality& l) {
  outcome out;
  out.exit_code = runtime::plan_error::exit_code;
  std::string rules;
  for (const violation& v : l.violations) rules += fmt::format("{}{}", rules.empty() ? "" : ", ", v.rule);
  out.document = {{"error", {{"kind", "plan"}, {"message", "the plan is illegal: " + rules}}}};
  out.document.update(legality_json(l));
  out.messages = illegal_text(l);
  return out;
}

}  // namespace shardplan::cli
