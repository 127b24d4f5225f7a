// SPDX-License-Identifier: Apache-2.0
// Every legal plan of a world, lazily. What one asks for: for (const plan_choice& c : every_legal_plan(model, 8)) ...
// Outside the umbrella, because it needs range-v3. It may be slow to compile; the core never includes it.
//
// Crossed are: all degrees (pp <= layers; ep * etp divides fsdp * cp * tp); under cp > 1 every attention method, with
// every 1 < U < cp for Ulysses x ring, and the layouts contiguous and zigzag; under tp > 1 sequence parallelism off and
// on; where experts are cut every dispatch kind. kv_replicate, vocab_pad, expert_pad and listed stages are added only
// where the degrees need them, and options without effect keep their default, so that no two plans differ in name only.
#ifndef SHARDPLAN_SEARCH_HPP
#define SHARDPLAN_SEARCH_HPP

#include <algorithm>         // max, sort
#include <cstdint>           // uint64_t
#include <initializer_list>  // initializer_list
#include <memory>            // shared_ptr
#include <range/v3/range/conversion.hpp>
#include <range/v3/view/cartesian_product.hpp>
#include <range/v3/view/filter.hpp>
#include <range/v3/view/for_each.hpp>
#include <range/v3/view/indices.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>
#include <shardplan/check.hpp>
#include <shardplan/rules.hpp>
#include <utility>  // move, pair
#include <vector>

namespace shardplan {

/// A plan and the number of micro-batches to run it with.
struct plan_choice {
  plan_spec plan{};
  num micro_batches = 1;
  friend constexpr bool operator==(const plan_choice&, const plan_choice&) = default;
};

struct search_options {
  engine_kind engine = engine_kind::none;  ///< whose limits count besides the mathematics
  bool with_state = true;       ///< vary zero stage, schedule and micro-batches; else zero3, 1f1b, pp micro-batches
  num fully_crossed_up_to = 4;  ///< largest world in which these three are crossed with everything else
};

namespace detail {

namespace views = ::ranges::views;

/// A well-mixed number that depends on every bit of `x`: splitmix64 (Steele, Lea, Flood 2014).
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline auto divisors(num n) {
  return views::closed_iota(num{1}, n) | views::filter([n](num d) { return n % d == 0; });
}

/// `p` with the flags and the stage list that its degrees, its method and its schedule cannot do without.
constexpr plan_spec with_needed_options(const model_spec& m, plan_spec p) {
  const num kv_heads = m.num_key_value_heads, stages = num_stages(p);
  p.kv_replicate = kv_heads % p.tp != 0 || kv_heads % (p.tp * ulysses_degree(p)) != 0;
  p.vocab_pad = m.vocab_size % p.tp != 0;
  p.expert_pad = num_moe_layers(m) > 0 && m.num_experts % p.ep != 0;
  p.stages =
      m.num_hidden_layers % stages == 0 ? stage_layer_counts{} : nearest_even_stages(m.num_hidden_layers, stages);
  return p;
}

constexpr bool legal_choice(const model_spec& m, const plan_choice& c, num world, engine_kind engine) {
  question q;
  q.model = m;
  q.plan = c.plan;
  q.batch.micro_batches = c.micro_batches;
  q.world = world;
  q.engine = engine;
  return legal(q);
}

/// How attention crosses the cp ranks, as a plan with nothing else in it.
inline std::vector<plan_spec> context_methods(num cp) {
  std::vector<plan_spec> out(1);
  if (cp == 1) return out;
  for (cp_method method : {cp_method::ring, cp_method::all_gather}) out.emplace_back().method = method;
  for (num ulysses = 2; ulysses < cp; ++ulysses) {
    if (cp % ulysses != 0) continue;
    plan_spec& p = out.emplace_back();
    p.method = cp_method::ulysses_ring;
    p.method_ulysses = ulysses;
    p.method_ring = cp / ulysses;
  }
  return out;
}

/// The legal plans of one tuple of degrees, zero stage and schedule aside.
inline std::vector<plan_spec> cuts_of(const model_spec& m, const plan_spec& degrees, num world, engine_kind engine) {
  using layouts = std::vector<layout_kind>;
  using kinds = std::vector<dispatch_kind>;
  const bool experts_are_cut = num_moe_layers(m) > 0 && degrees.ep * degrees.etp > 1;
  const std::vector<plan_spec> methods = context_methods(degrees.cp);
  const auto layout = degrees.cp > 1 ? layouts{layout_kind::contiguous, layout_kind::zigzag} : layouts{degrees.layout};
  const auto sequence_parallel = degrees.tp > 1 ? std::vector<int>{0, 1} : std::vector<int>{0};
  const auto dispatch = experts_are_cut
                            ? kinds{dispatch_kind::dispatch, dispatch_kind::all_reduce, dispatch_kind::all_gather}
                            : kinds{degrees.dispatch};
  return views::cartesian_product(methods, layout, sequence_parallel, dispatch) |
         views::transform([&](const auto& chosen) {
           const auto& [method, layout_chosen, sp, kind] = chosen;
           plan_spec p = degrees;
           p.method = method.method;
           p.method_ulysses = method.method_ulysses;
           p.method_ring = method.method_ring;
           p.layout = layout_chosen;
           p.sequence_parallel = sp != 0;
           p.dispatch = kind;
           return with_needed_options(m, p);
         }) |
         views::filter([&](const plan_spec& p) {
           return legal_choice(m, {p, p.pp}, world, engine);
         }) |
         ::ranges::to<std::vector>();
}

/// The zero stages that differ under these degrees: one where no state is sharded, that is where one rank makes up the
/// whole of fsdp_cp, and of efsdp too if there are experts. tp alone makes efsdp larger than 1.
inline std::vector<zero_stage> zero_stages(const model_spec& m, const plan_spec& degrees) {
  const bool sharded = degrees.fsdp * degrees.cp > 1 || (num_moe_layers(m) > 0 && efsdp_degree(degrees) > 1);
  if (!sharded) return {zero_stage::zero3};
  return {zero_stage::zero3, zero_stage::zero1, zero_stage::zero2};
}

/// Schedule, virtual stages and micro-batches {1, pp}, of which the interleaved schedule allows pp alone.
struct pipeline_choice {
  schedule_kind schedule = schedule_kind::one_f_one_b;
  num virtual_stages = 1, micro_batches = 1;
};
inline std::vector<pipeline_choice> pipeline_choices(num pp) {
  if (pp == 1) return {{}};
  std::vector<pipeline_choice> out;
  for (schedule_kind schedule : {schedule_kind::one_f_one_b, schedule_kind::gpipe})
    for (num micro_batches : {num{1}, pp}) out.push_back({schedule, 1, micro_batches});
  if (2 * pp <= static_cast<num>(stage_layer_counts::capacity())) out.push_back({schedule_kind::interleaved, 2, pp});
  return out;
}

/// Everything that is chosen under one tuple of degrees; choice(i) for i below size().
class choices_of_degrees {
 public:
  choices_of_degrees(const model_spec& m, const plan_spec& degrees, num world, const search_options& options)
      : model_(m),
        cuts_(cuts_of(m, degrees, world, options.engine)),
        zeros_(zero_stages(m, degrees)),
        pipelines_(pipeline_choices(degrees.pp)),
        crossed_(world <= options.fully_crossed_up_to) {
    if (!options.with_state) {
      zeros_ = {zero_stage::zero3};
      pipelines_ = {{schedule_kind::one_f_one_b, 1, degrees.pp}};
    }
    for (num degree : {degrees.pp, degrees.dp_replicate, degrees.fsdp, degrees.cp, degrees.tp, degrees.ep, degrees.etp})
      hash_ = mix(hash_ ^ static_cast<std::uint64_t>(degree));
  }

  std::size_t size() const {
    if (crossed_) return cuts_.size() * zeros_.size() * pipelines_.size();
    // Where there are fewer cuts than zero stages or pipelines, cuts come again, so that each of those is met.
    return cuts_.empty() ? 0 : std::max({cuts_.size(), zeros_.size(), pipelines_.size()});
  }
  plan_choice choice(std::size_t i) const {
    if (crossed_) {
      const std::size_t per_cut = zeros_.size() * pipelines_.size();
      return make(cuts_[i / per_cut], zeros_[i / pipelines_.size() % zeros_.size()], pipelines_[i % pipelines_.size()]);
    }
    return make(cuts_[i % cuts_.size()], zeros_[spread(i, zeros_.size(), hash_)],
                pipelines_[spread(i, pipelines_.size(), mix(hash_))]);
  }

 private:
  /// One of n, such that every n neighbours from a multiple of n meet all of them, each n of them in another turn: a
  /// choice of the same period (three dispatch kinds, three zero stages) must not always meet the same one.
  static std::size_t spread(std::size_t i, std::size_t n, std::uint64_t hash) {
    return (i + mix(hash ^ (i / n)) % n) % n;
  }

  plan_choice make(plan_spec p, zero_stage zero, const pipeline_choice& pipeline) const {
    p.zero = zero;
    p.schedule = pipeline.schedule;
    p.virtual_stages = pipeline.virtual_stages;
    return {with_needed_options(model_, p), pipeline.micro_batches};
  }

  model_spec model_;
  std::vector<plan_spec> cuts_;
  std::vector<zero_stage> zeros_;
  std::vector<pipeline_choice> pipelines_;
  bool crossed_;
  std::uint64_t hash_ = 0;
};

}  // namespace detail

/// Every tuple of degrees of `world` ranks for which some plan of the model is legal, as plans with those degrees and
/// nothing else. A lazy range of plan_spec in lexicographic order.
inline auto every_degree_tuple(const model_spec& model, num world, engine_kind engine = engine_kind::none) {
  namespace views = detail::views;
  const auto divisors = [](num n) { return detail::divisors(n); };
  auto dense = views::for_each(divisors(world), [=](num pp) {
    return views::for_each(divisors(world / pp), [=](num dp_replicate) {
      const num inner = world / pp / dp_replicate;  // ranks of the expert view
      return views::for_each(divisors(inner), [=](num fsdp) {
        return views::for_each(divisors(inner / fsdp), [=](num cp) {
          return views::for_each(divisors(inner), [=](num ep) {
            return views::transform(divisors(inner / ep), [=](num etp) {
              plan_spec p;
              p.pp = pp;
              p.dp_replicate = dp_replicate;
              p.fsdp = fsdp;
              p.cp = cp;
              p.tp = inner / fsdp / cp;
              p.ep = ep;
              p.etp = etp;
              return p;
            });
          });
        });
      });
    });
  });
  return std::move(dense) | views::filter([=](const plan_spec& degrees) {
           if (degrees.pp > model.num_hidden_layers) return false;
           // The least demanding options: ring and dispatch ask nothing beyond the degrees.
           plan_spec p = degrees;
           if (p.cp > 1) p.method = cp_method::ring;
           return detail::legal_choice(model, {detail::with_needed_options(model, p), p.pp}, world, engine);
         });
}

/// Every legal plan of `world` ranks: a lazy range of plan_choice, in the order of every_degree_tuple. Zero stage,
/// schedule and micro-batches {1, pp} are crossed with all else in small worlds; in larger ones each plan gets one of
/// each by a hash, so that every tuple of degrees meets every zero stage and every pair of schedule and micro-batches.
inline auto every_legal_plan(const model_spec& model, num world, search_options options = {}) {
  namespace views = detail::views;
  return views::for_each(every_degree_tuple(model, world, options.engine), [=](const plan_spec& degrees) {
    const auto choices = std::make_shared<const detail::choices_of_degrees>(model, degrees, world, options);
    return views::transform(views::indices(choices->size()), [choices](std::size_t i) { return choices->choice(i); });
  });
}

/// At most `count` of these plans, each as likely as any other, in the order of every_legal_plan. The same seed gives
/// the same sample on every machine.
inline std::vector<plan_choice> sample_legal_plans(const model_spec& model, num world, std::size_t count,
                                                   std::uint64_t seed, search_options options = {}) {
  std::vector<std::pair<std::size_t, plan_choice>> kept;  // number in the enumeration, plan
  std::size_t seen = 0;
  for (const plan_choice& c : every_legal_plan(model, world, options)) {
    // The i-th plan takes the place of a kept one with probability count / (i + 1).
    const auto place = static_cast<std::size_t>(detail::mix(seed ^ detail::mix(seen)) % (seen + 1));
    if (kept.size() < count)
      kept.emplace_back(seen, c);
    else if (place < count)
      kept[place] = {seen, c};
    ++seen;
  }
  std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<plan_choice> out;
  for (const auto& [number, choice] : kept) out.push_back(choice);
  return out;
}

}  // namespace shardplan
#endif  // SHARDPLAN_SEARCH_HPP
