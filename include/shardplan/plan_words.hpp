// SPDX-License-Identifier: Apache-2.0
// The words of a plan's text: axes, flags, options, and what can be wrong with them.
#ifndef SHARDPLAN_PLAN_WORDS_HPP
#define SHARDPLAN_PLAN_WORDS_HPP

#include <shardplan/plan.hpp>

namespace shardplan {

/// The largest degree, and the largest world: ranks are int everywhere outside.
inline constexpr num max_degree = 2147483647;

/// The axes whose degree a plan states, in the order in which plans are printed, compared and searched.
struct plan_axis {
  axis name{};
  num plan_spec::*degree = nullptr;
};
inline constexpr plan_axis plan_axes[] = {
    {axis::pp, &plan_spec::pp},     {axis::dp_replicate, &plan_spec::dp_replicate},
    {axis::fsdp, &plan_spec::fsdp}, {axis::cp, &plan_spec::cp},
    {axis::tp, &plan_spec::tp},     {axis::ep, &plan_spec::ep},
    {axis::etp, &plan_spec::etp},
};
inline constexpr std::size_t num_plan_axes = 7;
inline constexpr std::size_t num_dense_axes = 5;  ///< the first ones: their product is the world

enum class plan_problem : unsigned char {
  none,
  space,                    ///< there are no spaces in a plan
  empty_entry,              ///< nothing between two commas, or after the last
  unknown_axis,             ///< neither an axis nor a flag
  duplicate_axis,           ///< an axis or a flag for the second time
  missing_degree,           ///< `tp`, `tp=`
  not_a_number,             ///< a degree is decimal digits
  out_of_range,             ///< 0, or above max_degree
  flag_with_value,          ///< `vocab_pad=1`
  unknown_option,           ///< not an option of that axis
  duplicate_option,         ///< two options for one choice
  too_many_stages,          ///< more stages listed than a plan can hold
  second_star,              ///< more than one `*`
  star_cannot_be_inferred,  ///< `ep=*`, `etp=*`: these add no ranks, so the world does not tell them
  star_without_world,       ///< the world is not known
  star_is_not_whole,        ///< the other degrees do not divide the world
  world_out_of_range,       ///< the product of the degrees is above max_degree
  unknown_module,           ///< a pattern that names no module
  unknown_style,            ///< not a style, or not one for the modules of the pattern
  too_many_overrides,       ///< more module overrides than a plan can hold
};

using plan_message = fixed_text<640>;

struct parsed_plan {
  plan_spec plan{};  ///< meaningful when there is no problem
  plan_problem problem = plan_problem::none;
  std::size_t position = 0;  ///< of the offending character, from 0; the size of the text when it ends too early
  plan_message message{};    ///< one sentence that names the axis and the value; of modules, everything wrong

  constexpr bool ok() const { return problem == plan_problem::none; }
};

namespace detail {

struct plan_flag {
  text_view name;
  bool plan_spec::*given = nullptr;
};
inline constexpr plan_flag plan_flags[] = {{"kv_replicate", &plan_spec::kv_replicate},
                                           {"vocab_pad", &plan_spec::vocab_pad},
                                           {"expert_pad", &plan_spec::expert_pad}};

inline constexpr char known_axes[] = "pp, dp_replicate, fsdp, cp, tp, ep, etp";
inline constexpr char known_styles[] =
    "replicated, colwise, rowwise, vocabulary, packed_colwise, grouped_rowwise, planned, ulysses, ring, all_gather";
inline constexpr char known_flags[] = "kv_replicate, vocab_pad, expert_pad";

/// The options of an axis, for the message about one that it has not got.
constexpr text_view known_options(axis a) {
  switch (a) {
    case axis::pp:
      return "1f1b, gpipe, interleavedN (N from 2), layers:A+B+...";
    case axis::fsdp:
      return "zero3, zero1, zero2";
    case axis::cp:
      return "ulysses, ring, all_gather, ulyssesUxringR, contiguous, zigzag, zigzag_documents";
    case axis::tp:
      return "sp";
    case axis::ep:
      return "dispatch, all_reduce, all_gather";
    default:
      return "";
  }
}

}  // namespace detail
}  // namespace shardplan
#endif  // SHARDPLAN_PLAN_WORDS_HPP
