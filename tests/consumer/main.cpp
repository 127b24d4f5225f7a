// SPDX-License-Identifier: Apache-2.0
// A program of another project.
#include <shardplan/shardplan.hpp>

int main() {
  using namespace shardplan;
  constexpr plan_spec plan{.cp = 2, .tp = 2};
  static_assert(world_size(plan) == 4);
}
