// SPDX-License-Identifier: Apache-2.0
// The type face of a plan: policies that a compiler prints by name, composed in any order.
//
//   using mine = plan<pipeline_parallel<2>, fully_sharded<2>, context_parallel<2, ring, zigzag>,
//                     tensor_parallel<2, sequence_parallel>, expert_parallel<4, token_dispatch>>;
//   static_assert(mine::world_size == 16);
//
// A policy of your own is any type with `static constexpr void apply(plan_spec&)`; one that also has `settles` (bits of
// `slot`) is refused beside another that settles the same. A method, dispatch kind or schedule of your own is any type
// with choose_method, choose_dispatch or choose_schedule.
#ifndef SHARDPLAN_POLICIES_HPP
#define SHARDPLAN_POLICIES_HPP

#include <concepts>  // same_as
#include <shardplan/facts.hpp>
#include <shardplan/layout.hpp>
#include <shardplan/plan.hpp>
#include <utility>  // index_sequence

namespace shardplan {

/// What a policy can settle.
namespace slot {
inline constexpr unsigned pp = 1u << 0, dp_replicate = 1u << 1, fsdp = 1u << 2, cp = 1u << 3, tp = 1u << 4,
                          ep = 1u << 5, etp = 1u << 6, schedule = 1u << 7, stages = 1u << 8, zero = 1u << 9,
                          method = 1u << 10, layout = 1u << 11, sequence_parallel = 1u << 12, dispatch = 1u << 13,
                          kv_replicate = 1u << 14, vocab_pad = 1u << 15, expert_pad = 1u << 16;
}  // namespace slot

template <class P>
concept Policy = requires(plan_spec& p) {
  P::apply(p);
};
template <class M>
concept ContextMethod = requires(plan_spec& p) {
  M::choose_method(p);
};
template <class D>
concept DispatchKind = requires(plan_spec& p) {
  D::choose_dispatch(p);
};
template <class S>
concept Schedule = requires(plan_spec& p) {
  S::choose_schedule(p);
};
template <class Z>
concept ZeroStage = requires(plan_spec& p) {
  Z::choose_zero(p);
};

// ---- choices

struct one_f_one_b final {
  static constexpr void choose_schedule(plan_spec& p) { p.schedule = schedule_kind::one_f_one_b; }
};
struct gpipe final {
  static constexpr void choose_schedule(plan_spec& p) { p.schedule = schedule_kind::gpipe; }
};
template <num VirtualStages>
struct interleaved final {
  static constexpr void choose_schedule(plan_spec& p) {
    p.schedule = schedule_kind::interleaved;
    p.virtual_stages = VirtualStages;
  }
};
struct zero1 final {
  static constexpr void choose_zero(plan_spec& p) { p.zero = zero_stage::zero1; }
};
struct zero2 final {
  static constexpr void choose_zero(plan_spec& p) { p.zero = zero_stage::zero2; }
};
struct zero3 final {
  static constexpr void choose_zero(plan_spec& p) { p.zero = zero_stage::zero3; }
};
struct ulysses final {
  static constexpr void choose_method(plan_spec& p) { p.method = cp_method::ulysses; }
};
struct ring final {
  static constexpr void choose_method(plan_spec& p) { p.method = cp_method::ring; }
};
template <num Ulysses, num Ring>
struct ulysses_ring final {
  static constexpr void choose_method(plan_spec& p) {
    p.method = cp_method::ulysses_ring;
    p.method_ulysses = Ulysses;
    p.method_ring = Ring;
  }
};
/// Of keys and values in context_parallel, of rows in expert_parallel.
struct all_gather final {
  static constexpr void choose_method(plan_spec& p) { p.method = cp_method::all_gather; }
  static constexpr void choose_dispatch(plan_spec& p) { p.dispatch = dispatch_kind::all_gather; }
};
struct token_dispatch final {
  static constexpr void choose_dispatch(plan_spec& p) { p.dispatch = dispatch_kind::dispatch; }
};
struct all_reduce final {
  static constexpr void choose_dispatch(plan_spec& p) { p.dispatch = dispatch_kind::all_reduce; }
};

namespace error {
struct a_policy_settles_what_is_settled {
  SHARDPLAN_SENTENCE("a plan must settle each degree and each option once; this policy settles one again");
};
struct an_option_does_not_belong {
  SHARDPLAN_SENTENCE("an option must belong to the policy that it is given to");
};
}  // namespace error

namespace detail {

template <class P>
constexpr unsigned slots_of() {
  if constexpr (requires { P::settles; })
    return P::settles;
  else
    return 0;
}
template <class P>
inline constexpr unsigned settled_by = slots_of<P>();

// An option as a policy. `Of` are the slots that options of the policy asked may settle.
template <class Option, unsigned Of>
struct as_policy {
  static constexpr bool nested = (settled_by<Option> & Of) != 0;  // explicit_stages, sequence_parallel, flags
  static constexpr unsigned chosen = (Layout<Option> ? slot::layout : 0u) |
                                     (ContextMethod<Option> ? slot::method : 0u) |
                                     (DispatchKind<Option> ? slot::dispatch : 0u) |
                                     (Schedule<Option> ? slot::schedule : 0u) | (ZeroStage<Option> ? slot::zero : 0u);
  static constexpr unsigned settles = nested ? settled_by<Option> : chosen & Of;
  static constexpr void apply(plan_spec& p) {
    if constexpr (nested) Option::apply(p);
    if constexpr (settles == slot::layout) p.layout = Option::kind;
    if constexpr (settles == slot::method) Option::choose_method(p);
    if constexpr (settles == slot::dispatch) Option::choose_dispatch(p);
    if constexpr (settles == slot::schedule) Option::choose_schedule(p);
    if constexpr (settles == slot::zero) Option::choose_zero(p);
  }
};

template <class Whole, std::size_t, class Part, bool Again>
struct given_again {};
template <class Whole, std::size_t Index, class Part>
struct given_again<Whole, Index, Part, true> : error::a_policy_settles_what_is_settled::broken_with<Part, Whole> {};
template <class Whole, std::size_t, class Part, bool Foreign>
struct foreign {};
template <class Whole, std::size_t Index, class Part>
struct foreign<Whole, Index, Part, true> : error::an_option_does_not_belong::broken_with<Part, Whole> {};

/// Whether part `index` of parts that settle `settled` settles what an earlier one does.
template <std::size_t Size>
constexpr bool settles_again(const unsigned (&settled)[Size], std::size_t index) {
  for (std::size_t i = 0; i < index; ++i)
    if ((settled[i] & settled[index]) != 0) return true;
  return false;
}

template <class Whole, unsigned Of, class Indices, class... Options>
struct option_faults;
template <class Whole, unsigned Of, std::size_t... Index, class... Options>
struct option_faults<Whole, Of, std::index_sequence<Index...>, Options...>
    : given_again<Whole, Index, Options, settles_again({0u, as_policy<Options, Of>::settles...}, Index + 1)>...,
      foreign<Whole, Index, Options, as_policy<Options, Of>::settles == 0>... {};

/// A degree with options: what the policies below are made of. Faults are a plan's to tell: in a policy's own bases
/// they would be told inside a requires-expression, which takes the policy for none.
template <class Whole, unsigned Own, num plan_spec::*Degree, num Value, unsigned Of, class... Options>
struct axis_policy {
  using faults = option_faults<Whole, Of, std::index_sequence_for<Options...>, Options...>;
  static constexpr num degree = Value;
  static constexpr unsigned settles = (Own | ... | as_policy<Options, Of>::settles);
  static constexpr void apply(plan_spec& p) {
    p.*Degree = Value;
    (as_policy<Options, Of>::apply(p), ...);
  }
};

template <std::size_t, class P>
struct own_faults {};
template <std::size_t Index, class P>
requires requires { typename P::faults; }
struct own_faults<Index, P> : P::faults {};

}  // namespace detail

// ---- policies. A degree of 0 is no error yet: the rules refuse it, and a query may ask about it.

/// Layers of each stage, in order of depth: pipeline_parallel<2, explicit_stages<3, 5>>, or beside it.
template <num... Layers>
struct explicit_stages final {
  static_assert(sizeof...(Layers) <= stage_layer_counts::capacity(),
                "shardplan: a list of stages must hold at most 128 of them");
  static constexpr unsigned settles = slot::stages;
  static constexpr void apply(plan_spec& p) {
    p.stages = {};
    (p.stages.push_back(Layers), ...);
  }
};
struct sequence_parallel final {
  static constexpr unsigned settles = slot::sequence_parallel;
  static constexpr void apply(plan_spec& p) { p.sequence_parallel = true; }
};
struct replicate_kv_heads final {
  static constexpr unsigned settles = slot::kv_replicate;
  static constexpr void apply(plan_spec& p) { p.kv_replicate = true; }
};
struct pad_vocabulary final {
  static constexpr unsigned settles = slot::vocab_pad;
  static constexpr void apply(plan_spec& p) { p.vocab_pad = true; }
};
struct pad_experts final {
  static constexpr unsigned settles = slot::expert_pad;
  static constexpr void apply(plan_spec& p) { p.expert_pad = true; }
};

/// Options: a schedule (one_f_one_b, gpipe, interleaved<N>), explicit_stages.
template <num Degree, class... Options>
struct pipeline_parallel final : detail::axis_policy<pipeline_parallel<Degree, Options...>, slot::pp, &plan_spec::pp,
                                                     Degree, slot::schedule | slot::stages, Options...> {};
template <num Degree>
struct replicated final
    : detail::axis_policy<replicated<Degree>, slot::dp_replicate, &plan_spec::dp_replicate, Degree, 0u> {};
/// Options: zero3, zero1, zero2.
template <num Degree, class... Options>
struct fully_sharded final : detail::axis_policy<fully_sharded<Degree, Options...>, slot::fsdp, &plan_spec::fsdp,
                                                 Degree, slot::zero, Options...> {};
/// Options: a method (ulysses, ring, all_gather, ulysses_ring<U, R>), a layout (contiguous, zigzag, zigzag_documents).
template <num Degree, class... Options>
struct context_parallel final : detail::axis_policy<context_parallel<Degree, Options...>, slot::cp, &plan_spec::cp,
                                                    Degree, slot::method | slot::layout, Options...> {};
/// Options: sequence_parallel, replicate_kv_heads, pad_vocabulary.
template <num Degree, class... Options>
struct tensor_parallel final
    : detail::axis_policy<tensor_parallel<Degree, Options...>, slot::tp, &plan_spec::tp, Degree,
                          slot::sequence_parallel | slot::kv_replicate | slot::vocab_pad, Options...> {};
template <num Degree>
struct expert_tensor_parallel final
    : detail::axis_policy<expert_tensor_parallel<Degree>, slot::etp, &plan_spec::etp, Degree, 0u> {};
/// Options: a dispatch kind (token_dispatch, all_reduce, all_gather), expert_tensor_parallel, pad_experts.
template <num Degree, class... Options>
struct expert_parallel final : detail::axis_policy<expert_parallel<Degree, Options...>, slot::ep, &plan_spec::ep,
                                                   Degree, slot::dispatch | slot::etp | slot::expert_pad, Options...> {
};

/// Another style for the modules of a pattern: override_modules<"layers.*.self_attn", module_style::replicated>.
/// Several merge in their order, onto the tables of module_plan.hpp.
template <detail::literal_text Pattern, module_style Style>
struct override_modules final {
  static constexpr void apply(plan_spec& p) { merge(p.modules, Pattern.view(), Style); }

 private:
  static constexpr override_problem problem = [] {
    module_overrides none;
    return merge(none, Pattern.view(), Style);
  }();
  static_assert(problem != override_problem::unknown_pattern,
                "shardplan: the pattern of an override must name modules of a model");
  static_assert(problem != override_problem::style_does_not_fit,
                "shardplan: the style of an override must be one that all modules of its pattern can have");
};

// ---- plans, models and batches as types

namespace detail {

template <class Plan, class Indices, class... Policies>
struct policy_faults;
template <class Plan, std::size_t... Index, class... Policies>
struct policy_faults<Plan, std::index_sequence<Index...>, Policies...>
    : own_faults<Index, Policies>...,
      given_again<Plan, Index, Policies, settles_again({0u, settled_by<Policies>...}, Index + 1)>... {};

template <class... Policies>
constexpr plan_spec applied() {
  plan_spec p;
  if constexpr ((Policy<Policies> && ...)) (Policies::apply(p), ...);  // else plan<> has said what is wrong
  return p;
}

/// What a plan alone says, as data.
template <class Plan>
struct plan_numbers {
  static constexpr num world_size = shardplan::world_size(Plan::spec);
  static constexpr num num_stages = shardplan::num_stages(Plan::spec);
  static constexpr num num_data_shards = shardplan::num_data_shards(Plan::spec);
  static constexpr num gradient_divisor = shardplan::gradient_divisor(Plan::spec);
};

}  // namespace detail

/// Policies, in any order. Whoever names it (struct mine final : plan<...> {}) reads `mine` in messages.
template <class... Policies>
struct plan : detail::plan_numbers<plan<Policies...>>,
              private detail::policy_faults<plan<Policies...>, std::index_sequence_for<Policies...>, Policies...> {
  static_assert((Policy<Policies> && ...), "shardplan: a plan must be made of policies");
  static constexpr plan_spec spec = detail::applied<Policies...>();
  static_assert(!spec.modules.full(), "shardplan: a plan must hold at most 24 module overrides");
};

/// A value as a type: plan_of<"tp=2,cp=2/ring"_plan>. Compilers print all of the value, so name it (above).
template <plan_spec Spec>
struct plan_of : detail::plan_numbers<plan_of<Spec>> {
  static constexpr plan_spec spec = Spec;
};
template <model_spec Spec>
struct model_of {
  static constexpr model_spec spec = Spec;
};
template <batch_spec Spec>
struct batch_of {
  static constexpr batch_spec spec = Spec;
};

template <class P>
concept PlanType = requires {
  { P::spec } -> std::same_as<const plan_spec&>;
};
template <class M>
concept ModelType = requires {
  { M::spec } -> std::same_as<const model_spec&>;
};
template <class B>
concept BatchType = requires {
  { B::spec } -> std::same_as<const batch_spec&>;
};

}  // namespace shardplan
#endif  // SHARDPLAN_POLICIES_HPP
