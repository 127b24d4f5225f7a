// SPDX-License-Identifier: Apache-2.0
// With second.cpp: the library in two translation units of one program, included twice in each.
#include <shardplan/shardplan.hpp>

#include <shardplan/shardplan.hpp>

shardplan::num world_of_first() { return shardplan::world_size(shardplan::plan_spec{}); }
