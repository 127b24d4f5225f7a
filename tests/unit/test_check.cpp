// SPDX-License-Identifier: Apache-2.0
// Asking the rules: all violations at once, presumptions, kinds, users' rules, padding, and the nearest legal plan.
#include <doctest/doctest.h>

#include <ostream>
#include <shardplan/check.hpp>
#include <shardplan/models.hpp>
#include <shardplan/nearest.hpp>
#include <shardplan/plan_text.hpp>
#include <string>
#include <tuple>
#include <vector>

namespace {

using namespace shardplan;
using namespace shardplan::literals;

constexpr question about(const plan_spec& plan, const model_spec& model = models::qwen3_30b_a3b) {
  question q;
  q.model = model;
  q.plan = plan;
  return q;
}

template <class Rules = builtin_rules>
std::vector<std::string> broken_names(const question& q) {
  std::vector<std::string> names;
  check(
      q, [&](const violation& v) { names.emplace_back(v.rule); }, Rules{});
  return names;
}
constexpr num count_violations(const question& q) {
  num n = 0;
  check(q, [&](const violation&) { ++n; });
  return n;
}

using names = std::vector<std::string>;

// A rule of the user's, in a namespace of the user's.
namespace house {
SHARDPLAN_OPERAND(tensor_width, q.plan.tp);
struct tensor_groups_are_pairs {
  SHARDPLAN_SENTENCE("tp must be 2 in this house");
  static constexpr rule_kind kind = rule_kind::engine;
  using operands = list<tensor_width_operand>;
  static constexpr bool holds(num tp) { return tp == 2; }
};
template <num Most>
struct worlds_are_small {
  SHARDPLAN_SENTENCE("the world must be small");
  static constexpr rule_kind kind = rule_kind::math;
  using operands = list<fact::plan_world_operand>;
  static constexpr bool holds(num world) { return world <= Most; }
};
}  // namespace house
using house_rules = join<builtin_rules, list<house::tensor_groups_are_pairs, house::worlds_are_small<8>>>;

constexpr auto five_wrong = "pp=5,dp_replicate=3,tp=3,ep=3"_plan;
static_assert(count_violations(about(five_wrong)) == 5);
static_assert(!legal(about(five_wrong)) && legal(about("pp=2,fsdp=2,tp=4/sp,ep=8"_plan)));
// Small searches are constant expressions too.
static_assert(nearest_legal_plan(about("tp=3,fsdp=2"_plan)).found);

std::string nearest(std::string_view plan, num world = 0, const model_spec& model = models::qwen3_30b_a3b,
                    batch_spec batch = {}) {
  question q = about(parse_plan(plan).plan, model);
  q.world = world;
  q.batch = batch;
  const nearest_plan n = nearest_legal_plan(q);
  if (!n.found) return n.exhausted ? "none" : "gave up";
  q.plan = n.plan;
  CHECK(legal(q));
  CHECK((world == 0 || world_size(n.plan) == world));
  return std::string(print_plan(n.plan).view());
}

}  // namespace

TEST_CASE("every broken rule is reported, with its operands") {
  CHECK(broken_names(about(five_wrong)) == names{"heads_divide_over_tensor_and_ulysses", "kv_heads_divide_over_tensor",
                                                 "vocabulary_divides_over_tensor", "even_stages_divide_the_layers",
                                                 "experts_divide_over_expert_degree"});
  std::vector<violation> all;
  check(about(five_wrong), [&](const violation& v) { all.push_back(v); });
  REQUIRE(all.size() == 5);
  CHECK(all[0].operands[0] == operand_value{"num_heads", 32});
  CHECK(all[0].operands[1] == operand_value{"tensor_degree", 3});
  CHECK(std::string(all[0].sentence) == "num_heads must be divisible by tp * the Ulysses degree");
  CHECK(std::string(all[3].fix.view()) == "write pp=5/layers:10+10+10+9+9");
}

TEST_CASE("a rule is not asked until what it presumes holds") {
  question q = about(plan_spec{});
  q.plan.tp = 0;  // would divide by zero
  CHECK(broken_names(q) == names{"every_degree_is_in_range"});
  q.plan.tp = -4;
  q.plan.pp = 5;
  CHECK(broken_names(q) == names{"every_degree_is_in_range"});
  q.plan = "pp=2"_plan;
  q.plan.fsdp = max_degree;  // the product does not fit, and world is not compared with what wrapped
  q.world = 8;
  CHECK(broken_names(q) == names{"product_of_degrees_is_in_range"});
  // One violation for U * R, none for heads cut by a U that means nothing; other axes are asked as ever.
  CHECK(broken_names(about("cp=4/ulysses3xring3,pp=5"_plan)) ==
        names{"ulysses_times_ring_is_the_context_degree", "even_stages_divide_the_layers"});
  // No echo of the first half of the key/value rule in the second.
  CHECK(broken_names(about("tp=8"_plan)) == names{"kv_heads_divide_over_tensor"});
  q = about(plan_spec{});
  q.model.num_key_value_heads = 0;
  CHECK(broken_names(q) == names{"every_model_size_is_in_range"});
  q.batch.rows = -1;
  CHECK(broken_names(q) == names{"every_model_size_is_in_range", "batch_sizes_are_in_range"});
}

TEST_CASE("rules about the batch are asked when the batch says so") {
  question q = about("fsdp=4"_plan);
  CHECK(legal(q));
  q.batch.length = 100000;
  CHECK(legal(q));  // advice
  num advice = 0;
  advise(q, [&](const violation& v) {
    ++advice;
    CHECK(v.kind == rule_kind::advice);
    CHECK(std::string(v.rule) == "length_fits_the_positions");
  });
  CHECK(advice == 1);
  q.model.scaled_rotary = true;
  advise(q, [&](const violation&) { ++advice; });
  CHECK(advice == 1);
  q.batch.rows = 6;
  CHECK_FALSE(legal(q));
  q.batch.rows = 4;
  CHECK(legal(q));
}

TEST_CASE("an engine's limit refuses once an engine is named; users' rules stand beside the library's") {
  question q = about("tp=4"_plan);
  CHECK(legal(q, house_rules{}));
  q.engine = engine_kind::threads;
  CHECK(legal(q));
  CHECK_FALSE(legal(q, house_rules{}));
  CHECK(broken_names<house_rules>(q) == names{"tensor_groups_are_pairs"});
  q.plan = "tp=2,fsdp=8"_plan;
  CHECK(broken_names<house_rules>(q) == names{"worlds_are_small<8>"});
}

TEST_CASE("padding is reported when it happens") {
  question q = about("cp=4/ring/zigzag,tp=2/sp"_plan);
  CHECK(padded(q) == 0);  // no length is said
  q.batch.length = 16;
  CHECK(padded(q) == 0);
  q.batch.length = 17;
  CHECK(padded(q) == 24);  // 4 * lcm(2, 2)
  q.plan = "cp=4/ring/zigzag,tp=3/sp"_plan;
  CHECK(padded(q) == 24);  // 4 * lcm(2, 3)
  q.plan = "cp=4/ring,tp=3/sp"_plan;
  CHECK(padded(q) == 24);
  q.plan = "cp=4/ring"_plan;
  CHECK(padded(q) == 20);
  q.plan = "cp=2/ring/zigzag_documents"_plan;
  q.batch.length = 0;
  q.batch.documents = {{5, 7}, 2};
  CHECK(padded(q) == 16);  // 8 + 8
  q.batch.documents = {{4, 8}, 2};
  CHECK(padded(q) == 0);
}

TEST_CASE("even stages that need not divide") {
  CHECK(nearest_even_stages(5, 2) == stage_layer_counts{{3, 2}, 2});
  CHECK(nearest_even_stages(2, 3) == stage_layer_counts{{1, 1, 0}, 3});
  CHECK(nearest_even_stages(94, 4) == stage_layer_counts{{24, 24, 23, 23}, 4});
  CHECK(nearest_even_stages(5, 129).empty());
}

TEST_CASE("the nearest legal plan") {
  CHECK(nearest("tp=4") == "tp=4");                  // legal itself
  CHECK(nearest("tp=8") == "tp=8,kv_replicate");     // a flag before a degree
  CHECK(nearest("tp=3", 8) == "tp=8,kv_replicate");  // one degree and a flag before two degrees
  CHECK(nearest("tp=3,fsdp=2", 8) == "fsdp=2/zero3,tp=4");
  CHECK(nearest("pp=5") == "pp=5/1f1b/layers:10+10+10+9+9");
  CHECK(nearest("pp=2/layers:20+20") == "pp=2/1f1b");  // stages that do not add up are dropped
  CHECK(nearest("pp=2/gpipe/layers:20+28,tp=3", 8) == "pp=2/gpipe/layers:20+28,tp=4");  // those that do are kept
  CHECK(nearest("cp=8/ulysses2xring2") == "cp=8/ulysses4xring2/contiguous");  // U as large as 4 key/value heads allow
  CHECK(nearest("dp_replicate=4,ep=4") == "dp_replicate=4");                  // one change; fsdp=4/zero1 would be two
  CHECK(nearest("tp=4,ep=3/all_reduce") == "tp=4,ep=1/all_reduce");
  CHECK(nearest("tp=8,ep=3") == "tp=8,kv_replicate");  // any ep of 8 needs the flag too: the first
  CHECK(nearest("tp=1,fsdp=2", 7) == "fsdp=7/zero3");
  CHECK(nearest("fsdp=8", 0, models::qwen3_30b_a3b, {0, 4, 1, {}}) == "fsdp=2/zero3,tp=4");
  model_spec odd = models::qwen3_30b_a3b;
  odd.head_dim = 7;
  CHECK(nearest("tp=2", 0, odd) == "none");  // no plan helps
  CHECK(nearest("tp=1", max_degree + 1) == "none");
  plan_spec zero;
  zero.tp = 0;
  CHECK_FALSE(nearest_legal_plan(about(zero)).found);
  zero.tp = -2;
  CHECK_FALSE(nearest_legal_plan(about(zero)).found);
  zero.pp = -2;  // -2 * -2 ranks are not 4
  CHECK_FALSE(nearest_legal_plan(about(zero)).found);
}

TEST_CASE("the nearest legal plan against all plans, by brute force") {
  model_spec m = models::qwen3_30b_a3b;
  m.num_hidden_layers = 120;  // every pp below is an even split, so that options need not be added
  const auto changed = [](const plan_spec& a, const plan_spec& b) {
    num n = 0;
    for (const plan_axis& axis : plan_axes) n += a.*axis.degree != b.*axis.degree;
    return n;
  };
  const auto degrees = [](const plan_spec& p) {
    return std::tuple(p.pp, p.dp_replicate, p.fsdp, p.cp, p.tp, p.ep, p.etp);
  };
  std::size_t found = 0;
  for (num world : {4, 6, 8})
    for (std::string_view text : {"tp=3", "pp=2,fsdp=3,tp=2,ep=5", "cp=7,etp=2", "dp_replicate=2,ep=4/all_reduce",
                                  "tp=8,cp=2", "pp=3/interleaved2,ep=2,etp=7", "fsdp=2,cp=2/ring,tp=2,ep=16"}) {
      question q = about(parse_plan(text).plan, m);
      q.plan.kv_replicate = q.plan.vocab_pad = q.plan.expert_pad = true;
      q.world = world;
      const plan_spec wanted = q.plan;
      question trial = q;
      num fewest = 8;
      plan_spec best;
      plan_spec& p = trial.plan;
      for (p.pp = 1; p.pp <= world; ++p.pp)
        for (p.dp_replicate = 1; p.dp_replicate <= world; ++p.dp_replicate)
          for (p.fsdp = 1; p.fsdp <= world; ++p.fsdp)
            for (p.cp = 1; p.cp <= world; ++p.cp)
              for (p.tp = 1; p.tp <= world; ++p.tp) {
                if (world_size(p) != world) continue;
                for (p.ep = 1; p.ep <= world; ++p.ep)
                  for (p.etp = 1; p.etp <= world; ++p.etp) {
                    const num n = changed(p, wanted);
                    if (n < fewest && legal(trial)) {  // loops ascend: the first of its number is the smallest tuple
                      fewest = n;
                      best = p;
                    }
                  }
              }
      CAPTURE(std::string(text));
      CAPTURE(world);
      const nearest_plan n = nearest_legal_plan(q);
      REQUIRE(n.found == (fewest < 8));
      if (!n.found) continue;
      ++found;
      CHECK(n.changed_degrees == fewest);
      CHECK(n.added_options == 0);
      CHECK(degrees(n.plan) == degrees(best));
      CHECK(n.plan == best);
    }
  CHECK(found == 21);
}

TEST_CASE("the search is bounded") {
  question q = about("tp=7,ep=3"_plan);
  q.plan.virtual_stages = 2;  // which no degree heals
  q.world = 1024;
  const nearest_plan all = nearest_legal_plan(q);
  CHECK_FALSE(all.found);
  CHECK(all.exhausted);
  const nearest_plan some = nearest_legal_plan(q, builtin_rules{}, 1000);
  CHECK_FALSE(some.found);
  CHECK_FALSE(some.exhausted);
}
