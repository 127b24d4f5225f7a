// SPDX-License-Identifier: Apache-2.0
// Random questions about small models, batches and plans of up to eight ranks, some of them disturbed far out of range.
// A question is a function of its seed, so that what one test refuses and another carries out are the same.
#ifndef SHARDPLAN_TESTS_UNIT_RANDOM_QUESTIONS_HPP
#define SHARDPLAN_TESTS_UNIT_RANDOM_QUESTIONS_HPP

#include <algorithm>  // min, max
#include <random>
#include <shardplan/plan_text.hpp>
#include <shardplan/question.hpp>
#include <string>
#include <vector>

namespace shardplan::tests {

class generator {
 public:
  explicit generator(std::uint64_t seed) : random_(seed) {}

  num below(num n) { return static_cast<num>(random_() % static_cast<std::uint64_t>(n)); }
  num one_of(std::initializer_list<num> values) { return values.begin()[below(static_cast<num>(values.size()))]; }
  bool once_in(num n) { return below(n) == 0; }

  model_spec model() {
    model_spec m;
    m.num_hidden_layers = one_of({1, 2, 3, 4, 6, 8});
    m.hidden_size = one_of({4, 8, 6, 5, 7});
    m.num_key_value_heads = one_of({1, 2, 3, 4, 6});
    m.num_attention_heads = m.num_key_value_heads * one_of({1, 2, 3, 4});
    m.head_dim = one_of({2, 4, 8});
    m.intermediate_size = one_of({8, 12, 24});
    m.moe_intermediate_size = one_of({4, 6, 8, 24, 5});
    m.num_experts = one_of({0, 1, 2, 3, 4, 6, 8});
    m.num_experts_per_tok = m.num_experts == 0 ? 0 : 1 + below(std::min<num>(m.num_experts, 3));
    m.vocab_size = one_of({12, 16, 24, 13});
    m.max_position_embeddings = 64;
    m.decoder_sparse_step = one_of({1, 1, 2, 3});
    if (once_in(4)) m.mlp_only_layers.insert(below(m.num_hidden_layers));
    m.sliding_window = one_of({0, 0, 3});
    m.attention_bias = once_in(2);
    if (m.num_experts == 0) {  // of one of the dense families
      m.head_norm = once_in(2);
      if (!m.head_norm) m.attention_bias = false;
      for (num layer = 0; m.head_norm && m.sliding_window > 0 && layer < m.num_hidden_layers; ++layer)
        if (once_in(2)) m.full_attention_layers.insert(layer);
    }
    m.tie_word_embeddings = once_in(2);
    return m;
  }
  /// Of up to eight ranks, with flags as they come.
  plan_spec plan(const model_spec& m) {
    plan_spec p;
    num left = one_of({1, 2, 3, 4, 5, 6, 7, 8, 4, 6, 8, 8});
    for (num plan_spec::*degree :
         {&plan_spec::pp, &plan_spec::dp_replicate, &plan_spec::fsdp, &plan_spec::cp, &plan_spec::tp}) {
      p.*degree = once_in(2) ? divisor(left) : 1;
      left /= p.*degree;
    }
    p.ep = once_in(3) ? divisor(p.fsdp * p.cp * p.tp) : once_in(20) ? one_of({2, 3, 4, 8}) : 1;
    p.etp = once_in(3) ? divisor(std::max<num>(1, p.fsdp * p.cp * p.tp / p.ep)) : once_in(20) ? one_of({2, 3, 4}) : 1;
    if (p.pp > 1) p.schedule = static_cast<schedule_kind>(below(3));
    if (p.schedule == schedule_kind::interleaved) p.virtual_stages = one_of({2, 2, 3});
    if (once_in(3)) p.stages = nearest_even_stages(m.num_hidden_layers, num_stages(p));
    p.zero = static_cast<zero_stage>(below(3));
    p.method = static_cast<cp_method>(below(4));
    if (p.method == cp_method::ulysses_ring) p.method_ulysses = divisor(p.cp), p.method_ring = p.cp / p.method_ulysses;
    p.layout = static_cast<layout_kind>(1 + below(3));
    p.sequence_parallel = once_in(2);
    p.dispatch = static_cast<dispatch_kind>(below(3));
    p.kv_replicate = once_in(2);
    p.vocab_pad = once_in(2);
    p.expert_pad = once_in(2);
    if (once_in(3))
      for (num n = 1 + below(2); n > 0; --n) override_some(m, p);
    return p;
  }
  /// Another style for some modules, of which the model has most.
  void override_some(const model_spec& m, plan_spec& p) {
    const std::string layer =
        "layers." + (once_in(2) ? "*" : std::to_string(below(m.num_hidden_layers + (once_in(10) ? 1 : 0))));
    const auto one = [&](std::initializer_list<const char*> of) {
      return std::string(of.begin()[below(static_cast<num>(of.size()))]);
    };
    if (once_in(3))
      merge(p.modules, layer + ".self_attn", one({"ulysses", "ring", "all_gather", "planned"}));
    else if (once_in(3))
      merge(p.modules, one({"lm_head", "embed_tokens"}), "replicated");
    else if (once_in(20))
      merge(p.modules, layer + one({".self_attn.q_proj", ".mlp.down_proj", ".mlp.experts.down_proj"}), "replicated");
    else
      merge(p.modules, layer + one({"", ".self_attn", ".mlp", ".mlp.experts"}), "replicated");
  }
  batch_spec batch(const plan_spec& p) {
    batch_spec b;
    b.micro_batches = once_in(2) ? 0 : one_of({1, 2, 3, 4}) * (once_in(2) ? p.pp : 1);
    b.rows = once_in(2) ? 0 : p.dp_replicate * p.fsdp * micro_batches(p, b) * one_of({1, 1, 2, 3});
    if (b.rows > 0 && once_in(10)) b.rows += one_of({-1, 1});
    b.length = one_of({0, 5, 16, 100});
    if (once_in(3)) {
      num sum = 0;
      for (num n = 1 + below(4); n > 0; --n) sum += b.documents[b.documents.count++] = 1 + below(9);
      b.length = once_in(2) ? 0 : sum;
    }
    return b;
  }
  question possible() {
    question q;
    q.model = model();
    q.plan = plan(q.model);
    q.batch = batch(q.plan);
    q.world = once_in(2) ? 0 : world_size(q.plan);
    return q;
  }
  /// Something in it is changed without regard to the rest.
  question disturbed() {
    question q = possible();
    model_spec& m = q.model;
    plan_spec& p = q.plan;
    batch_spec& b = q.batch;
    num* const anything[] = {&m.num_hidden_layers,
                             &m.hidden_size,
                             &m.num_attention_heads,
                             &m.num_key_value_heads,
                             &m.head_dim,
                             &m.intermediate_size,
                             &m.moe_intermediate_size,
                             &m.num_experts,
                             &m.num_experts_per_tok,
                             &m.vocab_size,
                             &m.decoder_sparse_step,
                             &m.sliding_window,
                             &p.pp,
                             &p.dp_replicate,
                             &p.fsdp,
                             &p.cp,
                             &p.tp,
                             &p.ep,
                             &p.etp,
                             &p.virtual_stages,
                             &p.method_ulysses,
                             &p.method_ring,
                             &b.length,
                             &b.rows,
                             &b.micro_batches,
                             &q.world};
    const auto value = [&] {
      return once_in(3) ? one_of({-1, 0, INT32_MAX, num{INT32_MAX} + 1, INT64_MAX, INT64_MIN, 46341, 513, 65, 129})
                        : below(10);
    };
    for (num changes = 1 + below(2); changes > 0; --changes) switch (below(5)) {
        case 0:
          p.layout = layout_kind::full;
          break;
        case 1:
          b.documents.push_back(value());
          break;
        case 2:
          p.stages.push_back(value());
          break;
        default:
          *anything[below(static_cast<num>(std::size(anything)))] = value();
      }
    return q;
  }

 private:
  num divisor(num n) {
    std::vector<num> all;
    for (num d = 1; d <= n; ++d)
      if (n % d == 0) all.push_back(d);
    return all[static_cast<std::size_t>(below(static_cast<num>(all.size())))];
  }
  std::mt19937_64 random_;
};

inline std::string describe(const question& q) {
  const model_spec& m = q.model;
  std::string out = std::string(print_plan(q.plan).view()) + ", world " + std::to_string(q.world) + ", micro-batches " +
                    std::to_string(q.batch.micro_batches) + ", rows " + std::to_string(q.batch.rows) + ", length " +
                    std::to_string(q.batch.length) +
                    "; layers, heads, kv, head_dim, widths, experts, top-k, vocab, step:";
  for (num n : {m.num_hidden_layers, m.num_attention_heads, m.num_key_value_heads, m.head_dim, m.intermediate_size,
                m.moe_intermediate_size, m.num_experts, m.num_experts_per_tok, m.vocab_size, m.decoder_sparse_step})
    out += " " + std::to_string(n);
  return out;
}

/// The questions of which the arithmetic in test_refusals says whether they are possible, and of which
/// test_equality_random carries out some that are: seeds 1 to `num_sampled`.
inline constexpr std::uint64_t num_sampled = 40000;
inline question sampled_question(std::uint64_t seed) {
  generator g(seed);
  return seed % 4 != 0 ? g.possible() : g.disturbed();
}

}  // namespace shardplan::tests
#endif  // SHARDPLAN_TESTS_UNIT_RANDOM_QUESTIONS_HPP
