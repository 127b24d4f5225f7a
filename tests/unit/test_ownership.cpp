// SPDX-License-Identifier: Apache-2.0
// What ranks own, element by element: for every legal plan of up to eight ranks on models where little divides, each
// parameter, gradient and optimizer state is covered, as often as this file says from degrees alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <shardplan/check.hpp>
#include <shardplan/ownership.hpp>
#include <shardplan/plan_text.hpp>
#include <stdexcept>  // logic_error
#include <string>
#include <vector>

namespace {

using namespace shardplan;

/// Layer 0 dense, layer 1 of experts; sizes small enough to count every element of every plan.
model_spec base() {
  model_spec m;
  m.num_hidden_layers = 2;
  m.hidden_size = 4;
  m.num_attention_heads = 8;
  m.num_key_value_heads = 4;
  m.head_dim = 2;
  m.intermediate_size = 8;
  m.moe_intermediate_size = 8;
  m.num_experts = 8;
  m.num_experts_per_tok = 2;
  m.vocab_size = 16;
  m.decoder_sparse_step = 2;
  return m;
}

struct named_model {
  std::string name;
  model_spec spec;
};
std::vector<named_model> models() {
  std::vector<named_model> out;
  const auto add = [&](const char* name, auto change) {
    out.push_back({name, base()});
    change(out.back().spec);
  };
  add("even", [](model_spec&) {});
  add("uneven vocabulary, bias", [](model_spec& m) {
    m.vocab_size = 13;
    m.attention_bias = true;
  });
  add("tied, few experts, copied heads", [](model_spec& m) {
    m.vocab_size = 11;
    m.tie_word_embeddings = true;
    m.num_experts = 3;
    m.num_key_value_heads = 1;
    m.attention_bias = true;
  });
  add("two key/value heads, all layers of experts, no head norm", [](model_spec& m) {
    m.num_key_value_heads = 2;
    m.decoder_sparse_step = 1;
    m.head_norm = false;
    m.num_experts = 5;
  });
  add("dense, threes and sixes", [](model_spec& m) {
    m.num_experts = m.num_experts_per_tok = 0;
    m.num_attention_heads = 12;
    m.num_key_value_heads = 6;
    m.intermediate_size = 12;
    m.hidden_size = 3;
  });
  return out;
}

/// Calls f(plan) for the legal plans of `world` ranks that differ in what ranks own: degrees, zero stage, and, once for
/// each tuple of degrees, stages.
template <class F>
void for_each_owning_plan(const model_spec& m, num world, F&& f) {
  question q;
  q.model = m;
  q.world = world;
  plan_spec& p = q.plan;
  p.kv_replicate = p.vocab_pad = p.expert_pad = true;
  std::vector<num> degrees;
  for (num d = 1; d <= world; ++d)
    if (world % d == 0) degrees.push_back(d);
  for (num pp : degrees)
    for (num dp_replicate : degrees)
      for (num fsdp : degrees)
        for (num cp : degrees)
          for (num tp : degrees) {
            if (pp * dp_replicate * fsdp * cp * tp != world) continue;
            for (num ep : degrees)
              for (num etp : degrees)
                for (zero_stage zero : {zero_stage::zero1, zero_stage::zero2, zero_stage::zero3})
                  for (num virtual_stages : {1, 2}) {
                    if (virtual_stages > 1 && (pp == 1 || zero != zero_stage::zero3)) continue;
                    p.pp = pp;
                    p.dp_replicate = dp_replicate;
                    p.fsdp = fsdp;
                    p.cp = cp;
                    p.tp = tp;
                    p.ep = ep;
                    p.etp = etp;
                    p.zero = zero;
                    p.method = cp == 1 ? cp_method::ulysses : cp_method::ring;
                    p.virtual_stages = virtual_stages;
                    p.schedule = virtual_stages > 1 ? schedule_kind::interleaved : schedule_kind::one_f_one_b;
                    p.stages = {};
                    if (legal(q)) f(p);
                    // All layers on the last stage: uneven, with empty ones.
                    if (pp == 1 || zero != zero_stage::zero3) continue;
                    for (num s = 1; s < pp * virtual_stages; ++s) p.stages.push_back(0);
                    p.stages.push_back(m.num_hidden_layers);
                    if (legal(q)) f(p);
                  }
          }
}

/// Over how many ranks of a stage the elements of a parameter are divided, before any sharding.
num parts_of(std::string name, const model_spec& m, const plan_spec& p) {
  const auto is = [&](const char* ending) { return name.ends_with(ending); };
  if (is("experts.gate_up_proj") || is("experts.down_proj")) return p.ep * p.etp;
  if (is("k_proj.weight") || is("v_proj.weight") || is("k_proj.bias") || is("v_proj.bias"))
    return std::min(p.tp, m.num_key_value_heads);  // more ranks than heads share heads
  if (is("norm.weight") || is("layernorm.weight") || is("mlp.gate.weight") || is("o_proj.bias")) return 1;
  return p.tp;  // embedding, head, q, o, dense MLP
}

/// How often each element is kept: by every rank that holds the stage, but for those among which it is divided.
num copies_of(const std::string& name, const model_spec& m, const plan_spec& p, state_kind state) {
  const bool expert = name.find("experts") != name.npos;
  const num ranks = p.dp_replicate * p.fsdp * p.cp * p.tp;  // of one stage's rank
  const num sharded_over = expert ? p.fsdp * p.cp * p.tp / (p.ep * p.etp) : p.fsdp * p.cp;
  const bool sharded = state == state_kind::optimizer ||
                       (state == state_kind::gradient && p.zero != zero_stage::zero1) ||
                       (state == state_kind::parameter && p.zero == zero_stage::zero3);
  const bool both_ends = m.tie_word_embeddings && name.find("embed_tokens") != name.npos && p.pp > 1;
  return ranks / parts_of(name, m, p) / (sharded ? sharded_over : 1) * (both_ends ? 2 : 1);
}

/// Adds 1 to every element of the region; row-major over the parameter.
void count(const region& r, const parameter& p, std::vector<int>& counts) {
  if (r.size() == 0) return;
  if (r.dims.size() != p.shape.size()) throw std::logic_error("a region with other dims than its parameter");
  std::vector<num> extent(3, 1), at(3, 0);
  for (std::size_t d = 0; d < p.shape.size(); ++d) extent[d] = p.shape[d];
  const auto index = [&](std::size_t d, num i) { return d < r.dims.size() ? r.dims[d].at(i) : 0; };
  const auto size = [&](std::size_t d) { return d < r.dims.size() ? r.dims[d].size() : 1; };
  for (num i = 0; i < size(0); ++i)
    for (num j = 0; j < size(1); ++j)
      for (num k = 0; k < size(2); ++k)
        ++counts.at(static_cast<std::size_t>((index(0, i) * extent[1] + index(1, j)) * extent[2] + index(2, k)));
}

/// The one value of all counts, or -1.
num same_everywhere(const std::vector<int>& counts) {
  for (int c : counts)
    if (c != counts[0]) return -1;
  return counts.empty() ? 0 : counts[0];
}

TEST_CASE("every element of every state is kept, each as often as degrees say") {
  for (const named_model& named : models()) {
    const model_spec& m = named.spec;
    for (num world = 1; world <= 8; ++world) {
      num plans = 0;
      for_each_owning_plan(m, world, [&](const plan_spec& p) {
        ++plans;
        for_each_parameter(m, [&](const parameter& q) {
          const std::string name(name_of(q).view());
          for (state_kind state : {state_kind::parameter, state_kind::gradient, state_kind::optimizer}) {
            std::vector<int> counts(static_cast<std::size_t>(q.size()));
            for (num rank = 0; rank < world; ++rank) count(owned(m, p, q, state, rank), q, counts);
            const num found = same_everywhere(counts);
            if (found == copies_of(name, m, p, state)) continue;
            INFO(named.name << ": " << print_plan(p).view() << ": " << name << ", state " << static_cast<int>(state));
            CHECK(found == copies_of(name, m, p, state));
          }
        });
      });
      CAPTURE(named.name);
      CAPTURE(world);
      CHECK(plans > 0);
    }
  }
}

TEST_CASE("what a rank computes with covers every element, each equally often, over tp or over ep x etp") {
  for (const named_model& named : models()) {
    const model_spec& m = named.spec;
    for (num world = 1; world <= 8; ++world)
      for_each_owning_plan(m, world, [&](const plan_spec& p) {
        if (p.zero != zero_stage::zero3 || p.virtual_stages > 1) return;
        for_each_parameter(m, [&](const parameter& q) {
          const std::string name(name_of(q).view());
          const bool expert = class_of(q.kind) == parameter_class::expert;
          const num group = expert ? p.ep * p.etp : p.tp;
          // Neighbouring ranks: tp is the fastest axis of one view, ep x etp of the other.
          for (num first = 0; first < world; first += group) {
            std::vector<int> counts(static_cast<std::size_t>(q.size()));
            for (num rank = first; rank < first + group; ++rank) count(part_in_use(m, p, q, rank), q, counts);
            if (same_everywhere(counts) == group / parts_of(name, m, p)) continue;
            INFO(named.name << ": " << print_plan(p).view() << ": " << name);
            CHECK(same_everywhere(counts) == group / parts_of(name, m, p));
          }
        });
      });
  }
}

TEST_CASE("what a rank keeps is within what it computes with") {
  for (const named_model& named : models()) {
    const model_spec& m = named.spec;
    for (num world : {4, 6})
      for_each_owning_plan(m, world, [&](const plan_spec& p) {
        if (p.virtual_stages > 1) return;
        for_each_parameter(m, [&](const parameter& q) {
          for (num rank = 0; rank < world; ++rank) {
            const region part = part_in_use(m, p, q, rank);
            for (state_kind state : {state_kind::parameter, state_kind::gradient, state_kind::optimizer}) {
              const region kept = owned(m, p, q, state, rank);
              for (std::size_t d = 0; d < kept.dims.size(); ++d)
                for (num i = 0; i < kept.dims[d].size(); ++i)
                  if (!part.dims[d].has(kept.dims[d].at(i)))
                    FAIL_CHECK(name_of(q).view() << " " << print_plan(p).view());
            }
          }
        });
      });
  }
}

std::set<num> indices(const dim_part& d) {
  std::set<num> out;
  for (num i = 0; i < d.size(); ++i) out.insert(d.at(i));
  return out;
}

// Parts that are multiplied with each other must fit, whatever the cut: this is what makes the parts a rank's share of
// one computation, and not just any cover.
TEST_CASE("the parts of one rank fit each other") {
  for (const named_model& named : models()) {
    const model_spec& m = named.spec;
    for (num world = 1; world <= 8; ++world)
      for_each_owning_plan(m, world, [&](const plan_spec& p) {
        if (p.zero != zero_stage::zero3 || p.pp > 1) return;
        for (num rank = 0; rank < world; ++rank) {
          INFO(named.name << ": " << print_plan(p).view() << ": rank " << rank);
          const auto part = [&](parameter_kind kind, num layer = parameter::no_layer) {
            return part_in_use(m, p, make_parameter(m, kind, layer), rank);
          };
          const auto dim = [&](parameter_kind kind, std::size_t d, num layer = 0) {
            return indices(part(kind, layer).dims[d]);
          };
          // The heads of a rank: whole ones, and o_proj reads what q_proj writes.
          const std::set<num> q = dim(parameter_kind::q_proj, 0);
          CHECK(dim(parameter_kind::o_proj, 1) == q);
          CHECK(dim(parameter_kind::q_bias, 0) == q);
          CHECK(dim(parameter_kind::o_bias, 0).size() == static_cast<std::size_t>(m.hidden_size));
          // The key/value heads that these query heads read, no more and no less.
          std::set<num> kv;
          for (num row : q) {
            const num kv_head = row / m.head_dim / (m.num_attention_heads / m.num_key_value_heads);
            for (num i = 0; i < m.head_dim; ++i) kv.insert(kv_head * m.head_dim + i);
          }
          for (parameter_kind kind :
               {parameter_kind::k_proj, parameter_kind::v_proj, parameter_kind::k_bias, parameter_kind::v_bias})
            CHECK(dim(kind, 0) == kv);
          const std::set<num> mlp = dim(parameter_kind::mlp_gate, 0);
          if (m.decoder_sparse_step > 1 || m.num_experts == 0) {
            CHECK(dim(parameter_kind::mlp_up, 0) == mlp);
            CHECK(dim(parameter_kind::mlp_down, 1) == mlp);
          }
          CHECK(part(parameter_kind::embed_tokens) == part(parameter_kind::lm_head));
          if (m.num_experts == 0) continue;
          // Gate and up rows of the same width, which down reads, of the same experts.
          CHECK(dim(parameter_kind::experts_gate_up, 0) == dim(parameter_kind::experts_down, 0));
          const std::set<num> width = dim(parameter_kind::experts_down, 2);
          std::set<num> gate_up = width;
          for (num i : width) gate_up.insert(m.moe_intermediate_size + i);
          CHECK(dim(parameter_kind::experts_gate_up, 1) == gate_up);
          CHECK(dim(parameter_kind::router, 0).size() == static_cast<std::size_t>(m.num_experts));
        }
      });
  }
}

TEST_CASE("experts and vocabulary rows are owned in order, the last ranks fewer or none") {
  model_spec m = base();
  m.num_experts = 5;
  m.vocab_size = 13;
  plan_spec p;
  p.tp = 4;
  p.ep = 4;
  p.expert_pad = p.vocab_pad = true;
  const auto first_dim = [&](parameter_kind kind, num rank) {
    const num layer = kind == parameter_kind::lm_head ? parameter::no_layer : 1;
    return indices(part_in_use(m, p, make_parameter(m, kind, layer), rank).dims[0]);
  };
  using set = std::set<num>;
  CHECK(first_dim(parameter_kind::experts_down, 0) == set{0, 1});
  CHECK(first_dim(parameter_kind::experts_down, 1) == set{2, 3});
  CHECK(first_dim(parameter_kind::experts_down, 2) == set{4});
  CHECK(first_dim(parameter_kind::experts_down, 3) == set{});
  CHECK(first_dim(parameter_kind::lm_head, 2) == set{8, 9, 10, 11});
  CHECK(first_dim(parameter_kind::lm_head, 3) == set{12});
  CHECK(expert_slots(p, m) == 2);
}

TEST_CASE("copies of a key/value head are neighbours on tp") {
  model_spec m = base();
  m.num_key_value_heads = 2;
  plan_spec p;
  p.tp = 4;
  p.kv_replicate = true;
  for (num rank = 0; rank < 4; ++rank)
    CHECK(part_in_use(m, p, make_parameter(m, parameter_kind::k_proj, 0), rank).dims[0] ==
          dim_part(rank / 2 * m.head_dim, (rank / 2 + 1) * m.head_dim));
}

TEST_CASE("chunks hold ceil(n / count) each, in order, the last fewer or none") {
  for (num n = 0; n <= 13; ++n)
    for (num parts = 1; parts <= 15; ++parts) {
      num next = 0;
      num most = 0;
      while (most * parts < n) ++most;
      for (num i = 0; i < parts; ++i) {
        const dim_range r = chunk(n, parts, i);
        CHECK(r.begin == next);
        CHECK(r.size() == std::min(most, n - next));
        next += r.size();
      }
      CHECK(next == n);
    }
}

TEST_CASE("shards are disjoint, in order, and cover the part") {
  region part;
  part.dims.push_back({{2, 6}, {10, 17}});
  part.dims.push_back({1, 4});
  for (num parts = 1; parts <= 13; ++parts) {
    std::vector<num> rows;
    for (num i = 0; i < parts; ++i) {
      const region s = shard(part, parts, i);
      CHECK(s.dims[1] == part.dims[1]);
      for (num k = 0; k < s.dims[0].size(); ++k) rows.push_back(s.dims[0].at(k));
    }
    std::vector<num> expected;
    for (num k = 0; k < part.dims[0].size(); ++k) expected.push_back(part.dims[0].at(k));
    CHECK(rows == expected);
  }
}

TEST_CASE("zero stages shard what their names say") {
  using enum state_kind;
  const auto sharded = [](zero_stage z) {
    return std::vector<bool>{is_sharded(z, parameter), is_sharded(z, gradient), is_sharded(z, optimizer)};
  };
  CHECK(sharded(zero_stage::zero1) == std::vector<bool>{false, false, true});
  CHECK(sharded(zero_stage::zero2) == std::vector<bool>{false, true, true});
  CHECK(sharded(zero_stage::zero3) == std::vector<bool>{true, true, true});
}

// ---- regions

TEST_CASE("a part of a dim numbers its indices, knows them, and can be cut again") {
  for (const dim_part& d : {dim_part(), dim_part(3, 3), dim_part(0, 5), dim_part({1, 3}, {7, 11}),
                            dim_part({4, 4}, {6, 8}), dim_part({2, 5}, {})}) {
    std::vector<num> held;
    for (num i = 0; i < 12; ++i)
      if (d.has(i)) held.push_back(i);
    CHECK(d.size() == static_cast<num>(held.size()));
    for (num i = 0; i < d.size(); ++i) CHECK(d.at(i) == held[static_cast<std::size_t>(i)]);
    for (num begin = 0; begin <= d.size(); ++begin)
      for (num end = begin; end <= d.size(); ++end) {
        const dim_part s = d.slice(begin, end);
        CHECK(s.size() == end - begin);
        for (num i = 0; i < s.size(); ++i) CHECK(s.at(i) == d.at(begin + i));
        for (num i = 0; i < 12; ++i)
          CHECK(s.has(i) == (std::find(held.begin() + begin, held.begin() + end, i) != held.begin() + end));
      }
  }
}

TEST_CASE("a region's size is the product of its dims', and nothing has none") {
  CHECK(region{}.size() == 0);
  region r;
  r.dims.push_back({{0, 2}, {5, 6}});
  CHECK(r.size() == 3);
  r.dims.push_back({1, 5});
  CHECK(r.size() == 12);
  r.dims.push_back({2, 2});
  CHECK(r.size() == 0);
  CHECK(dim_range{5, 3}.size() == 0);
}

}  // namespace
