// SPDX-License-Identifier: Apache-2.0
// Meshes and pipelines: the `// post:` lines of mesh.hpp and pipeline.hpp, and every group of every plan of up to eight
// ranks against its definition: the ranks that agree on all other axes.
#include <doctest/doctest.h>

#include <map>
#include <set>
#include <shardplan/mesh.hpp>
#include <shardplan/pipeline.hpp>
#include <shardplan/plan_text.hpp>
#include <shardplan/question.hpp>
#include <tuple>
#include <vector>

namespace {

using namespace shardplan;

model_spec small(num kv_heads = 2) {
  model_spec m;
  m.num_hidden_layers = 6;
  m.num_attention_heads = 8;
  m.num_key_value_heads = kv_heads;
  return m;
}

/// Calls f for the plans of up to `most` ranks, all degrees and every Ulysses degree.
template <class F>
void for_each_plan(num most, F&& f) {
  plan_spec p;
  for (p.pp = 1; p.pp <= most; ++p.pp)
    for (p.dp_replicate = 1; p.pp * p.dp_replicate <= most; ++p.dp_replicate)
      for (p.fsdp = 1; p.pp * p.dp_replicate * p.fsdp <= most; ++p.fsdp)
        for (p.cp = 1; p.pp * p.dp_replicate * p.fsdp * p.cp <= most; ++p.cp)
          for (p.tp = 1; p.pp * p.dp_replicate * p.fsdp * p.cp * p.tp <= most; ++p.tp)
            for (p.ep = 1; p.ep <= most; ++p.ep)
              for (p.etp = 1; p.etp <= most; ++p.etp) {
                if (p.fsdp * p.cp * p.tp % (p.ep * p.etp) != 0) continue;
                for (num u = 1; u <= p.cp; ++u) {
                  if (p.cp % u != 0) continue;
                  p.method = cp_method::ulysses_ring;
                  p.method_ulysses = u;
                  p.method_ring = p.cp / u;
                  f(p);
                }
              }
}

/// The place of a rank on every axis, by counting: the last axis turns fastest, like an odometer.
using places = std::map<axis, num>;
std::vector<places> odometer(const std::vector<std::pair<axis, num>>& axes) {
  num world = 1;
  for (const auto& [name, degree] : axes) world *= degree;
  std::vector<places> out;
  places now;
  for (const auto& [name, degree] : axes) now[name] = 0;
  for (num rank = 0; rank < world; ++rank) {
    out.push_back(now);
    for (std::size_t k = axes.size(); k-- > 0;) {
      if (++now[axes[k].first] < axes[k].second) break;
      now[axes[k].first] = 0;
    }
  }
  return out;
}

num copies_of(const plan_spec& p, const model_spec& m) {
  return p.tp > m.num_key_value_heads ? p.tp / m.num_key_value_heads : 1;
}

/// The sub-axes of tp exist: it is legal to copy key/value heads, or there is no need to.
bool tp_has_sub_axes(const plan_spec& p, const model_spec& m) {
  return p.tp <= m.num_key_value_heads || p.tp % m.num_key_value_heads == 0;
}

std::vector<std::pair<axis, num>> dense_axes(const plan_spec& p) {
  return {
      {axis::pp, p.pp}, {axis::dp_replicate, p.dp_replicate}, {axis::fsdp, p.fsdp}, {axis::cp, p.cp}, {axis::tp, p.tp}};
}
std::vector<std::pair<axis, num>> expert_axes(const plan_spec& p) {
  return {{axis::pp, p.pp},
          {axis::dp_replicate, p.dp_replicate},
          {axis::efsdp, p.fsdp * p.cp * p.tp / p.ep / p.etp},
          {axis::ep, p.ep},
          {axis::etp, p.etp}};
}
std::vector<std::pair<axis, num>> attention_axes(const plan_spec& p, const model_spec& m) {
  const num copies = copies_of(p, m);
  return {{axis::pp, p.pp},
          {axis::dp_replicate, p.dp_replicate},
          {axis::fsdp, p.fsdp},
          {axis::cp_ring, p.method_ring},
          {axis::cp_ulysses, p.method_ulysses},
          {axis::tp_heads, p.tp / copies},
          {axis::tp_copies, copies}};
}

TEST_CASE("ranks stand in a mesh row by row, the last axis fastest") {
  for_each_plan(8, [&](const plan_spec& p) {
    const auto check = [&](const mesh& m, const std::vector<std::pair<axis, num>>& axes) {
      const std::vector<places> where = odometer(axes);
      CHECK(m.size() == static_cast<num>(where.size()));
      CHECK(m.axes.size() == axes.size());
      for (const auto& [name, degree] : axes) CHECK(m.degree(name) == degree);
      for (num rank = 0; rank < m.size(); ++rank)
        for (const auto& [name, place] : where[static_cast<std::size_t>(rank)])
          CHECK(coordinate(m, rank, name) == place);
    };
    check(dense_mesh(p), dense_axes(p));
    check(expert_mesh(p), expert_axes(p));
    if (tp_has_sub_axes(p, small())) check(attention_mesh(p, small()), attention_axes(p, small()));
    check(root_mesh(p),
          {{axis::pp, p.pp}, {axis::dp_replicate, p.dp_replicate}, {axis::fsdp_cp, p.fsdp * p.cp}, {axis::tp, p.tp}});
  });
}

TEST_CASE("an axis that a mesh has not got has degree 1 and every rank at 0") {
  const mesh m = root_mesh({});
  CHECK(m.degree(axis::ep) == 1);
  CHECK(coordinate(m, 0, axis::ep) == 0);
  plan_spec p;
  p.tp = 4;
  for (num rank = 0; rank < 4; ++rank) {
    CHECK(coordinate(dense_mesh(p), rank, axis::efsdp) == 0);
    CHECK(select(dense_mesh(p), rank, axis::efsdp).size() == 1);
  }
}

TEST_CASE("flatten: the merged place is first * degree(second) + second") {
  for_each_plan(8, [&](const plan_spec& p) {
    const mesh m = dense_mesh(p);
    const auto check = [&](axis first, axis second, axis merged) {
      const mesh result = flatten(m, first, second, merged);
      CHECK(result.size() == m.size());
      CHECK(result.axes.size() == m.axes.size() - 1);
      for (num r = 0; r < m.size(); ++r) {
        CHECK(coordinate(result, r, merged) == coordinate(m, r, first) * m.degree(second) + coordinate(m, r, second));
        for (axis other : {axis::pp, axis::dp_replicate, axis::fsdp, axis::cp, axis::tp})
          if (other != first && other != second) CHECK(coordinate(result, r, other) == coordinate(m, r, other));
      }
    };
    check(axis::fsdp, axis::cp, axis::fsdp_cp);
    check(axis::cp, axis::tp, axis::efsdp);
    check(axis::pp, axis::dp_replicate, axis::ep);
  });
  // Axes that are not neighbours, in this order, stay as they are.
  CHECK(flatten(dense_mesh({}), axis::fsdp, axis::tp, axis::efsdp) == dense_mesh({}));
  CHECK(flatten(dense_mesh({}), axis::cp, axis::fsdp, axis::fsdp_cp) == dense_mesh({}));
}

TEST_CASE("unflatten: flatten(result, outer, inner, whole) == m") {
  for_each_plan(8, [&](const plan_spec& p) {
    const mesh m = root_mesh(p);
    const mesh by_cp = unflatten(m, axis::fsdp_cp, axis::fsdp, axis::cp, p.cp);
    CHECK(flatten(by_cp, axis::fsdp, axis::cp, axis::fsdp_cp) == m);
    for (num inner = 1; inner <= p.tp; ++inner)
      if (p.tp % inner == 0)
        CHECK(flatten(unflatten(m, axis::tp, axis::tp_heads, axis::tp_copies, inner), axis::tp_heads, axis::tp_copies,
                      axis::tp) == m);
  });
}

TEST_CASE("both views of a plan are made of one root") {
  for_each_plan(8, [&](const plan_spec& p) {
    const mesh of_dense =
        flatten(flatten(dense_mesh(p), axis::fsdp, axis::cp, axis::fsdp_cp), axis::fsdp_cp, axis::tp, axis::efsdp);
    const mesh of_experts =
        flatten(flatten(expert_mesh(p), axis::ep, axis::etp, axis::ep), axis::efsdp, axis::ep, axis::efsdp);
    CHECK(of_dense == of_experts);
    CHECK(efsdp_degree(p) * p.ep * p.etp == p.fsdp * p.cp * p.tp);
  });
}

TEST_CASE("a group is the ranks that agree on all other axes, in order, and knows the asking rank") {
  const model_spec m = small();
  for_each_plan(8, [&](const plan_spec& p) {
    const auto check = [&](const std::vector<std::pair<axis, num>>& axes, std::vector<axis_set> sets) {
      const std::vector<places> where = odometer(axes);
      axis_set all;
      for (const auto& [name, degree] : axes) {
        sets.push_back(name);
        all = all | name;
      }
      sets.push_back(all);
      for (axis_set over : sets) {
        for (num rank = 0; rank < static_cast<num>(where.size()); ++rank) {
          std::vector<num> expected, members;
          for (num other = 0; other < static_cast<num>(where.size()); ++other) {
            bool same = true;
            for (const auto& [name, place] : where[static_cast<std::size_t>(other)])
              same = same && (over.has(name) || place == where[static_cast<std::size_t>(rank)].at(name));
            if (same) expected.push_back(other);
          }
          const rank_group g = group_of(p, m, rank, over);
          for (num i = 0; i < g.size(); ++i) members.push_back(g.member(i));
          if (members != expected) {
            INFO(print_plan(p).view() << " rank " << rank << " axes " << over.bits);
            CHECK(members == expected);
          }
          CHECK(g.member(g.index) == rank);
          if (over == all) CHECK(g.size() == world_size(p));
        }
      }
    };
    check(dense_axes(p),
          {axis::fsdp | axis::cp, axis::cp | axis::tp, axis_set(axis::dp_replicate) | axis::fsdp | axis::cp,
           axis::pp | axis::tp, axis::pp | axis::fsdp});
    check(expert_axes(p), {axis::ep | axis::etp, axis::dp_replicate | axis::efsdp});
    if (tp_has_sub_axes(p, m))
      check(attention_axes(p, m),
            {axis_set(axis::dp_replicate) | axis::fsdp | axis::cp_ring | axis::cp_ulysses | axis::tp_copies});
  });
}

TEST_CASE("fsdp_cp is fsdp and cp together, cp its two sub-axes, tp its two") {
  for (num kv_heads : {1, 2, 4, 8})
    for_each_plan(8, [&](const plan_spec& p) {
      const model_spec m = small(kv_heads);
      if (!tp_has_sub_axes(p, m)) return;
      for (num rank = 0; rank < world_size(p); ++rank) {
        const auto same = [&](axis_set one, axis_set other) {
          const rank_group a = group_of(p, m, rank, one), b = group_of(p, m, rank, other);
          CHECK(a.size() == b.size());
          CHECK(a.index == b.index);
          for (num i = 0; i < a.size(); ++i) CHECK(a.member(i) == b.member(i));
        };
        same(axis::fsdp_cp, axis::fsdp | axis::cp);
        same(axis::cp, axis::cp_ring | axis::cp_ulysses);
        same(axis::tp, axis::tp_heads | axis::tp_copies);
      }
    });
}

TEST_CASE("Ulysses ranks are neighbours on cp, ring ranks are U apart") {
  plan_spec p;
  p.cp = 8;
  p.tp = 3;
  p.method = cp_method::ulysses_ring;
  p.method_ulysses = 2;
  p.method_ring = 4;
  const model_spec m = small(3);
  const rank_group ulysses = group_of(p, m, 0, axis::cp_ulysses), ring = group_of(p, m, 0, axis::cp_ring);
  CHECK(ulysses.size() == 2);
  CHECK(ulysses.member(1) == 3);
  CHECK(ring.size() == 4);
  CHECK(ring.member(1) == 6);
  // The copies of one key/value head are neighbours on tp.
  plan_spec q;
  q.tp = 8;
  CHECK(group_of(q, small(2), 0, axis::tp_copies).size() == 4);
  CHECK(group_of(q, small(2), 0, axis::tp_copies).member(1) == 1);
  CHECK(group_of(q, small(2), 0, axis::tp_heads).member(1) == 4);
  CHECK(group_of(q, small(8), 0, axis::tp_copies).size() == 1);
}

TEST_CASE("U and R of every method multiply to cp") {
  plan_spec p;
  p.cp = 8;
  p.method_ulysses = 2;
  p.method_ring = 4;
  const auto degrees = [&](cp_method method) {
    p.method = method;
    return std::pair(ulysses_degree(p), ring_degree(p));
  };
  CHECK(degrees(cp_method::ulysses) == std::pair<num, num>(8, 1));
  CHECK(degrees(cp_method::ring) == std::pair<num, num>(1, 8));
  CHECK(degrees(cp_method::all_gather) == std::pair<num, num>(1, 8));
  CHECK(degrees(cp_method::ulysses_ring) == std::pair<num, num>(2, 4));
}

TEST_CASE("ranks that differ in pp, cp and tp alone read the same batch, and all batches are read") {
  for_each_plan(8, [&](const plan_spec& p) {
    const std::vector<places> where = odometer(dense_axes(p));
    std::map<std::pair<num, num>, std::set<num>> read;
    std::set<num> all;
    for (num rank = 0; rank < world_size(p); ++rank) {
      const places& at = where[static_cast<std::size_t>(rank)];
      read[{at.at(axis::dp_replicate), at.at(axis::fsdp)}].insert(data_index(p, rank));
      all.insert(data_index(p, rank));
    }
    for (const auto& [shard, indices] : read) CHECK(indices.size() == 1);
    CHECK(static_cast<num>(all.size()) == p.dp_replicate * p.fsdp);
    CHECK(num_data_shards(p) == p.dp_replicate * p.fsdp);
    CHECK(*all.begin() == 0);
    CHECK(*all.rbegin() == num_data_shards(p) - 1);
    CHECK(gradient_divisor(p) == p.dp_replicate * p.fsdp * p.cp);
  });
}

TEST_CASE("a world too large to count is -1, not a wrapped number") {
  plan_spec p;
  p.pp = p.fsdp = p.tp = num{1} << 40;
  CHECK(world_size(p) == -1);
  p = {};
  p.cp = -2;
  CHECK(world_size(p) == -1);
}

// ---- pipelines

/// Plans of `layers` layers with 1 to 3 virtual stages, even where that divides, and listed ones, empty stages too.
template <class F>
void for_each_pipeline(F&& f) {
  for (num pp : {1, 2, 3, 4})
    for (num virtual_stages : {1, 2, 3}) {
      plan_spec p;
      p.pp = pp;
      p.virtual_stages = virtual_stages;
      p.schedule = virtual_stages > 1 ? schedule_kind::interleaved : schedule_kind::one_f_one_b;
      for (num layers : {1, 5, 6, 12}) {
        model_spec m = small();
        m.num_hidden_layers = layers;
        p.stages = {};
        if (layers % (pp * virtual_stages) == 0) f(m, p);
        p.stages = nearest_even_stages(layers, pp * virtual_stages);
        f(m, p);
        // All layers on the last stage, and all on the first.
        for (num& s : p.stages) s = 0;
        p.stages[p.stages.size() - 1] = layers;
        f(m, p);
        p.stages[p.stages.size() - 1] = 0;
        p.stages[0] = layers;
        f(m, p);
      }
    }
}

TEST_CASE("stages are disjoint, in order, and cover every layer") {
  for_each_pipeline([](const model_spec& m, const plan_spec& p) {
    num next = 0;
    for (num s = 0; s < num_stages(p); ++s) {
      const layer_range layers = stage_layers(m, p, s);
      CHECK(layers.begin == next);
      CHECK(layers.end >= layers.begin);
      CHECK(layers.size() ==
            (p.stages.empty() ? m.num_hidden_layers / num_stages(p) : p.stages[static_cast<std::size_t>(s)]));
      next = layers.end;
      for (num layer = -1; layer <= m.num_hidden_layers; ++layer)
        CHECK(layers.has(layer) == (layer >= layers.begin && layer < layers.end));
    }
    CHECK(next == m.num_hidden_layers);
  });
}

TEST_CASE("nearest_even_stages adds up, differs by one at most, and is empty where no plan can hold it") {
  for (num layers : {0, 1, 5, 8, 94})
    for (num stages : {1, 2, 3, 8, 128}) {
      num sum = 0, most = 0, fewest = layers;
      for (num s : nearest_even_stages(layers, stages)) {
        sum += s;
        CHECK((s <= most || most == 0));  // the deeper ones are shorter
        most = std::max(most, s);
        fewest = std::min(fewest, s);
      }
      CHECK(sum == layers);
      CHECK(most - fewest <= 1);
    }
  CHECK(nearest_even_stages(200, 129).empty());
  CHECK(nearest_even_stages(8, 0).empty());
}

/// Lets all ranks run their steps, each in its own order, a step as soon as what it needs has been done: a forward the
/// stage before it, a backward its own forward and the stage after it. False when they wait for each other for ever, or
/// a step comes twice. `most_waiting[at]`: forwards of that rank whose backward is still to come, at most.
bool ranks_can_run(const plan_spec& p, const std::vector<std::vector<pipeline_step>>& order, std::size_t steps,
                   std::vector<num>& most_waiting) {
  std::vector<std::size_t> next(order.size());
  std::set<std::tuple<step_kind, num, num>> done;
  std::vector<num> waiting(order.size());
  most_waiting.assign(order.size(), 0);
  const auto is_done = [&](step_kind kind, num stage, num m) { return done.count({kind, stage, m}) != 0; };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t at = 0; at < order.size(); ++at) {
      if (next[at] == order[at].size()) continue;
      const pipeline_step s = order[at][next[at]];
      const bool forward = s.kind == step_kind::forward;
      if (forward && s.stage > 0 && !is_done(step_kind::forward, s.stage - 1, s.micro_batch)) continue;
      if (!forward && !is_done(step_kind::forward, s.stage, s.micro_batch)) continue;
      if (!forward && s.stage + 1 < num_stages(p) && !is_done(step_kind::backward, s.stage + 1, s.micro_batch))
        continue;
      if (!done.insert({s.kind, s.stage, s.micro_batch}).second) return false;
      waiting[at] += forward ? 1 : -1;
      most_waiting[at] = std::max(most_waiting[at], waiting[at]);
      ++next[at];
      moved = true;
    }
  }
  return done.size() == steps;
}

TEST_CASE("every stage runs the forward and the backward of every micro-batch once, and no rank waits for ever") {
  for_each_pipeline([](const model_spec&, plan_spec p) {
    for (num micro_batches : {p.pp, 2 * p.pp, num{1}, num{5}})
      for (bool gpipe : {false, true}) {
        if (p.virtual_stages > 1 && (micro_batches % p.pp != 0 || gpipe)) continue;
        if (p.virtual_stages == 1) p.schedule = gpipe ? schedule_kind::gpipe : schedule_kind::one_f_one_b;
        INFO(print_plan(p).view() << " with " << micro_batches);
        std::vector<std::vector<pipeline_step>> steps(static_cast<std::size_t>(p.pp)), forwards(steps);
        for (num at = 0; at < p.pp; ++at) {
          for_each_step(p, micro_batches, at, [&](const pipeline_step& s) {
            CHECK(s.stage % p.pp == at);
            CHECK(stage_owner(p, s.stage) == at);
            steps[static_cast<std::size_t>(at)].push_back(s);
          });
          for_each_forward(p, micro_batches, at, [&](const pipeline_step& s) {
            CHECK(s.kind == step_kind::forward);
            forwards[static_cast<std::size_t>(at)].push_back(s);
          });
        }
        const auto all = static_cast<std::size_t>(num_stages(p) * micro_batches);
        std::vector<num> waiting;
        CHECK(ranks_can_run(p, forwards, all, waiting));
        CHECK(ranks_can_run(p, steps, 2 * all, waiting));
        for (num at = 0; at < p.pp && p.virtual_stages == 1; ++at) {
          // What 1f1b is for: a rank keeps no more micro-batches than there are stages from it on.
          const num kept = gpipe ? micro_batches : std::min(micro_batches, p.pp - at);
          CHECK(waiting[static_cast<std::size_t>(at)] == kept);
        }
      }
  });
}

TEST_CASE("interleaved ranks take their stages in turns of pp micro-batches") {
  plan_spec p;
  p.pp = 2;
  p.virtual_stages = 2;
  p.schedule = schedule_kind::interleaved;
  std::vector<std::pair<num, num>> order;
  for_each_forward(p, 4, 1, [&](const pipeline_step& s) { order.push_back({s.stage, s.micro_batch}); });
  CHECK(order == std::vector<std::pair<num, num>>{{1, 0}, {1, 1}, {3, 0}, {3, 1}, {1, 2}, {1, 3}, {3, 2}, {3, 3}});
}

TEST_CASE("the embedding stands first, norm and head last, and a tied embedding at both ends") {
  for_each_pipeline([](model_spec m, const plan_spec& p) {
    for (bool tied : {false, true}) {
      m.tie_word_embeddings = tied;
      for (num s = 0; s < num_stages(p); ++s) {
        const bool first = s == 0, last = s == num_stages(p) - 1;
        const auto holds = [&](parameter_kind kind) { return stage_holds(m, p, s, make_parameter(m, kind)); };
        CHECK(holds(parameter_kind::embed_tokens) == (first || (tied && last)));
        CHECK(holds(parameter_kind::final_norm) == last);
        CHECK(holds(parameter_kind::lm_head) == last);
        for (num layer = 0; layer < m.num_hidden_layers; ++layer)
          CHECK(stage_holds(m, p, s, make_parameter(m, parameter_kind::q_proj, layer)) ==
                stage_layers(m, p, s).has(layer));
      }
      for (num layer = 0; layer < m.num_hidden_layers; ++layer) {
        num holders = 0;
        for (num rank = 0; rank < p.pp; ++rank)
          holders += rank_holds(m, p, rank, make_parameter(m, parameter_kind::o_proj, layer));
        CHECK(holders == 1);
      }
    }
  });
}

}  // namespace
