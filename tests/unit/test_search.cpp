// SPDX-License-Identifier: Apache-2.0
// The enumeration of every legal plan, against a second one written apart: plain loops, and arithmetic from the shapes
// of the model instead of the rules.
#include <doctest/doctest.h>

#include <cstdlib>  // abs
#include <map>
#include <ostream>
#include <range/v3/view/take.hpp>
#include <set>
#include <shardplan/models.hpp>
#include <shardplan/plan_text.hpp>
#include <shardplan/search.hpp>
#include <string>
#include <vector>

namespace {

using namespace shardplan;

/// The checkpoint of the examples: tests/data/tiny.
model_spec tiny() {
  model_spec m;
  m.num_hidden_layers = 8;
  m.hidden_size = 32;
  m.num_attention_heads = 8;
  m.num_key_value_heads = 4;
  m.head_dim = 8;
  m.intermediate_size = 32;
  m.moe_intermediate_size = 16;
  m.num_experts = 8;
  m.num_experts_per_tok = 2;
  m.vocab_size = 96;
  m.max_position_embeddings = 256;
  return m;
}
/// Nothing divides anything: every flag and listed stages are needed somewhere.
model_spec odd() {
  model_spec m = tiny();
  m.num_hidden_layers = 5;
  m.num_attention_heads = 12;
  m.num_key_value_heads = 3;
  m.intermediate_size = 12;
  m.moe_intermediate_size = 6;
  m.num_experts = 6;
  m.vocab_size = 97;
  m.decoder_sparse_step = 2;  // layers 0, 2 and 4 are dense
  return m;
}
model_spec dense() {
  model_spec m = tiny();
  m.num_experts = m.num_experts_per_tok = 0;
  m.num_key_value_heads = 8;
  return m;
}

std::string text_of(const plan_choice& c) {
  return std::string(print_plan(c.plan).view()) + " with " + std::to_string(c.micro_batches);
}
/// The degrees alone, as text.
std::string degrees_of(const plan_spec& p) {
  std::string out;
  for (const plan_axis& a : plan_axes) out += std::to_string(p.*a.degree) + " ";
  return out;
}

// ---- the second enumeration

/// n things dealt out to parts: how many each gets, or 0 when they cannot get equally many.
num dealt(num n, num parts) {
  num each = 0;
  while (each * parts < n) ++each;
  return each * parts == n ? each : 0;
}

/// Whether `ranks` ranks that each compute equally many of the query heads find their key/value heads in an equal cut:
/// every rank reads equally many, and every one of these serves equally many of the rank's queries. `copied`: some head
/// is read by two ranks.
bool key_values_fit(const model_spec& m, num ranks, bool& copied) {
  const num heads = dealt(m.num_attention_heads, ranks), served = m.num_attention_heads / m.num_key_value_heads;
  if (heads == 0) return false;
  std::set<num> sizes, uses;
  std::map<num, int> readers;
  for (num r = 0; r < ranks; ++r) {
    std::map<num, num> read;
    for (num head = r * heads; head < (r + 1) * heads; ++head) ++read[head / served];
    sizes.insert(static_cast<num>(read.size()));
    for (const auto& [kv_head, queries] : read) {
      uses.insert(queries);
      copied = ++readers[kv_head] > 1 || copied;
    }
  }
  return sizes.size() == 1 && uses.size() == 1;
}

/// Layers of stages as even as can be, the first ones larger; empty when all are equal.
stage_layer_counts split_layers(num layers, num stages) {
  stage_layer_counts out;
  for (num s = 0; s < stages; ++s) out.push_back(0);
  for (num layer = 0; layer < layers; ++layer) ++out[static_cast<std::size_t>(layer % stages)];
  return dealt(layers, stages) != 0 ? stage_layer_counts{} : out;
}

/// Plans by degrees, zero stage and schedule aside.
std::map<std::string, std::vector<plan_spec>> plain_loops(const model_spec& m, num world) {
  std::map<std::string, std::vector<plan_spec>> out;
  num moe_layers = 0;
  for (num layer = 1; layer <= m.num_hidden_layers; ++layer)
    moe_layers += m.num_experts > 0 && layer % m.decoder_sparse_step == 0;
  plan_spec p;
  for (p.pp = 1; p.pp <= world; ++p.pp)
    for (p.dp_replicate = 1; p.pp * p.dp_replicate <= world; ++p.dp_replicate)
      for (p.fsdp = 1; p.pp * p.dp_replicate * p.fsdp <= world; ++p.fsdp)
        for (p.cp = 1; p.pp * p.dp_replicate * p.fsdp * p.cp <= world; ++p.cp)
          for (p.tp = 1; p.pp * p.dp_replicate * p.fsdp * p.cp * p.tp <= world; ++p.tp) {
            if (p.pp * p.dp_replicate * p.fsdp * p.cp * p.tp != world || p.pp > m.num_hidden_layers) continue;
            const num ranks = p.fsdp * p.cp * p.tp;  // that share out experts
            for (p.ep = 1; p.ep <= ranks; ++p.ep)
              for (p.etp = 1; p.etp <= ranks; ++p.etp) {
                if (dealt(ranks, p.ep * p.etp) == 0) continue;
                if (moe_layers > 0 && dealt(m.moe_intermediate_size, p.etp) == 0) continue;
                if (moe_layers < m.num_hidden_layers && dealt(m.intermediate_size, p.tp) == 0) continue;
                for (num u = 1; u <= p.cp; ++u) {
                  if (dealt(p.cp, u) == 0) continue;
                  bool copied = false;
                  if (!key_values_fit(m, p.tp, copied) || !key_values_fit(m, p.tp * u, copied)) continue;
                  for (int way = 0; way < 4; ++way) {
                    if (way < 2 ? u != 1 : way == 2 ? u != p.cp || u == 1 : u == 1 || u == p.cp) continue;
                    if (p.cp == 1 && way != 0) continue;
                    for (int layout = 0; layout < (p.cp > 1 ? 2 : 1); ++layout)
                      for (int sp = 0; sp < (p.tp > 1 ? 2 : 1); ++sp)
                        for (int kind = 0; kind < (moe_layers > 0 && p.ep * p.etp > 1 ? 3 : 1); ++kind) {
                          // The ranks of one tp group hold the same rows: they must be whole expert groups.
                          if (kind == 1 && dealt(p.tp, p.ep * p.etp) == 0) continue;
                          plan_spec q = p;
                          if (p.cp > 1)
                            q.method = way == 0   ? cp_method::ring
                                       : way == 1 ? cp_method::all_gather
                                       : way == 2 ? cp_method::ulysses
                                                  : cp_method::ulysses_ring;
                          if (way == 3) q.method_ulysses = u, q.method_ring = p.cp / u;
                          q.layout = layout == 0 ? layout_kind::contiguous : layout_kind::zigzag;
                          q.sequence_parallel = sp == 1;
                          q.dispatch = static_cast<dispatch_kind>(kind);
                          q.kv_replicate = copied;
                          q.vocab_pad = dealt(m.vocab_size, p.tp) == 0;
                          q.expert_pad = moe_layers > 0 && dealt(m.num_experts, p.ep) == 0;
                          q.stages = split_layers(m.num_hidden_layers, p.pp);
                          out[degrees_of(p)].push_back(q);
                        }
                  }
                }
              }
          }
  return out;
}

struct counts {
  long tuples = 0, plans = 0, choices = 0;
  friend bool operator==(const counts&, const counts&) = default;
};
std::ostream& operator<<(std::ostream& out, const counts& c) {
  return out << c.tuples << " tuples, " << c.plans << " plans, " << c.choices << " with zero stage and schedule";
}

counts count_by_loops(const model_spec& m, num world) {
  counts out;
  const bool experts = m.num_experts > 0;
  for (const auto& [degrees, plans] : plain_loops(m, world)) {
    const plan_spec& p = plans.front();
    const long cuts = static_cast<long>(plans.size());
    // Dense parameters are sharded over fsdp * cp ranks, experts over all that do not hold others.
    const long zeros = p.fsdp * p.cp > 1 || (experts && p.fsdp * p.cp * p.tp > p.ep * p.etp) ? 3 : 1;
    const long pipelines = p.pp == 1 ? 1 : 5;  // 1f1b and gpipe with 1 or pp micro-batches, interleaved with pp
    ++out.tuples;
    out.plans += cuts;
    out.choices += world <= 4 ? cuts * zeros * pipelines : std::max({cuts, zeros, pipelines});
  }
  return out;
}

search_options without_state() {
  search_options o;
  o.with_state = false;
  return o;
}

counts count_by_search(const model_spec& m, num world) {
  counts out;
  for ([[maybe_unused]] const plan_spec& p : every_degree_tuple(m, world)) ++out.tuples;
  for ([[maybe_unused]] const plan_choice& c : every_legal_plan(m, world, without_state())) ++out.plans;
  for ([[maybe_unused]] const plan_choice& c : every_legal_plan(m, world)) ++out.choices;
  return out;
}

TEST_CASE("two enumerations count the same plans") {
  for (const model_spec& m : {tiny(), odd(), dense()})
    for (num world : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16}) {
      CAPTURE(world);
      CHECK(count_by_search(m, world) == count_by_loops(m, world));
    }
}

TEST_CASE("two enumerations find the same plans") {
  for (const model_spec& m : {tiny(), odd(), dense()})
    for (num world = 1; world <= 8; ++world) {
      CAPTURE(world);
      std::set<std::string> searched, looped;
      for (const plan_choice& c : every_legal_plan(m, world, without_state()))
        CHECK(searched.insert(text_of(c)).second);  // none twice
      for (const auto& [degrees, plans] : plain_loops(m, world))
        for (const plan_spec& p : plans) looped.insert(text_of({p, p.pp}));
      CHECK(searched == looped);
    }
}

// The counts of tests/data/tiny. Those for 16 ranks are 544 and 7802 without ep 16, where 8 experts leave half of the
// ranks nothing but padding slots; expert_pad makes that legal too.
TEST_CASE("the plans of the example checkpoint") {
  const std::map<num, counts> expected = {
      {1, {1, 1, 1}}, {2, {11, 51, 129}}, {4, {57, 480, 1850}}, {8, {203, 2406, 2500}}, {16, {558, 8036, 8241}}};
  for (const auto& entry : expected) {
    const num world = entry.first;
    const counts& wanted = entry.second;
    const counts found = count_by_search(tiny(), world);
    CAPTURE(world);
    CHECK(found == wanted);
    MESSAGE(world << " ranks: " << found);
  }
  counts crowded;
  for (const plan_spec& p : every_degree_tuple(tiny(), 16)) crowded.tuples += p.ep > 8;
  for (const plan_choice& c : every_legal_plan(tiny(), 16, without_state())) crowded.plans += c.plan.ep > 8;
  CHECK(crowded == counts{558 - 544, 8036 - 7802, 0});
}

TEST_CASE("every plan is legal, none comes twice, and no option is there without need") {
  for (const model_spec& m : {tiny(), odd(), dense()})
    for (num world : {1, 2, 3, 4, 6, 8}) {
      std::set<std::string> seen;
      for (const plan_choice& c : every_legal_plan(m, world)) {
        question q;
        q.model = m;
        q.plan = c.plan;
        q.world = world;
        q.batch.micro_batches = c.micro_batches;
        INFO(text_of(c));
        CHECK(legal(q));
        CHECK(seen.insert(text_of(c)).second);
        const auto needed = [&](auto take_away) {
          question without = q;
          take_away(without.plan);
          CHECK((without.plan == q.plan || !legal(without)));
        };
        needed([](plan_spec& p) { p.kv_replicate = false; });
        needed([](plan_spec& p) { p.vocab_pad = false; });
        needed([](plan_spec& p) { p.expert_pad = false; });
        needed([](plan_spec& p) { p.stages = {}; });
        if (!c.plan.stages.empty()) {
          num most = 0, fewest = m.num_hidden_layers;
          for (num layers : c.plan.stages) most = std::max(most, layers), fewest = std::min(fewest, layers);
          CHECK(most - fewest == 1);
        }
        // Options that change nothing are the defaults.
        const plan_spec& p = c.plan;
        if (p.cp == 1) CHECK((p.method == cp_method::ulysses && p.layout == layout_kind::contiguous));
        if (p.tp == 1) CHECK(!p.sequence_parallel);
        if (p.pp == 1) CHECK((p.schedule == schedule_kind::one_f_one_b && c.micro_batches == 1));
        if (p.ep * p.etp == 1 || m.num_experts == 0) CHECK(p.dispatch == dispatch_kind::dispatch);
      }
    }
}

TEST_CASE("every tuple of degrees meets every zero stage, schedule and number of micro-batches") {
  for (const model_spec& m : {tiny(), odd(), dense()})
    for (num world : {2, 4, 6, 8, 16}) {
      std::map<std::string, std::set<zero_stage>> zeros;
      std::map<std::string, std::set<std::pair<schedule_kind, num>>> pipelines;
      std::map<std::string, bool> sharded, staged;
      for (const plan_choice& c : every_legal_plan(m, world)) {
        const plan_spec& p = c.plan;
        const std::string degrees = degrees_of(p);
        zeros[degrees].insert(p.zero);
        pipelines[degrees].insert({p.schedule, c.micro_batches});
        sharded[degrees] = p.fsdp * p.cp > 1 || (m.num_experts > 0 && p.tp > p.ep * p.etp);
        staged[degrees] = p.pp > 1;
        CHECK(p.virtual_stages == (p.schedule == schedule_kind::interleaved ? 2 : 1));
      }
      for (const auto& entry : zeros) {
        const std::string& degrees = entry.first;
        CAPTURE(degrees);
        if (sharded[degrees]) CHECK(entry.second.size() == 3);
        CHECK(pipelines[degrees].size() == (staged[degrees] ? 5 : 1));
      }
    }
}

TEST_CASE("in larger worlds zero stages do not follow another choice") {
  std::map<dispatch_kind, std::map<zero_stage, int>> met;
  for (const plan_choice& c : every_legal_plan(tiny(), 16))
    if (c.plan.fsdp * c.plan.cp > 1 && c.plan.ep > 1) ++met[c.plan.dispatch][c.plan.zero];
  CHECK(met.size() == 3);
  for (auto& [kind, times] : met)
    for (zero_stage z : {zero_stage::zero1, zero_stage::zero2})
      CHECK(std::abs(times[z] - times[zero_stage::zero3]) * 4 < times[zero_stage::zero3]);
}

TEST_CASE("the enumeration is lazy") {
  // Millions of plans; only the first are made.
  int taken = 0;
  for (const plan_choice& c : every_legal_plan(models::qwen3_235b_a22b, 4096) | ranges::views::take(100)) {
    CHECK(world_size(c.plan) == 4096);
    ++taken;
  }
  CHECK(taken == 100);
}

TEST_CASE("a sample is the same for the same seed, in order, and even") {
  const auto sampled = [](std::size_t count, std::uint64_t seed) { return sample_legal_plans(tiny(), 4, count, seed); };
  CHECK(sampled(20, 7) == sampled(20, 7));
  CHECK(sampled(20, 7) != sampled(20, 8));
  std::vector<plan_choice> all;
  std::map<std::string, std::size_t> number;
  for (const plan_choice& c : every_legal_plan(tiny(), 4)) {
    number[text_of(c)] = all.size();
    all.push_back(c);
  }
  CHECK(sampled(all.size(), 1) == all);
  CHECK(sampled(all.size() + 5, 1) == all);
  CHECK(sampled(0, 1).empty());
  std::vector<int> tenths(10);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::size_t last = 0;
    const std::vector<plan_choice> sample = sampled(50, seed);
    CHECK(sample.size() == 50);
    for (std::size_t i = 0; i < sample.size(); ++i) {
      const std::size_t at = number.at(text_of(sample[i]));
      CHECK((i == 0 || at > last));
      last = at;
      ++tenths[at * 10 / all.size()];
    }
  }
  // 2000 draws: 200 each, standard deviation below 14.
  for (int drawn : tenths) CHECK(std::abs(drawn - 200) < 60);
}

}  // namespace
