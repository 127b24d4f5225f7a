// SPDX-License-Identifier: Apache-2.0
// The literal says what is wrong with the text, at which character, and which one that is.
// expect-error: plan_text_is_wrong_at_character<.*unknown_axis, 5, .c.
// expect-error: shardplan: the text of a plan must be readable at this character
// expect-told: .cq. is neither an axis .pp.* nor a flag .kv_replicate, vocab_pad, expert_pad.
// expect-errors: 1 to 3
#include <shardplan/shardplan.hpp>

using namespace shardplan::literals;

#ifdef SHARDPLAN_FIXED
constexpr auto p = "tp=2,cp=2"_plan;
#else
constexpr auto p = "tp=2,cq=2"_plan;
#endif
static_assert(p.tp == 2);
