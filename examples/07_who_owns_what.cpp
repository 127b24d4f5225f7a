// SPDX-License-Identifier: Apache-2.0
// Which elements of a parameter each rank keeps. Over all ranks they cover it, each element equally often: that is the
// postcondition that tests check for every parameter, state and plan, and that main() checks here once more.
#include <cstdio>
#include <shardplan/shardplan.hpp>

using namespace shardplan;
using namespace shardplan::literals;

constexpr model_spec model = [] {
  model_spec m;
  m.num_hidden_layers = 2;
  m.hidden_size = 32;
  m.num_attention_heads = 8;
  m.num_key_value_heads = 2;
  m.head_dim = 8;
  m.moe_intermediate_size = 16;
  m.num_experts = 8;
  m.num_experts_per_tok = 2;
  m.vocab_size = 96;
  return m;
}();
constexpr plan_spec two_by_four = "fsdp=2,tp=4,ep=4,etp=2,kv_replicate"_plan;
static_assert(legal({.model = model, .plan = two_by_four}));

// A constant like any other: rank 7 has the last 8 rows of the last head pair.
static_assert(owned(model, two_by_four, make_parameter(model, parameter_kind::q_proj, 0), state_kind::parameter, 7) ==
              region{{{{56, 64}, {0, 32}}, 2}});

void print(const dim_part& part) {
  std::printf("  %lld-%lld", static_cast<long long>(part.ranges[0].begin), static_cast<long long>(part.ranges[0].end));
  if (part.ranges[1].size() > 0)
    std::printf("+%lld-%lld", static_cast<long long>(part.ranges[1].begin), static_cast<long long>(part.ranges[1].end));
}

void show(parameter_kind kind) {
  const parameter p = make_parameter(model, kind, 0);
  std::printf("%s\n", name_of(p).c_str());
  num elements = 0;
  for (num rank = 0; rank < world_size(two_by_four); ++rank) {
    const region part = owned(model, two_by_four, p, state_kind::parameter, rank);
    std::printf("  %lld:", static_cast<long long>(rank));
    for (const dim_part& dim : part.dims) print(dim);
    std::printf("\n");
    elements += part.size();
  }
  std::printf("  %lld of %lld elements, %lld times\n", static_cast<long long>(elements),
              static_cast<long long>(p.size()), static_cast<long long>(elements / p.size()));
}

int main() {
  show(parameter_kind::k_proj);           // two heads for four tp ranks: kept twice, in shards over fsdp
  show(parameter_kind::experts_gate_up);  // experts over ep, gate and up rows each over etp
}
//> model.layers.0.self_attn.k_proj.weight
//>   0:  0-4  0-32
//>   1:  0-4  0-32
//>   2:  8-12  0-32
//>   3:  8-12  0-32
//>   4:  4-8  0-32
//>   5:  4-8  0-32
//>   6:  12-16  0-32
//>   7:  12-16  0-32
//>   1024 of 512 elements, 2 times
//> model.layers.0.mlp.experts.gate_up_proj
//>   0:  0-2  0-8+16-24  0-32
//>   1:  0-2  8-16+24-32  0-32
//>   2:  2-4  0-8+16-24  0-32
//>   3:  2-4  8-16+24-32  0-32
//>   4:  4-6  0-8+16-24  0-32
//>   5:  4-6  8-16+24-32  0-32
//>   6:  6-8  0-8+16-24  0-32
//>   7:  6-8  8-16+24-32  0-32
//>   8192 of 8192 elements, 1 times
