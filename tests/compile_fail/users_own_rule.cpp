// SPDX-License-Identifier: Apache-2.0
// A rule of the user's, with an operand of the user's, speaks like the library's.
// expect-error: tiles_are_whole.*hidden_size<32>.*not_a_tile
// expect-error: shardplan: hidden_size must be a multiple of 128
// expect-told: hidden_size must be a multiple of 128 .hidden_size<32>, plan<>, not_a_tile.
// expect-errors: 1
#include <shardplan/shardplan.hpp>

namespace house {

SHARDPLAN_OPERAND(hidden_size, q.model.hidden_size);
struct tiles_are_whole {
  SHARDPLAN_SENTENCE("hidden_size must be a multiple of 128");
  static constexpr shardplan::rule_kind kind = shardplan::rule_kind::math;
  using operands = shardplan::list<hidden_size_operand>;
  static constexpr bool holds(shardplan::num hidden) { return hidden % 128 == 0; }
};

struct not_a_tile final {
  static constexpr shardplan::model_spec spec = [] {
    shardplan::model_spec m;
#ifdef SHARDPLAN_FIXED
    m.hidden_size = 256;
#else
    m.hidden_size = 32;
#endif
    return m;
  }();
};

}  // namespace house

using outcome = shardplan::checked<shardplan::plan<>, house::not_a_tile, house::tiles_are_whole>;
static_assert(outcome::world_size == 1);
