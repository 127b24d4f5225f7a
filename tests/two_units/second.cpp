// SPDX-License-Identifier: Apache-2.0
#include <shardplan/shardplan.hpp>

#include <shardplan/shardplan.hpp>

shardplan::num world_of_first();

int main() { return world_of_first() == shardplan::world_size(shardplan::plan_spec{}) ? 0 : 1; }
