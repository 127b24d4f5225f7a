// SPDX-License-Identifier: Apache-2.0
// The configuration of another framework, checked before a job is started and without a change to it: a function from
// its structure to a plan is all that is written. Here one that lists degrees, leaves data parallelism to be inferred,
// and numbers its methods.
#include <cstdio>
#include <shardplan/shardplan.hpp>

namespace trainer {  // theirs

enum class context_comm { point_to_point, all_to_all, all_gather };

struct parallel_config {
  int world_size = 1;
  int pipeline_model_parallel_size = 1;
  int tensor_model_parallel_size = 1;
  int context_parallel_size = 1;
  int expert_model_parallel_size = 1;
  int expert_tensor_parallel_size = 0;  // 0: as tensor_model_parallel_size
  bool sequence_parallel = false;
  bool use_distributed_optimizer = true;
  context_comm cp_comm_type = context_comm::point_to_point;
};

inline constexpr parallel_config production{.world_size = 64,
                                            .pipeline_model_parallel_size = 2,
                                            .tensor_model_parallel_size = 4,
                                            .context_parallel_size = 2,
                                            .expert_model_parallel_size = 16,
                                            .expert_tensor_parallel_size = 1,
                                            .sequence_parallel = true};

}  // namespace trainer

using namespace shardplan;

/// The same plan in our words. What their format cannot say follows from it: data parallelism is what is left.
constexpr plan_spec plan_from(const trainer::parallel_config& c) {
  plan_spec p;
  p.pp = c.pipeline_model_parallel_size;
  p.tp = c.tensor_model_parallel_size;
  p.cp = c.context_parallel_size;
  p.ep = c.expert_model_parallel_size;
  p.etp = c.expert_tensor_parallel_size == 0 ? p.tp : c.expert_tensor_parallel_size;  // their default, not ours
  (c.use_distributed_optimizer ? p.fsdp : p.dp_replicate) = c.world_size / (p.pp * p.tp * p.cp);
  p.zero = zero_stage::zero1;
  p.sequence_parallel = c.sequence_parallel;
  p.layout = p.cp > 1 ? layout_kind::zigzag : layout_kind::contiguous;
  p.method = c.cp_comm_type == trainer::context_comm::point_to_point ? cp_method::ring
             : c.cp_comm_type == trainer::context_comm::all_to_all   ? cp_method::ulysses
                                                                     : cp_method::all_gather;
  return p;
}

struct qwen3_235b final {
  static constexpr model_spec spec = models::qwen3_235b_a22b;
};
struct production final : plan_of<plan_from(trainer::production)> {};
static_assert(checked<production, qwen3_235b, on_ranks<trainer::production.world_size>>::experts_per_rank == 8);

constexpr trainer::parallel_config with_experts(int ep, int etp) {
  trainer::parallel_config c = trainer::production;
  c.expert_model_parallel_size = ep, c.expert_tensor_parallel_size = etp;
  return c;
}
static_assert(!LegalPlan<plan_of<plan_from(with_experts(16, 0))>,
                         qwen3_235b>);  // inherits etp 4, and 16 * 4 does not divide 32 ranks

int main() { std::printf("%s\n", print_plan(production::spec).c_str()); }
//> pp=2/1f1b,fsdp=4/zero1,cp=2/ring/zigzag,tp=4/sp,ep=16/dispatch
