// SPDX-License-Identifier: Apache-2.0
// A method of attention that there is not: the literal lists those that there are, where the compiler prints text.
// expect-error: plan_text_is_wrong_at_character<.*unknown_option, 5, .f.
// expect-said: flash.* is not an option of cp: ulysses, ring, all_gather, ulyssesUxringR, contiguous, zigzag
// expect-errors: 1 to 3
#include <shardplan/shardplan.hpp>

using namespace shardplan::literals;

#ifdef SHARDPLAN_FIXED
constexpr auto p = "cp=2/ring"_plan;
#else
constexpr auto p = "cp=2/flash"_plan;
#endif
static_assert(p.cp == 2);
