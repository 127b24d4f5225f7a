// SPDX-License-Identifier: Apache-2.0
// The text of plans: every option, every problem with its position, the canonical print, and the way there and back.
#include <doctest/doctest.h>

#include <ostream>
#include <set>
#include <shardplan/plan_text.hpp>
#include <string>
#include <vector>

namespace {

using namespace shardplan;
using namespace shardplan::literals;

std::string printed(const plan_spec& p) { return std::string(print_plan(p).view()); }
std::string printed(std::string_view text, num world = 0) {
  const parsed_plan r = parse_plan(text, world);
  return r.ok() ? printed(r.plan) : std::string(r.message.view());
}

// The literal is the same function, at compile time.
constexpr plan_spec everything =
    "kv_replicate,etp=2,ep=4/all_gather,tp=8/sp,cp=4/zigzag/ulysses2xring2,fsdp=3/zero1,dp_replicate=5,"
    "pp=2/interleaved2/layers:1+2+3+2,vocab_pad,expert_pad"_plan;
static_assert(everything.pp == 2 && everything.dp_replicate == 5 && everything.fsdp == 3 && everything.cp == 4);
static_assert(everything.tp == 8 && everything.ep == 4 && everything.etp == 2);
static_assert(everything.schedule == schedule_kind::interleaved && everything.virtual_stages == 2);
static_assert(everything.stages == stage_layer_counts{{1, 2, 3, 2}, 4});
static_assert(everything.zero == zero_stage::zero1 && everything.method == cp_method::ulysses_ring);
static_assert(everything.method_ulysses == 2 && everything.method_ring == 2);
static_assert(everything.layout == layout_kind::zigzag && everything.sequence_parallel);
static_assert(everything.dispatch == dispatch_kind::all_gather);
static_assert(everything.kv_replicate && everything.vocab_pad && everything.expert_pad);
static_assert(""_plan == plan_spec{});
static_assert(parse_plan(print_plan(everything).view()).plan == everything);

}  // namespace

TEST_CASE("the canonical text") {
  CHECK(printed("") == "tp=1");
  CHECK(printed("tp=1,pp=1/1f1b,fsdp=1/zero3,cp=1/ulysses/contiguous,ep=1/dispatch,etp=1") == "tp=1");
  CHECK(printed("etp=1,tp=2,pp=2") == "pp=2/1f1b,tp=2");
  CHECK(printed("fsdp=2") == "fsdp=2/zero3");
  CHECK(printed("fsdp=1/zero1") == "fsdp=1/zero1");
  CHECK(printed("cp=2/ring/zigzag") == "cp=2/ring/zigzag");
  CHECK(printed("cp=2/zigzag_documents") == "cp=2/ulysses/zigzag_documents");
  CHECK(printed("cp=1/all_gather") == "cp=1/all_gather/contiguous");
  CHECK(printed("tp=1/sp") == "tp=1/sp");
  CHECK(printed("ep=4") == "ep=4/dispatch");
  CHECK(printed("ep=1/all_gather,etp=2") == "ep=1/all_gather,etp=2");
  CHECK(printed("etp=2") == "ep=1/dispatch,etp=2");
  CHECK(printed("pp=1/gpipe") == "pp=1/gpipe");
  CHECK(printed("pp=2/layers:3+5") == "pp=2/1f1b/layers:3+5");
  CHECK(printed("pp=3/layers:0+8+0/gpipe") == "pp=3/gpipe/layers:0+8+0");
  CHECK(printed("pp=2/interleaved13") == "pp=2/interleaved13");
  CHECK(printed("expert_pad,vocab_pad,kv_replicate") == "kv_replicate,vocab_pad,expert_pad");
  CHECK(printed("tp=2147483647") == "tp=2147483647");
  CHECK(printed("tp=0002") == "tp=2");
}

TEST_CASE("module overrides are read, merged and printed") {
  const auto canonical = [](std::string_view text) {
    const parsed_plan parsed = parse_plan(text);
    REQUIRE_MESSAGE(parsed.ok(), std::string(parsed.message.view()));
    const plan_text printed = print_plan(parsed.plan);
    CHECK(parse_plan(printed.view()).plan == parsed.plan);
    return std::string(printed.view());
  };
  CHECK(canonical("lm_head=replicated,tp=2") == "tp=2,lm_head=replicated");
  CHECK(canonical("layers.3.self_attn=replicated,layers.*.self_attn=ring") ==
        "model.layers.3.self_attn=replicated,model.layers.*.self_attn=ring");
  CHECK(canonical("*.layers.*.mlp.experts=replicated") == "model.layers.*.mlp.experts=replicated");
  CHECK(canonical("*=replicated") == "model.layers.*=replicated,model.embed_tokens=replicated,lm_head=replicated");
  CHECK(canonical("layers.2.mlp.*=replicated,layers.2.mlp.down_proj=rowwise") ==
        "model.layers.2.mlp=replicated,model.layers.2.mlp.down_proj=rowwise");
  CHECK(canonical("tp=2,model.norm=replicated") == "tp=2");
}

TEST_CASE("everything that is wrong about modules is told at once") {
  const parsed_plan parsed = parse_plan("tp=2,layers.*.atn=replicated,lm_hed=replicated,lm_head=cols,lm_head=rowwise");
  CHECK(parsed.problem == plan_problem::unknown_module);
  CHECK(parsed.position == 5);
  const std::string message(parsed.message.view());
  CAPTURE(message);
  for (const char* part :
       {"'layers.*.atn' names no module", "'lm_hed' is neither an axis nor a flag nor a module",
        "'cols' is not a style of modules: replicated, colwise", "'rowwise' is no style for all modules of 'lm_head'"})
    CHECK(message.find(part) != std::string::npos);
  std::string many = "tp=2";
  for (int i = 0; i < 25; ++i) many += ",layers." + std::to_string(i) + ".mlp=replicated";
  CHECK(parse_plan(many).problem == plan_problem::too_many_overrides);
  CHECK(parse_plan(many.substr(0, many.rfind(','))).ok());
}

TEST_CASE("one degree follows from the world") {
  CHECK(printed("fsdp=*,tp=4", 8) == "fsdp=2/zero3,tp=4");
  CHECK(printed("fsdp=*/zero1,tp=4/sp,ep=2", 8) == "fsdp=2/zero1,tp=4/sp,ep=2/dispatch");
  CHECK(printed("cp=*/ulysses2xring2", 4) == "cp=4/ulysses2xring2/contiguous");
  CHECK(printed("pp=*", 1) == "tp=1");
  CHECK(printed("dp_replicate=*", max_degree) == "dp_replicate=2147483647");
  // A world that no `*` asks for is the rules' matter.
  CHECK(printed("tp=2", 7) == "tp=2");
}

TEST_CASE("every problem has its position, and a message that names axis and value") {
  const std::string known =
      "(pp, dp_replicate, fsdp, cp, tp, ep, etp) nor a flag (kv_replicate, vocab_pad, expert_pad)";
  const std::string many = [] {
    std::string s = "pp=129/layers:1";
    for (int i = 1; i < 129; ++i) s += "+1";
    return s;
  }();
  struct row {
    std::string text;
    num world;
    plan_problem problem;
    std::size_t position;
    std::string message;
  };
  const std::vector<row> rows = {
      {"tp= 2", 0, plan_problem::space, 3, "there are no spaces in a plan"},
      {" ", 0, plan_problem::space, 0, "there are no spaces in a plan"},
      {"tp=2\n", 0, plan_problem::space, 4, "there are no spaces in a plan"},
      {"tp=2,", 0, plan_problem::empty_entry, 4, "a comma without an entry"},
      {",tp=2", 0, plan_problem::empty_entry, 0, "a comma without an entry"},
      {"tp=2,,cp=2", 0, plan_problem::empty_entry, 5, "a comma without an entry"},
      {",", 0, plan_problem::empty_entry, 0, "a comma without an entry"},
      {"tp=2,cq=2", 0, plan_problem::unknown_axis, 5, "'cq' is neither an axis " + known},
      {"TP=2", 0, plan_problem::unknown_axis, 0, "'TP' is neither an axis " + known},
      {"efsdp=2", 0, plan_problem::unknown_axis, 0, "'efsdp' is neither an axis " + known},
      {"=2", 0, plan_problem::unknown_axis, 0, "'' is neither an axis " + known},
      {"t\x01p=2", 0, plan_problem::unknown_axis, 0, "'t?p' is neither an axis " + known},
      {std::string(60, 'x'), 0, plan_problem::unknown_axis, 0,
       "'" + std::string(40, 'x') + "...' is neither an axis " + known},
      {"tp=2,tp=2", 0, plan_problem::duplicate_axis, 5, "tp is given twice"},
      {"vocab_pad,vocab_pad", 0, plan_problem::duplicate_axis, 10, "vocab_pad is given twice"},
      {"tp", 0, plan_problem::missing_degree, 2, "tp lacks its degree: write tp=N"},
      {"tp/sp", 0, plan_problem::missing_degree, 2, "tp lacks its degree: write tp=N"},
      {"tp=", 0, plan_problem::missing_degree, 3, "tp lacks its number"},
      {"tp=/sp", 0, plan_problem::missing_degree, 3, "tp lacks its number"},
      {"tp=two", 0, plan_problem::not_a_number, 3, "tp must be a decimal number, not 'two'"},
      {"tp=2x", 0, plan_problem::not_a_number, 4, "tp must be a decimal number, not '2x'"},
      {"tp=-2", 0, plan_problem::not_a_number, 3, "tp must be a decimal number, not '-2'"},
      {"tp=+2", 0, plan_problem::not_a_number, 3, "tp must be a decimal number, not '+2'"},
      {"tp=2.0", 0, plan_problem::not_a_number, 4, "tp must be a decimal number, not '2.0'"},
      {"tp=2=2", 0, plan_problem::not_a_number, 4, "tp must be a decimal number, not '2=2'"},
      {"tp=**", 8, plan_problem::not_a_number, 3, "tp must be a decimal number, not '**'"},
      {"tp=0", 0, plan_problem::out_of_range, 3, "tp must be from 1 to 2147483647, not '0'"},
      {"tp=2147483648", 0, plan_problem::out_of_range, 3, "tp must be from 1 to 2147483647, not '2147483648'"},
      {"ep=1099511627776", 0, plan_problem::out_of_range, 3, "ep must be from 1 to 2147483647, not '1099511627776'"},
      {"tp=18446744073709551617", 0, plan_problem::out_of_range, 3,
       "tp must be from 1 to 2147483647, not '18446744073709551617'"},
      {"kv_replicate=1", 0, plan_problem::flag_with_value, 12, "kv_replicate is a flag and takes no value"},
      {"expert_pad/x", 0, plan_problem::flag_with_value, 10, "expert_pad is a flag and takes no value"},
      {"tp=2/", 0, plan_problem::unknown_option, 4, "'' is not an option of tp: sp"},
      {"tp=2/ring", 0, plan_problem::unknown_option, 5, "'ring' is not an option of tp: sp"},
      {"etp=2/sp", 0, plan_problem::unknown_option, 6, "'sp' is not an option of etp: it has none"},
      {"fsdp=2/zero0", 0, plan_problem::unknown_option, 7, "'zero0' is not an option of fsdp: zero3, zero1, zero2"},
      {"cp=2/full", 0, plan_problem::unknown_option, 5,
       "'full' is not an option of cp: ulysses, ring, all_gather, ulyssesUxringR, contiguous, zigzag, "
       "zigzag_documents"},
      {"cp=2/ulysses_ring", 0, plan_problem::unknown_option, 5,
       "'ulysses_ring' is not an option of cp: ulysses, ring, all_gather, ulyssesUxringR, contiguous, zigzag, "
       "zigzag_documents"},
      {"pp=2/1F1B", 0, plan_problem::unknown_option, 5,
       "'1F1B' is not an option of pp: 1f1b, gpipe, interleavedN (N from 2), layers:A+B+..."},
      {"ep=2/alltoall", 0, plan_problem::unknown_option, 5,
       "'alltoall' is not an option of ep: dispatch, all_reduce, all_gather"},
      {"tp=2/sp/sp", 0, plan_problem::duplicate_option, 8, "tp: 'sp' chooses again what was chosen before"},
      {"cp=2/ring/zigzag/ulysses", 0, plan_problem::duplicate_option, 17,
       "cp: 'ulysses' chooses again what was chosen before"},
      {"pp=2/gpipe/interleaved2", 0, plan_problem::duplicate_option, 11,
       "pp: 'interleaved2' chooses again what was chosen before"},
      {"pp=2/layers:1+1/layers:2", 0, plan_problem::duplicate_option, 16,
       "pp: 'layers:2' chooses again what was chosen before"},
      {"pp=2/interleaved", 0, plan_problem::missing_degree, 16, "pp: N of interleavedN lacks its number"},
      {"pp=2/interleaved1", 0, plan_problem::out_of_range, 16,
       "pp: N of interleavedN must be from 2 to 2147483647, not '1'"},
      {"pp=2/layers:", 0, plan_problem::missing_degree, 12, "pp: a number of layers:A+B+... lacks its number"},
      {"pp=2/layers:3+", 0, plan_problem::missing_degree, 14, "pp: a number of layers:A+B+... lacks its number"},
      {"pp=2/layers:3+a", 0, plan_problem::not_a_number, 14,
       "pp: a number of layers:A+B+... must be a decimal number, not 'a'"},
      {"cp=4/ulyssesxring2", 0, plan_problem::missing_degree, 12, "cp: U of ulyssesUxringR lacks its number"},
      {"cp=4/ulysses2xring0", 0, plan_problem::out_of_range, 18,
       "cp: R of ulyssesUxringR must be from 1 to 2147483647, not '0'"},
      {many, 0, plan_problem::too_many_stages, many.size() - 1, "pp: layers:A+B+... lists more than 128 stages"},
      {"fsdp=*,tp=*", 8, plan_problem::second_star, 10,
       "tp=* is the second *: only one degree can be inferred, and fsdp=* was given"},
      {"ep=*", 8, plan_problem::star_cannot_be_inferred, 3,
       "ep=* cannot be inferred from the world: ep and etp add no ranks"},
      {"etp=*", 8, plan_problem::star_cannot_be_inferred, 4,
       "etp=* cannot be inferred from the world: ep and etp add no ranks"},
      {"tp=2,fsdp=*", 0, plan_problem::star_without_world, 10, "fsdp=* needs the number of ranks of the world"},
      {"fsdp=*", -8, plan_problem::star_without_world, 5, "fsdp=* needs the number of ranks of the world"},
      {"fsdp=*,tp=3", 8, plan_problem::star_is_not_whole, 5,
       "fsdp=* is not whole: a world of 8 ranks over the other degrees' 3"},
      {"tp=16,fsdp=*", 8, plan_problem::star_is_not_whole, 11,
       "fsdp=* is not whole: a world of 8 ranks over the other degrees' 16"},
      {"fsdp=*", max_degree + 1, plan_problem::world_out_of_range, 5,
       "fsdp=*: a world of 2147483648 ranks is above 2147483647"},
      {"fsdp=65536,tp=32768", 0, plan_problem::world_out_of_range, 14,
       "with tp=32768 the degrees multiply to more than 2147483647 ranks"},
  };
  std::set<plan_problem> seen;
  for (const row& r : rows) {
    CAPTURE(r.text);
    const parsed_plan parsed = parse_plan(r.text, r.world);
    CHECK_FALSE(parsed.ok());
    CHECK(static_cast<int>(parsed.problem) == static_cast<int>(r.problem));
    CHECK(parsed.position == r.position);
    CHECK(std::string(parsed.message.view()) == r.message);
    CHECK_FALSE(parsed.message.truncated);
    seen.insert(parsed.problem);
  }
  for (int p = 1; p <= static_cast<int>(plan_problem::world_out_of_range); ++p) {
    CAPTURE(p);
    CHECK(seen.count(static_cast<plan_problem>(p)) == 1);
  }
}

TEST_CASE("the longest plan fits") {
  plan_spec p = everything;
  p.pp = p.dp_replicate = p.fsdp = p.cp = p.tp = p.ep = p.etp = max_degree;
  p.virtual_stages = p.method_ulysses = p.method_ring = max_degree;
  p.layout = layout_kind::zigzag_documents;
  p.stages = {};
  while (!p.stages.full()) p.stages.push_back(max_degree);
  CHECK_FALSE(print_plan(p).truncated);
  plan_spec one_world = p;  // a text that is read back must be a world in range
  one_world.dp_replicate = one_world.fsdp = one_world.cp = one_world.tp = 1;
  const parsed_plan back = parse_plan(print_plan(one_world).view());
  CHECK(back.ok());
  CHECK(back.plan == one_world);
}

TEST_CASE("a printed plan reads back as itself") {
  const std::vector<num> degrees = {1, 2, 30};
  std::vector<stage_layer_counts> stages(3);
  stages[1] = {{3, 5}, 2};
  stages[2] = {{0, 8, 0, 1, 7, 0, 4}, 7};
  std::size_t plans = 0;
  std::set<std::string> texts;
  const auto there_and_back = [&](const plan_spec& p) {
    ++plans;
    const std::string text = printed(p);
    texts.insert(text);
    const parsed_plan back = parse_plan(text);
    if (back.ok() && back.plan == p) return;
    CAPTURE(text);
    CHECK(back.ok());
    CHECK(printed(back.plan) == text);
    CHECK(back.plan == p);
  };
  // All pairs of axes with all their options; all flags.
  // Sets one member to each value in turn.
  const auto each = [](auto& member, const auto& values, auto&& next) {
    for (const auto& value : values) {
      member = value;
      next();
    }
  };
  const std::vector<zero_stage> zeros = {zero_stage::zero3, zero_stage::zero1, zero_stage::zero2};
  const std::vector<layout_kind> layouts = {layout_kind::contiguous, layout_kind::zigzag,
                                            layout_kind::zigzag_documents};
  const std::vector<dispatch_kind> dispatches = {dispatch_kind::dispatch, dispatch_kind::all_reduce,
                                                 dispatch_kind::all_gather};
  const auto each_pp = [&](plan_spec p, auto&& next) {
    each(p.pp, degrees, [&] {
      each(p.stages, stages, [&] {
        for (num v : {-1, 1, 2, 11}) {  // gpipe, 1f1b, interleaved
          p.schedule = v < 0 ? schedule_kind::gpipe : v > 1 ? schedule_kind::interleaved : schedule_kind::one_f_one_b;
          p.virtual_stages = v < 1 ? 1 : v;
          next(p);
        }
      });
    });
  };
  const auto each_data = [&](plan_spec p, auto&& next) {
    each(p.dp_replicate, degrees, [&] { each(p.fsdp, degrees, [&] { each(p.zero, zeros, [&] { next(p); }); }); });
  };
  const auto each_cp = [&](plan_spec p, auto&& next) {
    each(p.cp, degrees, [&] {
      each(p.layout, layouts, [&] {
        p.method_ulysses = p.method_ring = 1;
        for (cp_method m : {cp_method::ulysses, cp_method::ring, cp_method::all_gather}) {
          p.method = m;
          next(p);
        }
        p.method = cp_method::ulysses_ring;
        p.method_ring = 2;
        each(p.method_ulysses, degrees, [&] { next(p); });
      });
    });
  };
  const auto each_tp = [&](plan_spec p, auto&& next) {
    each(p.tp, degrees, [&] {
      for (int options = 0; options < 16; ++options) {
        p.sequence_parallel = options & 1;
        p.kv_replicate = options & 2;
        p.vocab_pad = options & 4;
        p.expert_pad = options & 8;
        next(p);
      }
    });
  };
  const auto each_ep = [&](plan_spec p, auto&& next) {
    each(p.ep, degrees, [&] { each(p.etp, degrees, [&] { each(p.dispatch, dispatches, [&] { next(p); }); }); });
  };
  each_pp({}, [&](const plan_spec& p) { each_cp(p, there_and_back); });
  each_pp({}, [&](const plan_spec& p) { each_ep(p, there_and_back); });
  each_data({}, [&](const plan_spec& p) { each_tp(p, there_and_back); });
  each_data({}, [&](const plan_spec& p) { each_ep(p, there_and_back); });
  each_cp({}, [&](const plan_spec& p) { each_tp(p, there_and_back); });
  each_tp({}, [&](const plan_spec& p) { each_ep(p, there_and_back); });
  CHECK(plans > 8000);
  CHECK(texts.size() > 7000);  // different plans print differently, but for those met in several of the loops
}
