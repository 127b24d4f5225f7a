// SPDX-License-Identifier: Apache-2.0
// Plans against the baseline in f64, to 1e-10: every token's logits and loss, and every gradient. First the case that
// the project began with: labels and logits under context parallelism, with a pipeline and without.
#include <random>
#include <thread>

#include "equality_helpers.hpp"

namespace shardplan::runtime {
namespace {

constexpr const char* methods[] = {"ulysses", "ring", "all_gather"};
constexpr const char* layouts[] = {"contiguous", "zigzag", "zigzag_documents"};

/// Every method and layout of this degree, with these further axes; Ulysses where the heads can be traded.
void expect_every_cut(equality& e, num cp, const std::string& more = "") {
  for (const char* layout : layouts) {
    for (const char* method : {"ring", "all_gather"}) e.expect(fmt::format("cp={}/{}/{}{}", cp, method, layout, more));
    e.expect_if_legal(fmt::format("cp={}/ulysses/{}{}", cp, layout, more));
    if (cp == 4) e.expect_if_legal(fmt::format("cp=4/ulysses2xring2/{}{}", layout, more));
  }
}

/// What run_sharded says to rows that it refuses.
std::string refusal(const std::string& plan, const row_loader& load) {
  return tests::message_of(
      [&] { run_plan<double>(weights_of("tied"), plan_for(model_of("tied"), plan), 1, load, with_gradients()); });
}

bool says(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (text.find(word) == std::string::npos) {
      MESSAGE("'" << text << "' does not say '" << word << "'");
      return false;
    }
  return true;
}

}  // namespace

// ---- one layout for everything that is shaped like a sequence

TEST_CASE("zigzag context parallelism gives every token its own loss, with a pipeline and without") {
  equality e("tiny", make_rows(model_of("tiny"), 4, 13));
  for (const char* plan :
       {"cp=2/ring/zigzag", "pp=2,cp=2/ring/zigzag", "cp=2/ulysses/zigzag", "pp=2,cp=2/ulysses/zigzag",
        "cp=4/all_gather/zigzag", "pp=2,cp=4/all_gather/zigzag", "pp=2,cp=2/ring/zigzag,tp=2", "pp=2/gpipe,cp=2/zigzag",
        "pp=2/interleaved2,cp=2/ring/zigzag", "pp=4,cp=2/ring/zigzag,tp=2/sp"})
    e.expect(plan);
  // Losses are told apart: no two tokens with a target have the same, or one in another's place would not be noticed.
  std::vector<double> losses = e.baseline(plan_spec{}, 1).result.token_loss;
  losses.erase(std::remove(losses.begin(), losses.end(), 0.0), losses.end());
  std::sort(losses.begin(), losses.end());
  CHECK(losses.size() >= 20);
  for (std::size_t i = 1; i < losses.size(); ++i) CHECK(losses[i] - losses[i - 1] > 1e-6);
  MESSAGE(e.plans(), " plans, largest error ", e.worst());
}

TEST_CASE("every method, layout and degree of context parallelism, with a pipeline and without") {
  equality plain("sparse_step", make_rows(model_of("sparse_step"), 2, 11));
  for (const char* pipeline : {"", ",pp=2"})
    for (num cp : {2, 3, 4}) expect_every_cut(plain, cp, pipeline);
  equality packed("attention_bias", make_packed(model_of("attention_bias"), 3, {5, 1, 7, 2}));
  for (num cp : {2, 3, 4}) expect_every_cut(packed, cp);
  MESSAGE((plain.plans() + packed.plans()), " plans, largest error ", std::max(plain.worst(), packed.worst()));
}

TEST_CASE("a caller who lies about the layout is refused by rank, token and row") {
  const std::vector<std::vector<num>> documents{{16}, {16}};
  num_sequence<targets, full> whole(16, 2);
  for (num i = 0; i < 16; ++i)
    for (num row = 0; row < 2; ++row) whole.at(i, row) = 100 * row + i;
  // Each token says where it is from, so the claim is read off the tokens themselves.
  const auto offer = [&](const std::vector<num>& tokens, num r) {
    const auto claimed = [&](num token, num row) { return tokens[static_cast<std::size_t>(2 * token + row)] % 100; };
    return adopt<zigzag, targets>(tokens, 2, 1, claimed, documents, 16, 2, r).data();
  };
  const auto refused = [&](const std::vector<num>& tokens, num r) {
    return tests::message_of([&] { offer(tokens, r); });
  };
  for (num r : {0, 1}) {
    const std::vector<num> mine = cut<zigzag>(whole, documents, 2, r).data();
    CHECK(offer(mine, r) == mine);
  }
  CHECK(refused(whole.data(), 0) ==
        "rank 0 of 2 holds token 12 of row 0 at local offset 4 in a zigzag layout, but was given token 4");
  CHECK(refused(whole.data(), 1) ==
        "rank 1 of 2 holds token 4 of row 0 at local offset 0 in a zigzag layout, but was given token 0");
  CHECK(refused(cut<contiguous>(whole, documents, 2, 0).data(), 0) ==
        "rank 0 of 2 holds token 12 of row 0 at local offset 4 in a zigzag layout, but was given token 4");
  CHECK(refused(cut<contiguous>(whole, documents, 2, 1).data(), 1) ==
        "rank 1 of 2 holds token 4 of row 0 at local offset 0 in a zigzag layout, but was given token 8");
  CHECK(refused(cut<zigzag>(whole, documents, 2, 0).data(), 1) ==
        "rank 1 of 2 holds token 4 of row 0 at local offset 0 in a zigzag layout, but was given token 0");
  std::vector<num> swapped = cut<zigzag>(whole, documents, 2, 1).data();
  std::swap(swapped[2 * 5 + 1], swapped[2 * 6 + 1]);
  CHECK(refused(swapped, 1) ==
        "rank 1 of 2 holds token 9 of row 1 at local offset 5 in a zigzag layout, but was given token 10");
  std::vector<num> shorter = cut<zigzag>(whole, documents, 2, 1).data();
  shorter.resize(2 * 7);
  CHECK(says(refused(shorter, 1), {"token 11 of row 0", "local offset 7", "given token -1"}));
  shorter.pop_back();
  CHECK(refused(shorter, 1) == "13 values are not 2 rows of 1 each");
  // Whole rows begin like the first slice of a contiguous layout: what follows gives them away.
  const auto contiguously = [&] {
    const auto claimed = [](num token, num) { return token; };
    adopt<contiguous, targets>(whole.data(), 2, 1, claimed, documents, 16, 2, 0);
  };
  CHECK(tests::message_of(contiguously) ==
        "rank 0 of 2 holds token -1 of row 0 at local offset 8 in a contiguous layout, but was given token 8");
}

TEST_CASE("a loader that splits a batch among ranks of one data shard is refused by two of them") {
  const batch_rows rows = make_rows(model_of("tied"), 4, 8);
  const auto by_rank = [&](num rank) { return select_rows(rows, rank % 4, 1); };
  for (const char* plan : {"cp=2", "tp=2", "pp=2", "pp=2,cp=2/ring,tp=2"})
    CHECK(says(refusal(plan, by_rank), {"ranks ", " and ", "data shard 0", "must read the same rows"}));
  // The second of two data shards, in which one rank of four reads one value differently.
  for (auto field :
       {&batch_rows::input_ids, &batch_rows::labels, &batch_rows::attention_mask, &batch_rows::position_ids}) {
    const auto one_value = [&](num rank) {
      batch_rows mine = select_rows(rows, rank / 4, 1);
      if (rank == 6) (mine.*field)[3] = (mine.*field)[3] == 0 ? 1 : 0;
      return mine;
    };
    CHECK(says(refusal("fsdp=2,cp=2,tp=2", one_value), {" 6 ", "data shard 1", "must read the same rows"}));
  }
  // One shard's rows for everybody are wrong too, but no rank can know; rows by data index are what is asked for.
  const plan_spec plan = plan_for(model_of("tied"), "fsdp=2,cp=2,tp=2");
  CHECK(run_plan<double>(weights_of("tied"), plan, 1, shares_of(rows, plan)).num_items > 0);
}

TEST_CASE("data shards of unequal shapes are refused by two ranks") {
  const batch_rows rows = make_rows(model_of("tied"), 4, 8), longer = make_rows(model_of("tied"), 4, 9);
  CHECK(says(refusal("fsdp=2", [&](num rank) { return select_rows(rows, 0, 1 + rank); }),
             {"ranks ", "read equally many rows of one length", "1 of 8", "2 of 8"}));
  CHECK(says(refusal("dp_replicate=2", [&](num rank) { return select_rows(rank == 0 ? rows : longer, 0, 2); }),
             {"ranks ", "read equally many rows of one length", "2 of 8", "2 of 9"}));
}

// ---- lengths, documents, padding

TEST_CASE("lengths that nothing divides are padded, and real tokens do not notice") {
  for (const auto& [length, cp] : {std::pair<num, num>{7, 2}, {5, 4}, {1, 2}, {3, 4}, {1, 4}}) {
    batch_rows rows = make_rows(model_of("tied"), 2, length);
    if (length == 1) rows.shift_labels = {3, 5}, rows.labels.clear();  // a lone token has no next label
    equality e("tied", rows);
    expect_every_cut(e, cp);
    expect_every_cut(e, cp, ",ep=2,pp=2");
    e.expect("tp=2/sp,ep=2");
    e.expect(fmt::format("tp=2/sp,cp={}/ring/zigzag,ep=4", cp));
    e.expect(fmt::format("tp=2/sp,cp={}/all_gather/zigzag_documents,ep=2/all_reduce", cp));
  }
}

TEST_CASE("documents of one token, and of lengths that nothing divides") {
  for (const std::vector<num>& documents : {std::vector<num>{1, 5, 1, 6}, {7}, {1, 1, 1}, {2, 3, 8}}) {
    equality e("tied", make_packed(model_of("tied"), 2, documents));
    expect_every_cut(e, 2);
    expect_every_cut(e, 4, ",tp=2/sp");
    e.expect("pp=2,cp=2/ring/zigzag_documents,ep=2");
  }
}

TEST_CASE("data shards whose documents need unequal padding agree about the row") {
  const model_spec& m = model_of("tied");  // padded for two ranks 16 and 20 tokens, for four 24 and 16
  equality e("tied", stacked(make_packed(m, 2, {13}), make_packed(m, 2, {2, 1, 9, 1}, 8)));
  for (const char* plan : {"fsdp=2,cp=2/ring/zigzag_documents", "dp_replicate=2,cp=2/zigzag_documents,ep=2",
                           "fsdp=2,cp=4/all_gather/zigzag_documents,pp=2,ep=4", "fsdp=4,cp=2/ring/zigzag_documents"})
    e.expect(plan, 1);
}

TEST_CASE("padding on the left, on the right, and of whole rows is not attended to and not trained on") {
  for (const char* fixture : {"tied", "auxiliary"}) {
    batch_rows rows = make_rows(model_of(fixture), 4, 9);
    hide(rows, 0, 0, 4);
    hide(rows, 1, 6, 9);
    hide(rows, 2, 0, 9);
    equality e(fixture, rows);
    expect_every_cut(e, 2);
    e.expect("fsdp=4");  // the third data shard has nothing real
    e.expect("dp_replicate=2,tp=2/sp,ep=2");
    e.expect("pp=2,cp=2/ring/zigzag,ep=2", 2);
    e.expect("cp=4/ring", 4);
  }
}

TEST_CASE("a rank whose slice is all padding takes part") {
  batch_rows rows = make_rows(model_of("tied"), 2, 9);
  hide(rows, 0, 4, 9);
  hide(rows, 1, 4, 9);
  equality hidden("tied", rows);  // of 12 tokens the third and fourth rank have none that is real
  for (const char* method : methods) hidden.expect(fmt::format("cp=4/{},ep=4", method));
  equality added("tied", make_rows(model_of("tied"), 2, 5));  // 3 of 8 are added: the fourth rank's both
  for (const char* kind : {"dispatch", "all_gather"}) added.expect(fmt::format("cp=4/ring,ep=4/{}", kind));
}

TEST_CASE("experts and ranks without tokens have gradients of zero") {
  batch_rows rows = make_rows(model_of("tiny"), 1, 2);
  equality e("tiny", rows);  // 4 pairs a layer for 8 experts
  for (const char* plan : {"cp=2/ring,ep=2", "cp=2,tp=4,ep=8", "tp=4/sp,ep=4", "tp=2,cp=2/ring,ep=2/all_gather",
                           "tp=4,ep=4/all_reduce", "cp=2/ring,tp=2,ep=2,etp=2"})
    e.expect(plan);
}

// ---- labels and inputs

TEST_CASE("without any label the loss is 0, and so is every gradient") {
  for (const char* fixture : {"tied", "auxiliary"}) {
    batch_rows none = make_rows(model_of(fixture), 2, 7);
    none.labels.clear();
    batch_rows ignored = make_rows(model_of(fixture), 2, 7);
    ignored.labels.assign(14, ignored_target);
    for (const batch_rows& rows : {none, ignored})
      for (const char* text : {"tp=1", "cp=2/ring/zigzag", "pp=2,tp=2/sp", "fsdp=2,ep=2"}) {
        INFO(std::string(fixture), " ", std::string(text));
        const plan_spec plan = plan_for(model_of(fixture), text);
        const auto ours = run_plan<double>(weights_of(fixture), plan, 1, shares_of(rows, plan));
        CHECK(ours.loss == 0);
        CHECK(ours.num_items == 0);
        CHECK(ours.gradient_norm == 0);
        CHECK(!ours.gradients.empty());
        for (const auto& [name, values] : ours.gradients)
          CHECK(std::all_of(values.begin(), values.end(), [](double x) { return x == 0; }));
        const auto theirs = baseline_of<double>(weights_of(fixture), rows);
        const differences d = compare_all(ours, theirs, rows, {});
        CHECK_MESSAGE(d.none(), d.text());
      }
  }
}

TEST_CASE("labels on one rank's slice only, and labels that were shifted already") {
  for (const num place : {1, 6, 13, 15}) {
    batch_rows rows = make_rows(model_of("tied"), 2, 16);
    rows.labels.assign(32, ignored_target);
    rows.labels[static_cast<std::size_t>(place)] = 17;
    equality one("tied", rows);
    expect_every_cut(one, 4);
    one.expect("fsdp=2,cp=2/ring/zigzag");  // the second shard has no target at all
    one.expect("pp=2,tp=2/sp,ep=2");
  }
  batch_rows rows = make_rows(model_of("tied"), 4, 7);
  rows.labels.clear();
  for (num i = 0; i < 28; ++i) rows.shift_labels.push_back(i % 3 == 0 ? ignored_target : i % 40);
  equality shifted("tied", rows);
  expect_every_cut(shifted, 2);
  shifted.expect("dp_replicate=2,pp=2,tp=2");
}

TEST_CASE("embeddings given in place of ids are cut like ids") {
  for (const char* fixture : {"embeds", "tied"}) {
    const model_spec& m = model_of(fixture);
    equality plain(fixture, with_embeds(make_rows(m, 2, 7), m));
    equality packed(fixture, with_embeds(make_packed(m, 2, {4, 1, 6}), m));
    for (equality* e : {&plain, &packed}) {
      expect_every_cut(*e, 2);
      e->expect("tp=2/sp,cp=2/ring/zigzag");
      e->expect("pp=2,tp=2/sp,ep=2");
      e->expect("fsdp=2/zero1,tp=2");
    }
  }
}

TEST_CASE("a sliding window reaches as far under every method") {
  equality plain("sliding", make_rows(model_of("sliding"), 2, 17));
  equality packed("sliding", make_packed(model_of("sliding"), 2, {9, 2, 6}));
  for (equality* e : {&plain, &packed}) {
    expect_every_cut(*e, 2);
    expect_every_cut(*e, 4);
    e->expect("pp=3,cp=2/ring/zigzag,tp=2/sp", 1);
  }
}

TEST_CASE("micro-batches with unequally many targets weigh as many as they have") {
  batch_rows rows = make_rows(model_of("tied"), 8, 7);
  for (std::size_t i = 0; i < 3 * 7; ++i) rows.labels[i] = ignored_target;  // the first three rows have none
  hide(rows, 5, 2, 7);
  equality e("tied", rows);
  for (num micro_batches : {1, 2, 4, 8})
    for (const char* plan : {"tp=1", "tp=2/sp", "pp=2,cp=2/ring/zigzag", "pp=2/gpipe,ep=1", "cp=2,ep=2"})
      e.expect(plan, micro_batches);
  for (const char* zero : {"zero1", "zero2", "zero3"})
    for (num micro_batches : {1, 2, 4}) {
      e.expect(fmt::format("fsdp=2/{}", zero), micro_batches);
      e.expect(fmt::format("fsdp=2/{},pp=2,ep=2", zero), micro_batches);
    }
  e.expect("dp_replicate=2,fsdp=2/zero2", 2);

  equality deep("sparse_step", make_rows(model_of("sparse_step"), 8, 7));  // stages enough for two on a rank
  for (const char* zero : {"zero1", "zero2", "zero3"})
    for (const char* schedule : {"1f1b", "gpipe", "interleaved2"}) {
      deep.expect(fmt::format("pp=2/{},fsdp=2/{}", schedule, zero), 4);
      deep.expect(fmt::format("pp=2/{},fsdp=1/{},cp=2/ring/zigzag,ep=2", schedule, zero), 2);
    }
}

// ---- compositions

TEST_CASE("the compositions that the project was asked for, and each on a pipeline") {
  equality plain("tiny", make_rows(model_of("tiny"), 8, 13));
  equality packed("tiny", make_packed(model_of("tiny"), 8, {4, 1, 8}));
  const auto on_both = [&](const std::string& context, const std::string& rest) {
    for (const char* pipeline : {"", ",pp=2"}) {
      plain.expect(context + rest + pipeline);
      packed.expect(context + rest + pipeline);
    }
  };
  for (const char* context : {"cp=2/ulysses", "cp=2/ring/zigzag"})
    for (const char* rest :
         {",ep=2", ",fsdp=2,ep=4", ",fsdp=2,ep=2", ",tp=2,ep=4", ",dp_replicate=2,ep=2", ",dp_replicate=2,fsdp=2,ep=2",
          ",tp=2,ep=2/all_reduce", ",tp=2", ",fsdp=2", ",dp_replicate=2"})
      on_both(context, rest);
  MESSAGE((plain.plans() + packed.plans()), " plans, largest error ", std::max(plain.worst(), packed.worst()));
}

TEST_CASE("tensor parallelism of every degree: copies of key/value heads, padded vocabulary, biases, tied ends") {
  for (const char* fixture : {"tiny", "attention_bias", "tied", "sparse_step", "wide_heads", "yarn"}) {
    const model_spec& m = model_of(fixture);
    equality e(fixture, make_rows(m, 2, 9));
    for (const num tp : {2, 3, 4, 6, 8})
      for (const char* more : {"", "/sp", "/sp,cp=2/ring/zigzag", ",cp=2/all_gather,pp=2", "/sp,pp=2"})
        e.expect_if_legal(fmt::format("tp={}{}", tp, more));
    CHECK(e.plans() >= 5);
  }
  equality copies("tiny", make_rows(model_of("tiny"), 2, 9));  // 4 key/value heads for 8 ranks, either way
  for (const char* plan : {"cp=8/ulysses", "cp=4/ulysses/zigzag,tp=2", "tp=8/sp", "cp=2/ulysses,tp=4/sp",
                           "cp=4/ulysses2xring2/zigzag,tp=4", "cp=8/ulysses,ep=4,pp=2"})
    copies.expect(plan);
}

TEST_CASE("experts over every mesh: all kinds of dispatch, widths cut, padded slots") {
  for (const char* fixture : {"tiny", "no_norm_topk", "sparse_step"}) {
    const model_spec& m = model_of(fixture);
    equality e(fixture, make_rows(m, 4, 7));
    for (const char* ranks : {"fsdp=4", "cp=4/ring", "tp=4/sp", "tp=4", "tp=2,cp=2/ring/zigzag", "tp=2/sp,fsdp=2"})
      for (const char* experts : {",ep=2/{}", ",ep=4/{}", ",ep=1/{},etp=2", ",ep=2/{},etp=2"})
        for (const char* kind : {"dispatch", "all_gather", "all_reduce"})
          e.expect_if_legal(ranks + fmt::format(fmt::runtime(experts), kind));
    e.expect("cp=3/ring,ep=3");  // 8, 5 or 6 experts: the last rank may hold fewer
    CHECK(e.plans() >= 30);
  }
}

TEST_CASE("the routers' loss is that of whole micro-batches, however they are cut") {
  batch_rows rows = make_rows(model_of("auxiliary"), 8, 7);
  hide(rows, 1, 0, 2);
  hide(rows, 6, 3, 7);
  equality e("auxiliary", rows);
  for (const num micro_batches : {1, 2})
    for (const char* plan :
         {"tp=1", "tp=2", "tp=2/sp", "cp=2/ring/zigzag", "fsdp=2", "fsdp=2/zero1", "dp_replicate=2", "pp=2", "pp=3",
          "pp=2,cp=2/ring,ep=2", "tp=2,ep=2/all_reduce", "tp=2/sp,ep=2/all_reduce", "tp=4,ep=2/all_reduce",
          "tp=2,ep=1/all_reduce,etp=2", "tp=2,ep=2/all_gather", "tp=2,cp=2/ring,ep=2,etp=2",
          "pp=2,tp=2,cp=2/all_gather,ep=2/all_reduce", "dp_replicate=2,fsdp=2,tp=2/sp,ep=4"})
      e.expect(plan, micro_batches);
}

// ---- types, time

TEST_CASE("f32 is the f32 baseline, whose close choices of experts are replayed") {
  for (const char* fixture : {"tiny", "sparse_step", "tied"}) {
    const checkpoint& weights = weights_of(fixture);
    const model_spec& m = weights.config().spec;
    const batch_rows rows = make_rows(m, 4, 13);
    const auto forward = baseline<float>(weights).forward(rows);
    const auto replayed = choices_to_replay(forward, replay_margin<float>);
    const auto theirs = baseline_of<float>(weights, rows);
    double worst = 0;
    for (const char* text : {"tp=1", "tp=2/sp", "cp=2/ring/zigzag", "cp=4/all_gather", "pp=2,cp=2/ulysses,ep=2",
                             "fsdp=2/zero2,tp=2,ep=2/all_gather", "dp_replicate=2,tp=2,ep=2/all_reduce"}) {
      INFO(std::string(fixture), " ", std::string(text));
      const plan_spec plan = plan_for(m, text);
      run_options options = with_gradients();
      options.replay = replayed.choices;
      const auto ours = run_plan<float>(weights, plan, plan.pp, shares_of(rows, plan), options);
      const differences d = compare_all(ours, theirs, rows, {2e-5, 1e-4});
      CHECK_MESSAGE(d.none(), d.text());
      worst = std::max(worst, d.worst());
    }
    MESSAGE(std::string(fixture), ": ", replayed.tokens, " of ", replayed.total, " choices replayed, largest error ",
            worst);
  }
}

TEST_CASE("choices are replayed for the tokens and layers that they were made for") {
  for (const char* name : {"sparse_step", "tiny"}) {
    const std::string fixture(name);
    const checkpoint& weights = weights_of(fixture);
    const batch_rows rows = make_rows(weights.config().spec, 4, 7);
    const auto all = choices_to_replay(baseline<double>(weights).forward(rows), INFINITY);
    REQUIRE(all.tokens == all.total);
    const auto theirs = baseline_of<double>(weights, rows);
    run_options options = with_gradients();
    options.replay = all.choices;
    for (const char* text : {"tp=1", "cp=2/ring/zigzag", "pp=2,tp=2/sp", "fsdp=2,ep=2", "tp=2,ep=2/all_reduce"}) {
      INFO(fixture, " ", std::string(text));
      const plan_spec plan = plan_for(weights.config().spec, text);
      const differences d =
          compare_all(run_plan<double>(weights, plan, 2, shares_of(rows, plan), options), theirs, rows, {});
      CHECK_MESSAGE(d.none(), d.text());
    }
  }
}

TEST_CASE("choices are replayed although the routers would make others") {
  // Other ones in every row, place and layer.
  const checkpoint& weights = weights_of("tiny");
  const batch_rows rows = make_rows(weights.config().spec, 4, 7);
  expert_choices forced{4, 7, 2, {}};
  for (num i = 0; i < 8 * 4 * 7; ++i) {
    forced.experts.push_back((i * 5 + i / 7) % 8);
    forced.experts.push_back((i * 5 + i / 7 + 1 + i % 6) % 8);
  }
  run_options options = with_gradients();
  options.replay = std::span(&forced, 1);
  const auto run_with = [&](const char* text, num micro_batches) {
    const plan_spec plan = plan_for(weights.config().spec, text);
    return run_plan<double>(weights, plan, micro_batches, shares_of(rows, plan), options);
  };
  const auto one = run_with("tp=1", 1);
  const auto free = baseline_of<double>(weights, rows);
  differences off;
  off.compare("logits", one.logits, free.result.logits, 1e-3);
  CHECK(!off.none());
  for (const char* text : {"cp=2/ring/zigzag", "pp=2,tp=2/sp", "fsdp=2,ep=2", "tp=2,ep=2/all_reduce"}) {
    INFO(std::string(text));
    const auto many = run_with(text, 2);
    differences d;
    d.compare("logits", many.logits, one.logits, 1e-10);
    compare_gradients(d, many.gradients, one.gradients, 1e-10);
    CHECK_MESSAGE(d.none(), d.text());
  }
}

TEST_CASE("results do not depend on which rank is late") {
  const checkpoint& weights = weights_of("sparse_step");
  const batch_rows rows = make_rows(weights.config().spec, 4, 9);
  for (const char* text : {"cp=4/ring/zigzag", "tp=2/sp,cp=2,ep=4", "pp=2,fsdp=2/zero2,cp=2/ulysses,ep=2",
                           "dp_replicate=2,tp=2,ep=2/all_gather"}) {
    INFO(std::string(text));
    const plan_spec plan = plan_for(weights.config().spec, text);
    const row_loader load = shares_of(rows, plan);
    const auto late = [&](num who) {
      return [&load, who](num rank) {
        std::this_thread::sleep_for(std::chrono::milliseconds(rank * 7 % 5 == who ? 20 : 0));
        return load(rank);
      };
    };
    const auto first = run_plan<double>(weights, plan, 2, load);
    for (num who : {0, 2}) {
      const auto again = run_plan<double>(weights, plan, 2, late(who));
      CHECK(again.logits == first.logits);
      CHECK(again.token_loss == first.token_loss);
      CHECK(again.loss == first.loss);
      CHECK(again.gradient_norm == first.gradient_norm);
      CHECK(again.gradients == first.gradients);
    }
  }
}

TEST_CASE("an evaluation gives the outputs of training, and no gradients") {
  for (const char* name : {"sparse_step", "auxiliary"}) {
    const std::string fixture(name);
    const checkpoint& weights = weights_of(fixture);
    const batch_rows rows = make_rows(weights.config().spec, 4, 9);
    for (const char* text : {"tp=1", "pp=2/interleaved2,cp=2/ring/zigzag", "pp=3,tp=2/sp,ep=2", "fsdp=2,cp=2,ep=4",
                             "pp=2,tp=2,ep=2/all_reduce"}) {
      INFO(fixture, " ", std::string(text));
      const plan_spec plan = plan_for(weights.config().spec, text);
      const auto trained = run_plan<double>(weights, plan, 2, shares_of(rows, plan));
      const auto evaluated = run_plan<double>(weights, plan, 2, shares_of(rows, plan), {});
      CHECK(evaluated.logits == trained.logits);
      CHECK(evaluated.token_loss == trained.token_loss);
      CHECK(evaluated.loss == trained.loss);
      CHECK(evaluated.balance_loss == trained.balance_loss);
      CHECK((evaluated.balance_loss != 0) == (fixture == "auxiliary"));
      CHECK(evaluated.gradients.empty());
    }
  }
}

}  // namespace shardplan::runtime
