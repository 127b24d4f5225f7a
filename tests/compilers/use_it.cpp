// SPDX-License-Identifier: Apache-2.0
// Asks the library once for everything that it computes of a plan, so that its templates are compiled too.
#include SHARDPLAN_EVERY_HEADER

using namespace shardplan;
using namespace shardplan::literals;

namespace {

struct qwen3 final {
  static constexpr model_spec spec = models::qwen3_30b_a3b;
};
struct mine final : plan<pipeline_parallel<4, interleaved<2>>, fully_sharded<2>, context_parallel<2, ring, zigzag>,
                         tensor_parallel<4, sequence_parallel>, expert_parallel<8>> {};
using outcome = checked<mine, qwen3, on_engine<engine_kind::threads>, on_ranks<64>>;
static_assert(outcome::world_size == 64 && outcome::heads_per_rank == 8);
static_assert(!LegalPlan<plan<tensor_parallel<3>>, qwen3>);
static_assert("pp=4/interleaved2,fsdp=2,cp=2/ring/zigzag,tp=4/sp,ep=8"_plan == mine::spec);

constexpr question about(const plan_spec& p) {
  question q;
  q.model = qwen3::spec;
  q.plan = p;
  return q;
}
constexpr num refusals(const plan_spec& p) {
  num said = 0;
  check(about(p), [&](const violation& v) { said += v.fix.size() > 0 ? 1 : 0; });
  return said;
}
constexpr num advice(const plan_spec& p) {
  num said = 0;
  advise(about(p), [&](const violation& v) { said += v.fix.size() > 0 ? 1 : 0; });
  return said;
}
constexpr plan_spec wrong = "tp=3,pp=5"_plan, idle = "tp=1/sp"_plan;
static_assert(refusals(wrong) == 4 && refusals(mine::spec) == 0);
static_assert(advice(idle) == 1);
static_assert(parse_plan(print_plan(mine::spec).view()).plan == mine::spec);
static_assert(nearest_legal_plan(about("tp=3,fsdp=2"_plan)).found);
static_assert(padded(about(mine::spec)) == 0);

}  // namespace
