// SPDX-License-Identifier: Apache-2.0
// Is what the rules refuse impossible, and what they accept possible? Arithmetic written apart from the rules says, for
// each rule that refuses, which size would not be whole or which count is wrong. Random models, batches and plans of up
// to eight ranks, and some far out of range, are asked both ways.
#include <doctest/doctest.h>

#include <algorithm>  // includes, min
#include <map>
#include <set>
#include <shardplan/check.hpp>
#include <string>
#include <vector>

#include "random_questions.hpp"

namespace {

using namespace shardplan;
using tests::describe;
using tests::generator;

// ---- what is impossible

constexpr num most = 2147483647;  // ranks and sizes are int outside
constexpr num walkable = 256;     // beyond it, only wrong on purpose, things are divided and not walked through

bool in_range(num n) { return n >= 1 && n <= most; }

/// n things dealt out to `parts`: do all get equally many?
bool deals(num n, num parts) { return n / parts * parts == n; }

std::vector<num> degrees(const plan_spec& p) { return {p.pp, p.dp_replicate, p.fsdp, p.cp, p.tp, p.ep, p.etp}; }
/// Ranks, counted in a type that cannot overflow before the limit is seen; 0 when there is no such world.
num ranks(const plan_spec& p) {
  double product = 1;
  for (num d : degrees(p))
    if (!in_range(d)) return 0;
  for (num d : {p.pp, p.dp_replicate, p.fsdp, p.cp, p.tp}) product *= static_cast<double>(d);
  return product <= static_cast<double>(most) ? static_cast<num>(product) : 0;
}
bool has_ranks(const question& q) { return ranks(q.plan) > 0; }
num expert_view_ranks(const plan_spec& p) { return p.fsdp * p.cp * p.tp; }

bool has_sizes(const model_spec& m) {
  for (num size :
       {m.num_hidden_layers, m.hidden_size, m.num_attention_heads, m.num_key_value_heads, m.head_dim, m.vocab_size})
    if (!in_range(size)) return false;
  return true;
}
bool has_experts(const model_spec& m, num layer) {
  return m.num_experts > 0 && m.decoder_sparse_step > 0 && !m.mlp_only_layers.has(layer) &&
         (layer + 1) % m.decoder_sparse_step == 0;
}
num layers_of_kind(const model_spec& m, bool experts) {
  num n = 0;
  for (num layer = 0; layer < std::min<num>(m.num_hidden_layers, 512); ++layer) n += experts == has_experts(m, layer);
  return n;
}
bool has_experts(const question& q) { return layers_of_kind(q.model, true) > 0; }

/// Ranks that trade tokens for heads: 0 when U x R is not cp.
num ulysses(const plan_spec& p) {
  switch (p.method) {
    case cp_method::ulysses:
      return p.cp;
    case cp_method::ulysses_ring:
      return in_range(p.method_ulysses) && in_range(p.method_ring) && p.method_ulysses * p.method_ring == p.cp
                 ? p.method_ulysses
                 : 0;
    default:
      return 1;
  }
}

/// `parts` ranks compute equally many query heads each. Do the key/value heads that they read make an equal cut: all
/// read equally many, each read by equally many of a rank's queries, and none by two ranks unless copies are allowed?
bool key_values_fit(const model_spec& m, num parts, bool copies) {
  const num heads = m.num_attention_heads, kv_heads = m.num_key_value_heads;
  // Without a cut of queries nobody reads them: then whole heads are to be dealt out.
  if (!deals(heads, kv_heads) || !deals(heads, parts) || heads > walkable)
    return deals(kv_heads, parts) || (copies && deals(parts, kv_heads));
  std::set<std::size_t> read_by_rank;
  std::set<num> queries_of_head;
  std::map<num, num> readers;
  for (num rank = 0; rank < parts; ++rank) {
    std::map<num, num> queries;
    for (num head = rank * (heads / parts); head < (rank + 1) * (heads / parts); ++head)
      ++queries[head / (heads / kv_heads)];
    read_by_rank.insert(queries.size());
    for (const auto& [kv_head, n] : queries) queries_of_head.insert(n), ++readers[kv_head];
  }
  bool shared = false;
  for (const auto& [kv_head, n] : readers) shared = shared || n > 1;
  return read_by_rank.size() == 1 && queries_of_head.size() == 1 && (!shared || copies);
}

/// all_reduce adds up over tp what the ranks of a tp group contribute. Does each of them hold every slice of every
/// expert group equally often, so that nothing is missing and nothing added twice?
bool tensor_groups_hold_all_experts(const plan_spec& p) {
  const num slices = p.ep * p.etp;
  if (slices > p.tp) return false;
  for (num first = 0; first < expert_view_ranks(p); first += p.tp) {
    std::map<num, num> holders;
    for (num rank = first; rank < first + p.tp; ++rank) ++holders[rank % slices];
    for (num slice = 0; slice < slices; ++slice)
      if (holders[slice] != p.tp / slices || holders[slice] * slices != p.tp) return false;
  }
  return true;
}

/// Is that module of a layer whole on every rank? The last override that names it says so.
bool whole(const plan_spec& p, parameter_kind kind, num layer) {
  bool so = false;
  for (const module_override& o : p.modules)
    if ((o.modules >> static_cast<int>(kind) & 1) != 0 && (o.layer < 0 || o.layer == layer))
      so = o.style == module_style::replicated;
  return so;
}
num walked_layers(const question& q) { return std::min<num>(q.model.num_hidden_layers, 512); }
/// Does any layer, of experts or dense, cut its feed-forward modules?
bool cuts(const question& q, bool experts) {
  for (num layer = 0; layer < walked_layers(q); ++layer)
    if (has_experts(q.model, layer) == experts &&
        !whole(q.plan, experts ? parameter_kind::experts_gate_up : parameter_kind::mlp_gate, layer))
      return true;
  return false;
}
bool cuts_vocabulary(const question& q) {
  return !whole(q.plan, parameter_kind::embed_tokens, -1) ||
         (!q.model.tie_word_embeddings && !whole(q.plan, parameter_kind::lm_head, -1));
}
/// Is there a layer of which `so(ranks over which tp cuts its heads, those and the ranks that trade for heads)`?
template <class F>
bool in_some_layer(const question& q, F&& so) {
  std::set<std::pair<num, num>> cuts;
  for (num layer = 0; layer < (q.plan.modules.empty() ? 1 : walked_layers(q)); ++layer) {
    num traders = ulysses(q.plan);
    for (const module_override& o : q.plan.modules) {
      if ((o.modules >> 31 & 1) == 0 || (o.layer >= 0 && o.layer != layer)) continue;
      traders = o.style == module_style::ulysses ? q.plan.cp : o.style == module_style::planned ? ulysses(q.plan) : 1;
    }
    const num tensor = whole(q.plan, parameter_kind::q_proj, layer) ? 1 : q.plan.tp;
    cuts.insert({tensor, tensor * traders});
  }
  return std::any_of(cuts.begin(), cuts.end(), [&](const auto& cut) { return so(cut.first, cut.second); });
}
/// Are some of these modules whole and others not?
bool mixed(const question& q, std::initializer_list<parameter_kind> kinds, num layer) {
  std::set<bool> seen;
  for (parameter_kind kind : kinds) seen.insert(whole(q.plan, kind, layer));
  return seen.size() == 2;
}

num micro(const question& q) { return q.batch.micro_batches == 0 ? q.plan.pp : q.batch.micro_batches; }
bool has_batch(const question& q) {
  for (num n : {q.batch.length, q.batch.rows, q.batch.micro_batches})
    if (n < 0 || n > most) return false;
  return true;
}
/// Stages there are; 0 when the schedule does not say.
num stages(const plan_spec& p) {
  const bool interleaved = p.schedule == schedule_kind::interleaved;
  if (interleaved ? p.virtual_stages < 2 || p.virtual_stages > most : p.virtual_stages != 1) return 0;
  return in_range(p.pp) ? p.pp * p.virtual_stages : 0;
}
bool listable(const question& q) { return has_ranks(q) && stages(q.plan) >= 1 && stages(q.plan) <= 128; }

/// For every rule that refuses, by its name: is this impossible? Each is false where it makes no sense to ask.
const std::map<std::string, bool (*)(const question&)> impossible = {
    {"every_degree_is_in_range",
     [](const question& q) {
       for (num d : degrees(q.plan))
         if (!in_range(d)) return true;
       return false;
     }},
    {"product_of_degrees_is_in_range",
     [](const question& q) {
       for (num d : degrees(q.plan))
         if (!in_range(d)) return false;
       return !has_ranks(q);
     }},
    {"world_is_the_product_of_degrees",
     [](const question& q) { return q.world != 0 && has_ranks(q) && q.world != ranks(q.plan); }},
    {"expert_degrees_divide_the_ranks_below_replicas",
     [](const question& q) {
       if (!has_ranks(q)) return false;
       // efsdp, the first axis of experts, would not be whole.
       const num all = expert_view_ranks(q.plan);
       if (all > walkable) return all / q.plan.ep / q.plan.etp * q.plan.ep * q.plan.etp != all;
       if (q.plan.ep > all || q.plan.etp > all) return true;
       for (num efsdp = 1; efsdp <= all; ++efsdp)
         if (efsdp * q.plan.ep * q.plan.etp == all) return false;
       return true;
     }},
    {"every_model_size_is_in_range", [](const question& q) { return !has_sizes(q.model); }},
    {"num_layers_fits_the_layer_set",
     [](const question& q) { return has_sizes(q.model) && q.model.num_hidden_layers > 512; }},
    {"heads_divide_over_kv_heads",
     [](const question& q) {
       return has_sizes(q.model) && !deals(q.model.num_attention_heads, q.model.num_key_value_heads);
     }},
    {"head_dim_is_even", [](const question& q) { return has_sizes(q.model) && (q.model.head_dim & 1) != 0; }},
    {"heads_divide_over_tensor_and_ulysses",
     [](const question& q) {
       return has_ranks(q) && has_sizes(q.model) && ulysses(q.plan) > 0 &&
              in_some_layer(q, [&](num, num all) { return !deals(q.model.num_attention_heads, all); });
     }},
    {"kv_heads_divide_over_tensor",
     [](const question& q) {
       return has_ranks(q) && has_sizes(q.model) &&
              in_some_layer(q, [&](num tensor, num) { return !key_values_fit(q.model, tensor, q.plan.kv_replicate); });
     }},
    {"kv_heads_divide_over_tensor_and_ulysses",
     [](const question& q) {
       return has_ranks(q) && has_sizes(q.model) && ulysses(q.plan) > 0 &&
              in_some_layer(q, [&](num, num all) { return !key_values_fit(q.model, all, q.plan.kv_replicate); });
     }},
    {"dense_width_divides_over_tensor",
     [](const question& q) {
       return has_ranks(q) && layers_of_kind(q.model, false) > 0 &&
              (!in_range(q.model.intermediate_size) ||
               (cuts(q, false) && !deals(q.model.intermediate_size, q.plan.tp)));
     }},
    {"vocabulary_divides_over_tensor",
     [](const question& q) {
       return has_ranks(q) && has_sizes(q.model) && !q.plan.vocab_pad && cuts_vocabulary(q) &&
              !deals(q.model.vocab_size, q.plan.tp);
     }},
    {"ulysses_times_ring_is_the_context_degree",
     [](const question& q) { return in_range(q.plan.cp) && ulysses(q.plan) == 0; }},
    {"the_layout_cuts_the_row", [](const question& q) { return q.plan.layout == layout_kind::full && q.plan.cp != 1; }},
    {"batch_sizes_are_in_range", [](const question& q) { return !has_batch(q); }},
    {"documents_fill_the_row",
     [](const question& q) {
       num tokens = 0;
       for (num d : q.batch.documents) {
         if (!in_range(d)) return true;
         tokens += d;
       }
       return !q.batch.documents.empty() && (tokens > most || (q.batch.length != 0 && tokens != q.batch.length));
     }},
    {"rows_divide_over_data_and_micro_batches",
     [](const question& q) {
       return has_ranks(q) && has_batch(q) && q.batch.rows != 0 &&
              !deals(q.batch.rows, q.plan.dp_replicate * q.plan.fsdp * micro(q));
     }},
    {"virtual_stages_belong_to_interleaved",
     [](const question& q) {
       const num v = q.plan.virtual_stages;
       return q.plan.schedule == schedule_kind::interleaved ? v < 2 || v > most : v != 1;
     }},
    {"num_stages_fits_the_stage_list", [](const question& q) { return has_ranks(q) && stages(q.plan) > 128; }},
    {"even_stages_divide_the_layers",
     [](const question& q) {
       return listable(q) && has_sizes(q.model) && q.plan.stages.empty() &&
              !deals(q.model.num_hidden_layers, stages(q.plan));
     }},
    {"one_listed_stage_per_stage",
     [](const question& q) {
       return listable(q) && !q.plan.stages.empty() && static_cast<num>(q.plan.stages.size()) != stages(q.plan);
     }},
    {"listed_stages_add_up_to_the_layers",
     [](const question& q) {
       if (!listable(q) || !has_sizes(q.model) || q.plan.stages.empty()) return false;
       num left = q.model.num_hidden_layers;
       for (num s : q.plan.stages) {
         if (s < 0 || s > left) return true;
         left -= s;
       }
       return left != 0;
     }},
    {"micro_batches_fill_the_rounds",
     [](const question& q) {
       return has_ranks(q) && has_batch(q) && q.plan.schedule == schedule_kind::interleaved &&
              !deals(micro(q), q.plan.pp);
     }},
    {"expert_counts_are_in_range",
     [](const question& q) {
       const model_spec& m = q.model;
       return m.num_experts < 0 || m.num_experts > most || m.sliding_window < 0 ||
              (m.num_experts > 0 && m.decoder_sparse_step < 1);
     }},
    {"experts_per_token_fit_the_experts",
     [](const question& q) {
       return has_experts(q) && (q.model.num_experts_per_tok < 1 || q.model.num_experts_per_tok > q.model.num_experts);
     }},
    {"expert_width_divides_over_expert_tensor",
     [](const question& q) {
       return has_ranks(q) && has_experts(q) &&
              (!in_range(q.model.moe_intermediate_size) ||
               (cuts(q, true) && !deals(q.model.moe_intermediate_size, q.plan.etp)));
     }},
    {"experts_divide_over_expert_degree",
     [](const question& q) {
       return has_ranks(q) && has_experts(q) && !q.plan.expert_pad && cuts(q, true) &&
              !deals(q.model.num_experts, q.plan.ep);
     }},
    {"all_reduce_experts_stay_in_the_tensor_group",
     [](const question& q) {
       if (!has_ranks(q) || !has_experts(q) || q.plan.dispatch != dispatch_kind::all_reduce) return false;
       if (!cuts(q, true)) return false;
       if (expert_view_ranks(q.plan) > walkable) return !deals(q.plan.tp, q.plan.ep * q.plan.etp);
       return !tensor_groups_hold_all_experts(q.plan);
     }},
    {"overrides_name_modules_of_the_model",
     [](const question& q) {
       if (!has_sizes(q.model) || q.model.num_hidden_layers > 512) return false;
       for (const module_override& o : q.plan.modules) {
         using enum parameter_kind;
         const auto names_one = [&](std::initializer_list<parameter_kind> kinds) {
           return std::any_of(kinds.begin(), kinds.end(),
                              [&](parameter_kind k) { return (o.modules >> static_cast<int>(k) & 1) != 0; });
         };
         bool found =
             o.layer < 0 && (names_one({embed_tokens}) || (names_one({lm_head}) && !q.model.tie_word_embeddings));
         for (num layer = 0; layer < q.model.num_hidden_layers; ++layer)
           if (o.layer < 0 || o.layer == layer)
             found = found || (o.modules >> 31 & 1) != 0 || names_one({q_proj, k_proj, v_proj, o_proj}) ||
                     (has_experts(q.model, layer) ? names_one({experts_gate_up, experts_down})
                                                  : names_one({mlp_gate, mlp_up, mlp_down}));
         if (!found) return true;
       }
       return false;
     }},
    {"modules_of_a_block_are_cut_together",
     [](const question& q) {
       using enum parameter_kind;
       for (num layer = 0; layer < walked_layers(q); ++layer) {
         if (mixed(q, {q_proj, k_proj, v_proj, o_proj}, layer)) return true;
         if (has_experts(q.model, layer) ? mixed(q, {experts_gate_up, experts_down}, layer)
                                         : mixed(q, {mlp_gate, mlp_up, mlp_down}, layer))
           return true;
       }
       return false;
     }},
};

/// The rules that refuse, all of them, and those broken.
template <class... Rules>
std::set<std::string> refusing(list<Rules...>) {
  std::set<std::string> out;
  ((Rules::kind != rule_kind::advice ? (void)out.insert(std::string(diag::type_name<Rules>())) : void()), ...);
  return out;
}
std::set<std::string> broken_by(const question& q) {
  std::set<std::string> out;
  check(q, [&](const violation& v) { out.insert(std::string(v.rule)); });
  return out;
}
std::set<std::string> impossible_in(const question& q) {
  std::set<std::string> out;
  for (const auto& [rule, so] : impossible)
    if (so(q)) out.insert(rule);
  return out;
}

TEST_CASE("there is arithmetic for every rule that refuses") {
  std::set<std::string> known;
  for (const auto& [rule, so] : impossible) known.insert(rule);
  CHECK(known == refusing(builtin_rules{}));
}

TEST_CASE("every refusal is right, for at least fifty samples of every rule") {
  generator g(20240607);
  std::map<std::string, int> seen;
  for (int i = 0; i < 40000; ++i) {
    const question q = i % 3 == 0 ? g.possible() : g.disturbed();
    for (const std::string& rule : broken_by(q)) {
      ++seen[rule];
      const auto so = impossible.find(rule);
      if (so == impossible.end() || so->second(q)) continue;
      INFO(rule << ": " << describe(q));
      CHECK(so->second(q));
    }
  }
  for (const auto& entry : impossible) {
    CAPTURE(entry.first);
    CHECK(seen[entry.first] >= 50);
  }
}

TEST_CASE("what is called legal is possible, and what is refused is not") {
  int accepted = 0, refused = 0;
  for (std::uint64_t seed = 1; seed <= tests::num_sampled; ++seed) {
    const question q = tests::sampled_question(seed);
    const std::set<std::string> why = impossible_in(q);
    ++(why.empty() ? accepted : refused);
    if (legal(q) == why.empty()) continue;
    INFO("seed ", seed, ": ", describe(q));
    CHECK(broken_by(q) == why);  // prints both
    CHECK(legal(q) == why.empty());
  }
  MESSAGE(accepted, " questions are possible and called legal, ", refused, " are neither");
  CHECK(accepted > 2000);
  CHECK(refused > 2000);
}

/// The name of a rule, and of those it presumes, and of those that they presume.
using presumptions = std::map<std::string, std::set<std::string>>;
template <class Rule, class... Presumed>
void add_presumed(presumptions& out, list<Presumed...>) {
  (out[std::string(diag::type_name<Rule>())].insert(std::string(diag::type_name<Presumed>())), ...);
}
template <class... Rules>
presumptions presumed_by(list<Rules...>) {
  presumptions out;
  const auto add = [&]<class Rule>(list<Rule>) {
    if constexpr (requires { typename Rule::presumes; }) add_presumed<Rule>(out, typename Rule::presumes{});
  };
  (add(list<Rules>{}), ...);
  for (bool grown = true; grown;) {
    grown = false;
    for (auto& [rule, presumed] : out)
      for (const std::string& other : std::set<std::string>(presumed))
        for (const std::string& further : out[other]) grown = presumed.insert(further).second || grown;
  }
  return out;
}

TEST_CASE("everything impossible is reported by its own rule, unless that presumes another that is broken") {
  presumptions presumed = presumed_by(builtin_rules{});
  generator g(11);
  for (int i = 0; i < 40000; ++i) {
    const question q = i % 2 == 0 ? g.possible() : g.disturbed();
    const std::set<std::string> broken = broken_by(q), why = impossible_in(q);
    CHECK(std::includes(why.begin(), why.end(), broken.begin(), broken.end()));
    for (const std::string& rule : why) {
      if (broken.count(rule)) continue;
      bool excused = false;
      for (const std::string& other : presumed[rule]) excused = excused || why.count(other);
      if (excused) continue;
      INFO(rule << ": " << describe(q));
      CHECK(excused);
    }
  }
}

// ---- the refusals that look too strict, or not strict enough, by hand

TEST_CASE(
    "tp 6, U 2 of 12 heads and 4 key/value heads: 12 ranks could share 4 heads, but 6 have no equal cut of k_proj") {
  question q;
  q.model.num_attention_heads = 12;
  q.model.num_key_value_heads = 4;
  q.model.vocab_size = 12;
  q.model.intermediate_size = 12;
  q.plan.tp = 6;
  q.plan.cp = 2;
  q.plan.kv_replicate = true;
  CHECK(key_values_fit(q.model, 12, true));
  CHECK(!key_values_fit(q.model, 6, true));
  CHECK(broken_by(q) == std::set<std::string>{"kv_heads_divide_over_tensor"});
  q.plan.tp = 4;
  q.plan.cp = 3;
  CHECK(legal(q));
}

TEST_CASE("all_reduce over six tensor ranks and expert groups of four: two contributions would be added twice") {
  question q;
  q.model.num_experts = 4;
  q.model.num_experts_per_tok = 1;
  q.model.num_attention_heads = q.model.num_key_value_heads = 6;
  q.model.vocab_size = 6;
  q.plan.tp = 6;
  q.plan.fsdp = 2;
  q.plan.ep = 4;
  q.plan.dispatch = dispatch_kind::all_reduce;
  CHECK(!tensor_groups_hold_all_experts(q.plan));
  CHECK(broken_by(q) == std::set<std::string>{"all_reduce_experts_stay_in_the_tensor_group"});
  q.plan.dispatch = dispatch_kind::all_gather;
  CHECK(legal(q));
  q.plan.dispatch = dispatch_kind::all_reduce;
  q.plan.ep = 3;
  q.plan.expert_pad = true;
  CHECK(legal(q));
}

TEST_CASE("what other systems refuse and arithmetic allows is legal") {
  question q;
  q.model.num_hidden_layers = 5;
  q.model.num_attention_heads = 8;
  q.model.num_key_value_heads = 2;
  q.model.vocab_size = 13;
  q.model.num_experts = 5;
  q.model.num_experts_per_tok = 2;
  q.model.moe_intermediate_size = 6;
  q.plan.tp = 4;
  q.plan.cp = 2;
  q.plan.ep = 8;
  q.plan.kv_replicate = q.plan.vocab_pad = q.plan.expert_pad = true;
  q.plan.sequence_parallel = true;
  q.plan.layout = layout_kind::zigzag;
  q.batch.length = 7;  // odd: padded, not refused
  CHECK(broken_by(q) == std::set<std::string>{});
  q.plan.pp = 3;
  CHECK(broken_by(q) == std::set<std::string>{"even_stages_divide_the_layers"});
  q.plan.stages.push_back(0);  // the embedding alone
  q.plan.stages.push_back(5);
  q.plan.stages.push_back(0);  // the head alone
  CHECK(legal(q));
}

}  // namespace
