// SPDX-License-Identifier: Apache-2.0
// A plan that breaks two rules, told at compile time and at run time by the same sentences. Compiled with
// -DSHOW_THE_ERROR, this file fails with these two errors and no other (g++ 12, without paths and namespaces):
//
//   In instantiation of 'heads_divide_over_tensor_and_ulysses::broken_with<num_heads<32>, tensor_degree<24>,
//     ulysses_degree<1>, two_wrong, qwen3_30b>':
//   error: static assertion failed: shardplan: num_heads must be divisible by tp * the Ulysses degree
//
//   In instantiation of 'even_stages_divide_the_layers::broken_with<num_layers<48>, pipeline_degree<5>,
//     virtual_stages<1>, two_wrong, qwen3_30b>':
//   error: static assertion failed: shardplan: num_layers must be divisible by pp * virtual_stages, or the stages
//   listed
#include <cstdio>
#include <shardplan/shardplan.hpp>

using namespace shardplan;

struct qwen3_30b final {
  static constexpr model_spec spec = models::qwen3_30b_a3b;
};
struct two_wrong final : plan<pipeline_parallel<5>, tensor_parallel<24>, replicate_kv_heads, pad_vocabulary> {};

#ifdef SHOW_THE_ERROR
using result = checked<two_wrong, qwen3_30b>;
static_assert(result::world_size == 120);
#endif
static_assert(!LegalPlan<two_wrong, qwen3_30b>);  // the query: no error, an answer

int main() {
  const question q{.model = qwen3_30b::spec, .plan = two_wrong::spec};
  check(q, [](const violation& v) {
    std::printf("%.*s\n", static_cast<int>(v.sentence.size()), v.sentence.data());
    for (const operand_value& o : v.operands)
      std::printf("  %.*s = %lld\n", static_cast<int>(o.name.size()), o.name.data(), static_cast<long long>(o.value));
    std::printf("  instead: %s\n", v.fix.c_str());
  });
  const nearest_plan nearest = nearest_legal_plan(q);
  if (nearest.found) std::printf("nearest: %s\n", print_plan(nearest.plan).c_str());
}
//> num_heads must be divisible by tp * the Ulysses degree
//>   num_heads = 32
//>   tensor_degree = 24
//>   ulysses_degree = 1
//>   instead: tp that divides 32: 16 or 32
//> num_layers must be divisible by pp * virtual_stages, or the stages listed
//>   num_layers = 48
//>   pipeline_degree = 5
//>   virtual_stages = 1
//>   instead: write pp=5/layers:10+10+10+9+9
//> nearest: pp=5/1f1b/layers:10+10+10+9+9,fsdp=3/zero3,tp=8,kv_replicate,vocab_pad
