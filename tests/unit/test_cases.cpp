// SPDX-License-Identifier: Apache-2.0
// What `check` says of bugs that were reported publicly for other systems (tests/cases), and of their neighbours: plans
// of the same case on the other side of its rule.
#include <doctest/doctest.h>

#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "../cases/cases.hpp"

using namespace shardplan;
using shardplan::cases::public_case;
using shardplan::cases::verdict;

namespace {

std::vector<violation> violations_of(const question& q) {
  std::vector<violation> all;
  check(q, [&](const violation& v) { all.push_back(v); });
  return all;
}

std::string names_of(const std::vector<violation>& violations) {
  std::string all;
  for (const violation& v : violations) all += std::string(all.empty() ? "" : " ") + std::string(v.rule);
  return all;
}

/// The question of a case with another plan, which keeps its world.
question with_plan(std::string_view id, std::string_view plan) {
  const std::size_t index = cases::index_of(id);
  REQUIRE(index < cases::num_cases);
  question q = cases::all[index].ask();
  const parsed_plan parsed = parse_plan(plan);
  REQUIRE(parsed.ok());
  q.plan = parsed.plan;
  return q;
}

}  // namespace

TEST_CASE("every case has its verdict") {
  int count[4] = {};
  for (const public_case& c : cases::all) {
    INFO(std::string(c.id), " of ", std::string(c.source), ", ", std::string(print_plan(c.plan).view()));
    ++count[static_cast<int>(c.says)];
    const question q = c.ask();
    const std::vector<violation> broken = violations_of(q);
    INFO(names_of(broken));
    CHECK(legal(q) == broken.empty());
    for (const violation& v : broken) CHECK_FALSE(v.fix.view().empty());
    CHECK(broken.empty() == (c.says != verdict::illegal && c.option.empty()));
    if (c.says == verdict::illegal) continue;

    question padded_question = q;
    padded_question.plan = c.padded_plan();
    CHECK(legal(padded_question));
    CHECK(padded(padded_question) == c.padded);
    CHECK(world_size(padded_question.plan) == c.world);
    if (c.says == verdict::pad) CHECK((c.padded != 0) != !c.option.empty());
    if (c.option.empty()) continue;
    REQUIRE(broken.size() == 1);
    CHECK(broken[0].fix.view().find(c.option) != std::string_view::npos);
  }
  MESSAGE(count[0], " refused, ", count[1], " accepted, ", count[2], " padded, ", count[3], " legal traps");
  CHECK(count[0] == 12);
  CHECK(count[1] == 12);
  CHECK(count[2] == 12);
  CHECK(count[3] == 47);
}

TEST_CASE("a case is there once") {
  std::set<std::string_view> ids;
  for (const public_case& c : cases::all) {
    CHECK(ids.insert(c.id).second);
    CHECK(c.source.find('#') != std::string_view::npos);
    CHECK(c.world <= 8);
  }
  CHECK(cases::index_of("PB000") == cases::num_cases);
}

TEST_CASE("a refused case is refused for its own reason") {
  struct row {
    const char *id, *rules;
  };
  const row rows[] = {
      {"PB030", "kv_heads_divide_over_tensor"},
      {"PB033", "kv_heads_divide_over_tensor_and_ulysses"},
      {"PB035", "heads_divide_over_tensor_and_ulysses"},
      {"PB038", "heads_divide_over_tensor_and_ulysses"},
      {"PB039", "heads_divide_over_kv_heads heads_divide_over_tensor_and_ulysses"},
      {"PB041", "heads_divide_over_kv_heads heads_divide_over_tensor_and_ulysses"},
      {"PB046", "expert_width_divides_over_expert_tensor"},
      {"PB047", "expert_degrees_divide_the_ranks_below_replicas"},
      {"PB052", "expert_degrees_divide_the_ranks_below_replicas experts_divide_over_expert_degree"},
      {"PB063", "even_stages_divide_the_layers"},
      {"PB065", "listed_stages_add_up_to_the_layers"},
      {"PB073", "micro_batches_fill_the_rounds"},
      {"PB057", "experts_divide_over_expert_degree"},
      {"PB079", "vocabulary_divides_over_tensor"},
      {"PB080", "vocabulary_divides_over_tensor"},
      {"PB082", "vocabulary_divides_over_tensor"},
      {"PB083", "vocabulary_divides_over_tensor"},
  };
  std::size_t refused = 0;
  for (const public_case& c : cases::all) refused += legal(c.ask()) ? 0 : 1;
  CHECK(refused == std::size(rows));
  for (const row& r : rows) {
    INFO(r.id);
    CHECK(names_of(violations_of(cases::all[cases::index_of(r.id)].ask())) == r.rules);
  }
}

TEST_CASE("the neighbours of a case have the other verdict") {
  struct row {
    const char *id, *plan;
    bool legal;
  };
  const row rows[] = {
      {"PB030", "tp=4,kv_replicate", true},          // two ranks hold each key/value head
      {"PB030", "tp=2,fsdp=2", true},                //
      {"PB032", "tp=4", false},                      // no copies
      {"PB033", "cp=4/ulysses,kv_replicate", true},  //
      {"PB033", "cp=4/ring", true},                  // a ring asks nothing of heads
      {"PB035", "cp=8/ring/zigzag", true},           //
      {"PB035", "cp=8/ulysses4xring2,kv_replicate", true},
      {"PB038", "tp=2,fsdp=2", true},                  // 3 heads each
      {"PB046", "tp=2", true},                         // experts whole
      {"PB047", "pp=2,tp=2,ep=2", true},               //
      {"PB049", "fsdp=2,tp=2,ep=4,etp=2", false},      // what an inherited etp would mean
      {"PB052", "fsdp=4,ep=2", true},                  //
      {"PB055", "tp=1", false},                        // one of two ranks
      {"PB058", "tp=2/sp", true},                      //
      {"PB060", "fsdp=4,ep=3", false},                 //
      {"PB060", "fsdp=2,dp_replicate=2,ep=4", false},  // replicas are outside the mesh of experts
      {"PB063", "pp=2/interleaved2/layers:3+3+2+2", true},
      {"PB065", "pp=1/1f1b/layers:4", true},        //
      {"PB066", "pp=3", false},                     // 10 layers have no even split
      {"PB066", "pp=3/layers:4+3+2", false},        // a layer that nobody holds
      {"PB068", "pp=2", false},                     //
      {"PB072", "pp=4", true},                      // slow, not wrong
      {"PB072", "pp=2/interleaved2,fsdp=2", true},  //
      {"PB073", "pp=4/gpipe", true},                //
      {"PB082", "fsdp=2", true},                    // rows of a sharded parameter need not be equally many
  };
  for (const row& r : rows) {
    INFO(r.id, ": ", r.plan);
    question q = with_plan(r.id, r.plan);
    q.batch.rows = 0;  // what the number of data shards says of rows is another matter
    INFO(names_of(violations_of(q)));
    CHECK(legal(q) == r.legal);
  }
  // A node of three ranks is no obstacle; a world of three is.
  question q = with_plan("PB055", "tp=2");
  q.gpus_per_node = 3;
  CHECK(legal(q));
  q.world = 3;
  CHECK_FALSE(legal(q));
}

TEST_CASE("every layer of an accepted case is in one stage") {
  for (const public_case& c : cases::all) {
    if (!legal(c.ask())) continue;
    INFO(std::string(c.id));
    for (num layer = 0; layer < c.model.num_hidden_layers; ++layer) {
      num owners = 0;
      for (num stage = 0; stage < num_stages(c.plan); ++stage)
        owners += stage_layers(c.model, c.plan, stage).has(layer) ? 1 : 0;
      CHECK(owners == 1);
    }
  }
}

TEST_CASE("every token of an accepted case is dispatched once") {
  int asked = 0;
  for (const public_case& c : cases::all) {
    if (!legal(c.ask()) || c.plan.ep == 1) continue;
    INFO(std::string(c.id));
    const num length = padded_length(c.plan, c.batch);
    const num micro_rows = c.batch.rows / num_data_shards(c.plan) / micro_batches(c.plan, c.batch);
    const num local = local_length(c.plan.layout, length, c.plan.cp) * micro_rows;
    num routed = 0;  // over the ranks of one stage
    for (num tp = 0; tp < c.plan.tp; ++tp) routed += routed_rows(c.plan, local, tp).size();
    routed *= c.plan.cp * num_data_shards(c.plan);
    CHECK(routed == length * micro_rows * num_data_shards(c.plan));
    ++asked;
  }
  CHECK(asked >= 15);
}

TEST_CASE("tokens are where the cases say") {
  const auto of = [](std::string_view id, num rank) {
    const public_case& c = cases::all[cases::index_of(id)];
    std::vector<num> tokens;
    for_each_range(c.plan.layout, c.batch.documents, padded_length(c.plan, c.batch), c.plan.cp, rank,
                   [&](token_range range) {
                     for (num t = range.begin; t < range.end; ++t) tokens.push_back(t);
                   });
    return tokens;
  };
  using tokens = std::vector<num>;
  CHECK(of("PB001", 0) == tokens{0, 1, 6, 7});  // half of a row: its labels too are half
  CHECK(of("PB007", 0) == tokens{0, 1, 14, 15});
  CHECK(of("PB012", 1) == tokens{4, 5, 6, 7});
  CHECK(of("PB015", 2) == tokens{2, 5});  // of a row of 2 tokens: padding alone
  CHECK(of("PB017", 3) == tokens{6, 7, 8, 9});
  CHECK(of("PB021", 0) == tokens{0, 1, 6, 7, 8, 9, 14, 15});
  CHECK(of("PB026", 0) == tokens{0, 3, 4, 7});
}
