// SPDX-License-Identifier: Apache-2.0
// Two mistyped patterns and a style that does not fit: each is told.
// expect-error: shardplan: the pattern of an override must name modules of a model
// expect-error: shardplan: the style of an override must be one that all modules of its pattern can have
// expect-errors: 3
#include <shardplan/shardplan.hpp>

using namespace shardplan;

#ifdef SHARDPLAN_FIXED
using first = override_modules<"lm_head", module_style::replicated>;
using second = override_modules<"layers.*.self_attn", module_style::ring>;
using third = override_modules<"layers.*.self_attn", module_style::replicated>;
#else
using first = override_modules<"lm_hed", module_style::replicated>;
using second = override_modules<"layers.*.attention", module_style::ring>;
using third = override_modules<"layers.*.self_attn", module_style::rowwise>;
#endif
using mine = plan<tensor_parallel<2>, first, second, third>;
static_assert(mine::world_size == 2);
