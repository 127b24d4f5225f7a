// SPDX-License-Identifier: Apache-2.0
// Bugs that were reported publicly for other systems, as small cases: what a correct planner says of each. Written by
// make_cases.py.
#ifndef SHARDPLAN_TESTS_CASES_CASES_HPP
#define SHARDPLAN_TESTS_CASES_CASES_HPP

#include <cstddef>  // size_t
#include <shardplan/shardplan.hpp>
#include <string_view>  // string_view

namespace shardplan::cases {

using namespace literals;

enum class verdict {
  illegal,  ///< refused
  legal,    ///< accepted
  pad,      ///< accepted, and padding reported; or refused, and the option named that pads
  trap      ///< accepted; whoever carries it out is easily wrong without a word
};

/// Families of rules, by code: W mesh, H heads and widths, S sequence and padding (S3 layout, S4 shifted labels, S5
/// packed documents), P pipeline, V vocabulary, E experts, G gradients and loss, C checkpoints, M the rules themselves.
struct public_case {
  std::string_view id, source;  ///< `source` is repository#number
  std::string_view families;
  verdict says;
  model_spec model;
  batch_spec batch;
  plan_spec plan;
  num world;
  num padded;               ///< length of a padded row; 0: no padding
  std::string_view option;  ///< the flag of the plan that pads; empty: none is needed

  /// The question that the case asks.
  constexpr question ask() const {
    question q;
    q.model = model, q.plan = plan, q.batch = batch, q.world = world;
    return q;
  }
  /// The plan with the option that pads.
  constexpr plan_spec padded_plan() const {
    plan_spec p = plan;
    p.vocab_pad = p.vocab_pad || option == "vocab_pad";
    p.expert_pad = p.expert_pad || option == "expert_pad";
    return p;
  }
};

struct model_changes {
  num q_heads = 4, kv_heads = 2, layers = 2, vocab = 16, experts = 4, moe_ffn = 8, tied = 0;
};
constexpr model_spec small(const model_changes& c) {
  model_spec m;
  m.num_hidden_layers = c.layers, m.hidden_size = 16, m.vocab_size = c.vocab;
  m.num_attention_heads = c.q_heads, m.num_key_value_heads = c.kv_heads, m.head_dim = 8;
  m.intermediate_size = 24, m.moe_intermediate_size = c.moe_ffn;
  m.num_experts = c.experts, m.num_experts_per_tok = c.experts > 0 ? 2 : 0;
  m.max_position_embeddings = 256, m.tie_word_embeddings = c.tied != 0;
  return m;
}

template <class... Documents>
constexpr batch_spec batch(num length, num rows, num micro_batches, Documents... documents) {
  batch_spec b;
  b.length = length, b.rows = rows, b.micro_batches = micro_batches;
  (b.documents.push_back(documents), ...);
  return b;
}

// clang-format off
inline constexpr public_case all[] = {
    {"PB001", "NVIDIA/Megatron-LM#5617", "S3", verdict::trap,
     small({}), batch(8, 2, 2), "pp=2,cp=2/ring/zigzag"_plan, 4, 0, ""},
    {"PB003", "NVIDIA-NeMo/Megatron-Bridge#1461", "P3 S3", verdict::trap,
     small({}), batch(8, 2, 2), "pp=2,tp=2/sp,ep=2"_plan, 4, 0, ""},
    {"PB004", "alibaba/ChatLearn#189", "S3", verdict::trap,
     small({}), batch(8, 2, 2), "cp=2/ring/zigzag"_plan, 2, 0, ""},
    {"PB006", "THUDM/slime#1135", "S3", verdict::trap,
     small({}), batch(8, 2, 2), "cp=2/ring/zigzag"_plan, 2, 0, ""},
    {"PB007", "THUDM/slime#73", "S3", verdict::trap,
     small({}), batch(16, 2, 2), "cp=4/ring/zigzag"_plan, 4, 0, ""},
    {"PB009", "NVIDIA-NeMo/RL#1835", "S3", verdict::trap,
     small({}), batch(8, 2, 2), "tp=2/sp"_plan, 2, 0, ""},
    {"PB010", "NVIDIA-NeMo/Automodel#1482", "S3", verdict::trap,
     small({}), batch(8, 2, 2), "cp=2/ring/zigzag"_plan, 2, 0, ""},
    {"PB012", "huggingface/transformers#36607", "S4", verdict::trap,
     small({}), batch(8, 2, 2), "cp=2/ring"_plan, 2, 0, ""},
    {"PB013", "alibaba/ChatLearn#343", "S4 S5", verdict::trap,
     small({}), batch(16, 2, 2), "cp=4/ring/zigzag"_plan, 4, 0, ""},
    {"PB015", "verl-project/verl#4656", "S1", verdict::pad,
     small({}), batch(2, 2, 2), "cp=4/ring/zigzag,tp=2/sp"_plan, 8, 8, ""},
    {"PB017", "jzhang38/EasyContext#47", "S1", verdict::pad,
     small({}), batch(15, 2, 2), "cp=4/ring/zigzag"_plan, 4, 16, ""},
    {"PB018", "NVIDIA/Megatron-LM#1669", "S1 S5", verdict::pad,
     small({}), batch(7, 2, 2), "cp=2/ring/zigzag"_plan, 2, 8, ""},
    {"PB020", "NVIDIA-NeMo/RL#2110", "S1", verdict::pad,
     small({}), batch(7, 2, 2), "pp=2,tp=2/sp"_plan, 4, 8, ""},
    {"PB021", "NVIDIA-NeMo/RL#2182", "S1 M1", verdict::pad,
     small({}), batch(11, 2, 2, 5, 6), "pp=2,cp=2/ring/zigzag_documents"_plan, 4, 16, ""},
    {"PB023", "NVIDIA/Megatron-LM#743", "S1", verdict::pad,
     small({}), batch(9, 2, 2), "tp=2/sp"_plan, 2, 10, ""},
    {"PB024", "deepspeedai/DeepSpeed#5177", "S1", verdict::pad,
     small({.kv_heads=4}), batch(5, 2, 2), "cp=4/ulysses"_plan, 4, 8, ""},
    {"PB026", "NVIDIA/Megatron-LM#5243", "S5", verdict::trap,
     small({}), batch(8, 2, 2, 4, 4), "cp=2/ring/zigzag_documents"_plan, 2, 0, ""},
    {"PB027", "PrimeIntellect-ai/prime-rl#2392", "S5", verdict::trap,
     small({}), batch(8, 2, 2), "cp=2/ring"_plan, 2, 0, ""},
    {"PB029", "huggingface/diffusers#14265", "G1", verdict::trap,
     small({}), batch(8, 2, 2), "cp=2/ring/zigzag"_plan, 2, 0, ""},
    {"PB030", "pytorch/torchtitan#2574", "H2", verdict::illegal,
     small({}), batch(8, 2, 2), "tp=4"_plan, 4, 0, ""},
    {"PB032", "huggingface/transformers#47811", "H2", verdict::legal,
     small({}), batch(8, 2, 2), "tp=4,kv_replicate"_plan, 4, 0, ""},
    {"PB033", "hiyouga/LlamaFactory#10794", "H2", verdict::illegal,
     small({}), batch(8, 2, 2), "cp=4/ulysses"_plan, 4, 0, ""},
    {"PB035", "verl-project/verl#1226", "H1", verdict::illegal,
     small({}), batch(8, 2, 2), "cp=8/ulysses,kv_replicate"_plan, 8, 0, ""},
    {"PB037", "aws-neuron/aws-neuron-sdk#1289", "H2", verdict::legal,
     small({}), batch(8, 2, 2), "tp=2"_plan, 2, 0, ""},
    {"PB038", "vllm-project/vllm#11797", "H1 H2", verdict::illegal,
     small({.q_heads=6}), batch(8, 2, 2), "tp=4,kv_replicate"_plan, 4, 0, ""},
    {"PB039", "vllm-project/vllm#49777", "H1 H2", verdict::illegal,
     small({.q_heads=6, .kv_heads=4}), batch(8, 2, 2), "tp=4"_plan, 4, 0, ""},
    {"PB040", "vllm-project/vllm#51429", "M1 H2", verdict::legal,
     small({.kv_heads=4}), batch(8, 2, 2), "cp=2/ring/zigzag,tp=4"_plan, 8, 0, ""},
    {"PB041", "vipshop/cache-dit#581", "H1", verdict::illegal,
     small({.q_heads=6, .kv_heads=4}), batch(8, 2, 2), "tp=4"_plan, 4, 0, ""},
    {"PB043", "sgl-project/sglang#20967", "H2", verdict::trap,
     small({}), batch(8, 2, 2), "tp=4,kv_replicate"_plan, 4, 0, ""},
    {"PB045", "NVIDIA-NeMo/Automodel#1324", "H3", verdict::trap,
     small({}), batch(8, 2, 2), "tp=2"_plan, 2, 0, ""},
    {"PB046", "pytorch/torchtitan#4535", "H3", verdict::illegal,
     small({.moe_ffn=3}), batch(8, 2, 2), "tp=2,etp=2"_plan, 2, 0, ""},
    {"PB047", "THUDM/slime#1818", "W2", verdict::illegal,
     small({}), batch(8, 2, 2), "pp=2,tp=2,ep=4"_plan, 4, 0, ""},
    {"PB049", "NVIDIA-NeMo/Megatron-Bridge#4007", "W2", verdict::legal,
     small({}), batch(8, 4, 2), "fsdp=2,tp=2,ep=4"_plan, 4, 0, ""},
    {"PB050", "NVIDIA-NeMo/Speech#14838", "W2", verdict::legal,
     small({}), batch(8, 4, 2), "pp=2,fsdp=2,ep=2"_plan, 4, 0, ""},
    {"PB052", "pytorch/torchtitan#4258", "W2 E1", verdict::illegal,
     small({}), batch(8, 8, 2), "fsdp=4,ep=3"_plan, 4, 0, ""},
    {"PB053", "huggingface/accelerate#3798", "W1", verdict::trap,
     small({}), batch(8, 2, 2), "tp=2"_plan, 2, 0, ""},
    {"PB055", "vllm-project/vllm#596", "W1", verdict::legal,
     small({}), batch(8, 2, 2), "tp=2"_plan, 2, 0, ""},
    {"PB057", "vllm-project/vllm-ascend#16384", "E1", verdict::pad,
     small({}), batch(8, 6, 2), "fsdp=3,ep=3"_plan, 3, 0, "expert_pad"},
    {"PB058", "ROCm/Megatron-LM#85", "M1", verdict::legal,
     small({.experts=0}), batch(8, 2, 2), "tp=2"_plan, 2, 0, ""},
    {"PB060", "huggingface/transformers#48516", "W1 W2", verdict::legal,
     small({}), batch(8, 8, 2), "fsdp=4,ep=2"_plan, 4, 0, ""},
    {"PB061", "huggingface/transformers#50514", "W2 E2", verdict::legal,
     small({}), batch(8, 4, 2), "fsdp=2,cp=2/ring/zigzag,ep=4"_plan, 4, 0, ""},
    {"PB063", "NVIDIA/Megatron-LM#468", "P1", verdict::illegal,
     small({.layers=10}), batch(8, 2, 2), "pp=2/interleaved2"_plan, 2, 0, ""},
    {"PB065", "NVIDIA/Megatron-LM#1778", "P1", verdict::illegal,
     small({.layers=4}), batch(8, 2, 2), "pp=1/layers:1"_plan, 1, 0, ""},
    {"PB066", "ml-explore/mlx-lm#1688", "P1", verdict::trap,
     small({.layers=10}), batch(8, 2, 2), "pp=3/layers:4+3+3"_plan, 3, 0, ""},
    {"PB067", "NVIDIA/Megatron-LM#1584", "P1 C1", verdict::trap,
     small({.layers=6}), batch(8, 2, 2), "pp=2/interleaved2/layers:2+1+2+1"_plan, 2, 0, ""},
    {"PB068", "NVIDIA/Megatron-LM#381", "P1", verdict::legal,
     small({.layers=7}), batch(8, 2, 2), "pp=2/layers:3+4"_plan, 2, 0, ""},
    {"PB069", "vllm-project/vllm#6115", "P1", verdict::legal,
     small({.layers=6}), batch(8, 2, 2), "pp=4/layers:2+2+1+1"_plan, 4, 0, ""},
    {"PB072", "pytorch/pytorch#144702", "P2", verdict::legal,
     small({.layers=4}), batch(8, 2, 2), "pp=4/gpipe"_plan, 4, 0, ""},
    {"PB073", "NVIDIA-NeMo/Speech#14288", "P2", verdict::illegal,
     small({.layers=8}), batch(8, 3, 3), "pp=4/interleaved2"_plan, 4, 0, ""},
    {"PB074", "NVIDIA/Megatron-LM#620", "P3", verdict::trap,
     small({}), batch(8, 2, 2), "pp=2,tp=2"_plan, 4, 0, ""},
    {"PB075", "NVIDIA/Megatron-LM#5271", "P3", verdict::trap,
     small({.layers=4}), batch(8, 2, 2), "pp=2/interleaved2"_plan, 2, 0, ""},
    {"PB077", "NVIDIA/Megatron-LM#844", "P4 G1", verdict::trap,
     small({.tied=1}), batch(8, 4, 2), "pp=2,fsdp=2"_plan, 4, 0, ""},
    {"PB079", "NVIDIA-NeMo/Megatron-Bridge#1331", "V1", verdict::pad,
     small({.kv_heads=4, .vocab=13}), batch(8, 2, 2), "tp=4"_plan, 4, 0, "vocab_pad"},
    {"PB080", "vllm-project/vllm#578", "V1", verdict::pad,
     small({.kv_heads=4, .vocab=14}), batch(8, 2, 2), "tp=4"_plan, 4, 0, "vocab_pad"},
    {"PB082", "karpathy/nanochat#364", "V1", verdict::pad,
     small({.vocab=15}), batch(8, 2, 2), "tp=2"_plan, 2, 0, "vocab_pad"},
    {"PB083", "hpcaitech/ColossalAI#6167", "V1 C1", verdict::pad,
     small({.vocab=15}), batch(8, 2, 2), "tp=2"_plan, 2, 0, "vocab_pad"},
    {"PB084", "NVIDIA/Megatron-LM#7452", "V2", verdict::trap,
     small({}), batch(8, 2, 2), "tp=2"_plan, 2, 0, ""},
    {"PB086", "NVIDIA/Megatron-LM#906", "G1 G3", verdict::trap,
     small({}), batch(16, 4, 2), "fsdp=2,cp=4/ring/zigzag"_plan, 8, 0, ""},
    {"PB087", "verl-project/verl#6609", "G3", verdict::trap,
     small({}), batch(8, 2, 2), "cp=2/ring/zigzag"_plan, 2, 0, ""},
    {"PB089", "huggingface/transformers#48167", "G3", verdict::trap,
     small({}), batch(8, 2, 2), "cp=2/ring"_plan, 2, 0, ""},
    {"PB090", "pytorch/torchtitan#3280", "G3", verdict::trap,
     small({}), batch(8, 2, 2), "cp=2/ring/zigzag,tp=2"_plan, 4, 0, ""},
    {"PB092", "axolotl-ai-cloud/axolotl#3026", "G3", verdict::trap,
     small({}), batch(8, 2, 2), "cp=2/ring"_plan, 2, 0, ""},
    {"PB093", "deepspeedai/DeepSpeed#5555", "G1", verdict::trap,
     small({}), batch(8, 2, 2), "cp=4/ring"_plan, 4, 0, ""},
    {"PB095", "pytorch/pytorch#167178", "G1", verdict::trap,
     small({}), batch(8, 8, 2), "fsdp=4,ep=4"_plan, 4, 0, ""},
    {"PB096", "NVIDIA/Megatron-LM#5916", "G1 G2", verdict::trap,
     small({}), batch(8, 4, 2), "fsdp=2,tp=2"_plan, 4, 0, ""},
    {"PB098", "NVIDIA-NeMo/RL#3788", "G2", verdict::trap,
     small({}), batch(8, 2, 2), "tp=2"_plan, 2, 0, ""},
    {"PB099", "ByteDance-Seed/VeOmni#184", "G2", verdict::trap,
     small({}), batch(8, 8, 2), "dp_replicate=2,fsdp=2"_plan, 4, 0, ""},
    {"PB101", "huggingface/transformers#45473", "E2", verdict::trap,
     small({}), batch(8, 2, 2), "tp=2,ep=2"_plan, 2, 0, ""},
    {"PB102", "huggingface/transformers#48687", "E2 G1", verdict::trap,
     small({.experts=8}), batch(8, 2, 2), "tp=2,ep=2"_plan, 2, 0, ""},
    {"PB104", "pytorch/torchtitan#2387", "G1", verdict::trap,
     small({}), batch(8, 2, 2), "tp=2/sp,ep=2"_plan, 2, 0, ""},
    {"PB105", "pytorch/torchtitan#3604", "E2", verdict::trap,
     small({}), batch(4, 4, 2), "tp=2/sp,ep=2"_plan, 2, 0, ""},
    {"PB107", "deepspeedai/DeepSpeed#2074", "E2", verdict::trap,
     small({}), batch(8, 4, 2), "fsdp=2,tp=2,ep=2"_plan, 4, 0, ""},
    {"PB108", "deepspeedai/DeepSpeed#6809", "E4", verdict::trap,
     small({}), batch(8, 4, 2), "fsdp=2,ep=2"_plan, 2, 0, ""},
    {"PB110", "NVIDIA/Megatron-LM#5542", "S2 E2", verdict::trap,
     small({}), batch(5, 2, 2), "cp=4/ring,ep=4"_plan, 4, 8, ""},
    {"PB111", "NVIDIA-NeMo/RL#3716", "G1", verdict::trap,
     small({}), batch(8, 2, 2), "tp=2"_plan, 2, 0, ""},
    {"PB113", "bigcode-project/Megatron-LM#37", "H2 G1", verdict::trap,
     small({.kv_heads=1}), batch(8, 2, 2), "tp=2,kv_replicate"_plan, 2, 0, ""},
    {"PB114", "inclusionAI/AReno#496", "G1", verdict::trap,
     small({}), batch(8, 2, 2), "tp=2"_plan, 2, 0, ""},
    {"PB116", "NVIDIA/Megatron-LM#5047", "G4", verdict::trap,
     small({}), batch(8, 2, 2), "tp=2/sp,ep=2"_plan, 2, 0, ""},
    {"PB117", "NVIDIA-NeMo/Automodel#1412", "G4", verdict::trap,
     small({}), batch(8, 4, 2), "fsdp=2,ep=2"_plan, 2, 0, ""},
    {"PB119", "KempnerInstitute/KempnerForge#202", "C1", verdict::trap,
     small({}), batch(8, 4, 2), "fsdp=2,ep=2"_plan, 2, 0, ""},
    {"PB120", "sgl-project/sglang#36438", "C1", verdict::trap,
     small({}), batch(8, 2, 2), "tp=2,etp=2"_plan, 2, 0, ""},
    {"PB123", "vllm-project/vllm#51130", "C1 W2", verdict::trap,
     small({}), batch(8, 4, 2), "fsdp=2,ep=2"_plan, 2, 0, ""},
    {"PB124", "NVIDIA-NeMo/Automodel#2682", "C1", verdict::trap,
     small({}), batch(8, 4, 2), "fsdp=2,ep=2"_plan, 2, 0, ""},
};
// clang-format on
inline constexpr std::size_t num_cases = sizeof(all) / sizeof(all[0]);

/// Place of a case in the table; past its end when there is none.
constexpr std::size_t index_of(std::string_view id) {
  std::size_t i = 0;
  while (i < num_cases && all[i].id != id) ++i;
  return i;
}

// The same as types.
template <std::size_t Index>
struct model_at {
  static constexpr model_spec spec = all[Index].model;
};
template <std::size_t Index>
struct batch_at {
  static constexpr batch_spec spec = all[Index].batch;
};
template <std::size_t Index>
struct plan_at {
  static constexpr plan_spec spec = all[Index].plan;
};
template <std::size_t Index>
struct padded_plan_at {
  static constexpr plan_spec spec = all[Index].padded_plan();
};

}  // namespace shardplan::cases
#endif  // SHARDPLAN_TESTS_CASES_CASES_HPP
