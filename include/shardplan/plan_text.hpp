// SPDX-License-Identifier: Apache-2.0
// A plan as text, both ways: parse_plan (plan_parse.hpp) and print_plan; and as a literal: "tp=2,cp=2/ring"_plan.
#ifndef SHARDPLAN_PLAN_TEXT_HPP
#define SHARDPLAN_PLAN_TEXT_HPP

#include <shardplan/plan.hpp>
#include <shardplan/plan_parse.hpp>

namespace shardplan {

/// Long enough for every plan whose degrees are in range.
using plan_text = fixed_text<4096>;

/// The canonical text: axes in the order of plan_axes, then the flags, then module overrides. An axis of degree 1 whose
/// options are the defaults is left out; for any other, the options in force are written, defaults too. One rank is
/// "tp=1". post: parse_plan(print_plan(p).view()).plan == p for every plan that a text can express
constexpr plan_text print_plan(const plan_spec& p) {
  plan_text out;
  const auto begin = [&](text_view name, num degree) {
    out.add(out.size() == 0 ? "" : ",").add(name).add("=").add(degree);
  };
  if (p.pp != 1 || p.schedule != schedule_kind::one_f_one_b || !p.stages.empty()) {
    begin("pp", p.pp);
    out.add("/").add(name_of(p.schedule));
    if (p.schedule == schedule_kind::interleaved) out.add(p.virtual_stages);
    for (std::size_t i = 0; i < p.stages.size(); ++i) out.add(i == 0 ? "/layers:" : "+").add(p.stages[i]);
  }
  if (p.dp_replicate != 1) begin("dp_replicate", p.dp_replicate);
  if (p.fsdp != 1 || p.zero != zero_stage::zero3) {
    begin("fsdp", p.fsdp);
    out.add("/").add(name_of(p.zero));
  }
  if (p.cp != 1 || p.method != cp_method::ulysses || p.layout != layout_kind::contiguous) {
    begin("cp", p.cp);
    if (p.method == cp_method::ulysses_ring)
      out.add("/ulysses").add(p.method_ulysses).add("xring").add(p.method_ring);
    else
      out.add("/").add(name_of(p.method));
    out.add("/").add(name_of(p.layout));
  }
  if (p.tp != 1 || p.sequence_parallel) {
    begin("tp", p.tp);
    if (p.sequence_parallel) out.add("/sp");
  }
  // A dispatch kind is in force whenever experts are cut, be it by etp alone.
  if (p.ep != 1 || p.etp != 1 || p.dispatch != dispatch_kind::dispatch) {
    begin("ep", p.ep);
    out.add("/").add(name_of(p.dispatch));
  }
  if (p.etp != 1) begin("etp", p.etp);
  const auto flag = [&](text_view name, bool given) {
    if (given) out.add(out.size() == 0 ? "" : ",").add(name);
  };
  flag("kv_replicate", p.kv_replicate);
  flag("vocab_pad", p.vocab_pad);
  flag("expert_pad", p.expert_pad);
  for (const module_override& o : p.modules)
    out.add(out.size() == 0 ? "" : ",").add(pattern_of(o).view()).add("=").add(name_of(o.style));
  if (out.size() == 0) out.add("tp=1");
  return out;
}

// ---- literal

namespace error {
/// Instantiated for what is wrong, where (from 0), and the character there: compilers print all three, and g++ the
/// sentence too. Others would print its characters as numbers.
template <plan_problem Problem, std::size_t Position, char Character, plan_message... Sentence>
struct plan_text_is_wrong_at_character {
  static_assert(Problem == plan_problem::none, "shardplan: the text of a plan must be readable at this character");
  static constexpr bool told = true;
};
}  // namespace error

namespace literals {
/// "tp=2,cp=2/ring"_plan: a plan_spec; a text that parse_plan refuses does not compile. Not consteval, for it need not
/// be: what is checked is the template argument. Clang 14 miscompiles a consteval that returns so large a value.
template <detail::literal_text Text>
constexpr plan_spec operator""_plan() {
  constexpr parsed_plan parsed = parse_plan(Text.view());
#if defined(__cpp_static_assert) && __cpp_static_assert >= 202306L
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wc++26-extensions"
#endif
  static_assert(parsed.ok(), parsed.message.view());
#if defined(__clang__)
#pragma clang diagnostic pop
#endif
#endif
  constexpr char at = parsed.position < Text.view().size() ? Text.view()[parsed.position] : '\0';
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
  static_assert(error::plan_text_is_wrong_at_character<parsed.problem, parsed.position, at, parsed.message>::told);
#else
  static_assert(error::plan_text_is_wrong_at_character<parsed.problem, parsed.position, at>::told);
#endif
  return parsed.plan;
}
}  // namespace literals

}  // namespace shardplan
#endif  // SHARDPLAN_PLAN_TEXT_HPP
