// SPDX-License-Identifier: Apache-2.0
// Asks the rules. Values: legal(question), check(question, sink), advise(question, sink), padded(question). Types:
// checked<Plan, Model> does not compile when a rule is broken, LegalPlan<Plan, Model> only asks.
#ifndef SHARDPLAN_CHECK_HPP
#define SHARDPLAN_CHECK_HPP

#include <concepts>  // same_as
#include <shardplan/question.hpp>
#include <shardplan/rules.hpp>
#include <type_traits>  // conditional_t

namespace shardplan {

struct operand_value {
  text_view name;
  num value = 0;
  friend constexpr bool operator==(const operand_value&, const operand_value&) = default;
};

/// One broken rule, with its numbers.
struct violation {
  text_view rule;  ///< the stable name
  rule_kind kind = rule_kind::math;
  text_view sentence;
  text_view source;  ///< where the rule comes from; empty when it does not say
  fixed_vector<operand_value, 10> operands{};
  fix_text fix{};  ///< what to write instead; empty when the rule does not say
};

/// Whether the rule's truth matters for legality, given what is asked: an engine's limit only once one is named.
template <class Rule>
constexpr bool refuses(const question& q) {
  return Rule::kind == rule_kind::math || (Rule::kind == rule_kind::engine && q.engine != engine_kind::none);
}

namespace detail {

template <class Rule, class... Operands>
constexpr bool holds(const question& q, list<Operands...>) {
  return Rule::holds(Operands::of(q)...);
}

template <class Rule>
constexpr bool satisfied(const question& q);

template <class... Rules>
constexpr bool all_satisfied(const question& q, list<Rules...>) {
  return (satisfied<Rules>(q) && ...);
}

/// A rule that presumes others is not asked until they hold: no division by zero, and no echo of their violation.
template <class Rule>
constexpr bool asked(const question& q) {
  if constexpr (requires { typename Rule::presumes; })
    if (!all_satisfied(q, typename Rule::presumes{})) return false;
  if constexpr (requires { Rule::applies(q); })
    if (!Rule::applies(q)) return false;
  return true;
}

/// What a rule presumes must hold in turn: a presumption that could not be asked does not count as holding.
template <class Rule>
constexpr bool satisfied(const question& q) {
  if constexpr (requires { typename Rule::presumes; })
    if (!all_satisfied(q, typename Rule::presumes{})) return false;
  if constexpr (requires { Rule::applies(q); })
    if (!Rule::applies(q)) return true;
  return holds<Rule>(q, typename Rule::operands{});
}

template <class Rule, class... Operands>
constexpr violation report(const question& q, list<Operands...>) {
  violation v;
  v.rule = diag::type_name<Rule>();
  v.kind = Rule::kind;
  v.sentence = Rule::sentence;
  if constexpr (requires { Rule::source; }) v.source = Rule::source;
  (v.operands.push_back({Operands::name, Operands::of(q)}), ...);
  if constexpr (requires { Rule::fix(q); }) v.fix = Rule::fix(q);
  return v;
}

}  // namespace detail

/// The rule is asked, and the answer is no.
template <class Rule>
constexpr bool broken(const question& q) {
  return detail::asked<Rule>(q) && !detail::holds<Rule>(q, typename Rule::operands{});
}

/// No rule that refuses is broken.
template <class... Rules>
constexpr bool legal(const question& q, list<Rules...>) {
  return (!(refuses<Rules>(q) && broken<Rules>(q)) && ...);
}
// The rules are a default argument, so that a header that is not asked instantiates none of them.
template <class Rules = builtin_rules>
constexpr bool legal(const question& q) {
  return legal(q, Rules{});
}

/// Calls `sink(const violation&)` for every rule that refuses and is broken.
template <class Sink, class... Rules>
constexpr void check(const question& q, Sink&& sink, list<Rules...>) {
  ((refuses<Rules>(q) && broken<Rules>(q) ? sink(detail::report<Rules>(q, typename Rules::operands{})) : void()), ...);
}
template <class Rules = builtin_rules, class Sink>
constexpr void check(const question& q, Sink&& sink) {
  check(q, sink, Rules{});
}

/// Calls `sink(const violation&)` for every piece of advice that the plan does not follow. It is legal all the same.
template <class Sink, class... Rules>
constexpr void advise(const question& q, Sink&& sink, list<Rules...>) {
  ((Rules::kind == rule_kind::advice && broken<Rules>(q) ? sink(detail::report<Rules>(q, typename Rules::operands{}))
                                                         : void()),
   ...);
}
template <class Rules = builtin_rules, class Sink>
constexpr void advise(const question& q, Sink&& sink) {
  advise(q, sink, Rules{});
}

/// The length to which a row is padded for a legal plan; 0 when it needs no padding, or no length is said.
constexpr num padded(const question& q) {
  const num real = real_length(q.batch);
  if (real <= 0) return 0;
  const num length = padded_length(q.plan, q.batch);
  return length == real ? 0 : length;
}

// ---- the type face

/// Beside a plan and a model: how many ranks there are, and which engine is to carry the plan out.
template <num Ranks>
struct on_ranks {
  static constexpr void say(question& q) { q.world = Ranks; }
};
template <engine_kind Engine>
struct on_engine {
  static constexpr void say(question& q) { q.engine = Engine; }
};

namespace detail {

/// What else is asked beside a plan and a model: a batch, or anything that knows how to say so.
template <class T>
constexpr void say(question& q) {
  if constexpr (requires { T::say(q); })
    T::say(q);
  else if constexpr (requires {
                       { T::spec } -> std::same_as<const batch_spec&>;
                     })
    q.batch = T::spec;
}

template <class Plan, class Model, class... Rest>
constexpr question make_question() {
  question q;
  q.model = Model::spec;
  q.plan = Plan::spec;
  (say<Rest>(q), ...);
  return q;
}

template <class T>
concept IsRule = requires {
  T::sentence;
  T::kind;
  typename T::operands;
};

template <class Rules, class... Rest>
struct with_rules {
  using type = Rules;
};
template <class... Rules, class First, class... Rest>
struct with_rules<list<Rules...>, First, Rest...> : with_rules<list<Rules...>, Rest...> {};
template <class... Rules, IsRule First, class... Rest>
struct with_rules<list<Rules...>, First, Rest...> : with_rules<list<Rules..., First>, Rest...> {};

}  // namespace detail

/// The question that types ask.
template <class Plan, class Model, class... Rest>
inline constexpr question ask = detail::make_question<Plan, Model, Rest...>();

/// The library's rules and those among `Rest`.
template <class... Rest>
using rules_with = typename detail::with_rules<builtin_rules, Rest...>::type;

/// Whether the plan is legal for the model; asks only, never an error. `Rest` as for `checked`.
template <class Plan, class Model, class... Rest>
concept LegalPlan = legal(ask<Plan, Model, Rest...>, rules_with<Rest...>{});

namespace detail {

template <class Plan, class Model, class... Rest>
struct asked_of {
  static constexpr const question& value = ask<Plan, Model, Rest...>;
};

/// The broken ones among the rules, found only when the plan is not legal: for a legal one nothing is instantiated.
template <class Asked, class Rules, bool Legal = legal(Asked::value, Rules{})>
struct broken_rules {
  using type = list<>;
};
template <class Asked, class... Rules>
struct broken_rules<Asked, list<Rules...>, false> {
  using type =
      join<list<>,
           std::conditional_t<refuses<Rules>(Asked::value) && broken<Rules>(Asked::value), list<Rules>, list<>>...>;
};

// One base class per broken rule, so that every compiler reports all of them. Plan and model are the last facts: a
// second wrong plan with the same numbers still speaks.
template <class Rule, class Asked, class Operands = typename Rule::operands>
struct verdict;
template <class Rule, class Plan, class Model, class... Rest, class... Operands>
struct verdict<Rule, asked_of<Plan, Model, Rest...>, list<Operands...>>
    : Rule::template broken_with<typename Operands::template fact<Operands::of(ask<Plan, Model, Rest...>)>..., Plan,
                                 Model> {};

template <class Asked, class Broken>
struct verdicts;
template <class Asked, class... Broken>
struct verdicts<Asked, list<Broken...>> : verdict<Broken, Asked>... {};

}  // namespace detail

/// What a legal plan says of one rank of a model, as data that device code can use.
template <class Plan, class Model>
struct plan_results {
  static constexpr plan_spec spec = Plan::spec;
  static constexpr model_spec model = Model::spec;
  static constexpr num world_size = shardplan::world_size(spec);
  static constexpr num num_stages = shardplan::num_stages(spec);
  static constexpr num num_data_shards = shardplan::num_data_shards(spec);
  static constexpr num gradient_divisor = shardplan::gradient_divisor(spec);
  static constexpr num efsdp = efsdp_degree(spec);
  // Where overrides tell layers apart, these are the first layer's.
  static constexpr num heads_per_rank = model.num_attention_heads / attention_cut_of(spec, 0).tensor;
  static constexpr num kv_heads_per_rank = ceil_div(model.num_key_value_heads, attention_cut_of(spec, 0).tensor);
  static constexpr num vocab_rows_per_rank = ceil_div(model.vocab_size, tensor_degree(spec, head_weight(model)));
  static constexpr num experts_per_rank = expert_slots(plan_in_layer(spec, 0), model);
};

/// A plan for a model, checked: one compile error for each broken rule. `Rest` may hold, in any order, a batch (a type
/// with `static constexpr batch_spec spec`), what else to ask (a type with `say(question&)`), and rules of your own.
template <class Plan, class Model, class... Rest>
struct checked : plan_results<Plan, Model>,
                 private detail::verdicts<
                     detail::asked_of<Plan, Model, Rest...>,
                     typename detail::broken_rules<detail::asked_of<Plan, Model, Rest...>, rules_with<Rest...>>::type> {
};

}  // namespace shardplan
#endif  // SHARDPLAN_CHECK_HPP
