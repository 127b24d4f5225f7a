// SPDX-License-Identifier: Apache-2.0
// The legal plan nearest to one that is not: the same world, the fewest changed degrees. For run time: it may be
// evaluated at compile time, but larger worlds exceed what compilers are willing to do.
#ifndef SHARDPLAN_NEAREST_HPP
#define SHARDPLAN_NEAREST_HPP

#include <shardplan/check.hpp>
#include <shardplan/plan_parse.hpp>

namespace shardplan {

struct nearest_plan {
  bool found = false;
  bool exhausted = true;  ///< false: nothing was found within the work allowed, and there may still be one
  num changed_degrees = 0;
  num added_options = 0;  ///< kv_replicate, vocab_pad, expert_pad, listed stages
  plan_spec plan{};
};

namespace detail {

template <class Rules>
class nearest_search {
 public:
  constexpr nearest_search(const question& q, num world, num work) : q_(q), asked_(q.plan), world_(world), work_(work) {
    q_.world = world;
    // Every degree divides the world, those of experts too. Pairs of divisors, small ones ascending, then the large.
    for (num d = 1; d <= world / d; ++d)
      if (world % d == 0) divisors_.push_back(d);
    for (std::size_t i = divisors_.size(); i-- > 0;)
      if (world / divisors_[i] != divisors_[i]) divisors_.push_back(world / divisors_[i]);
  }

  constexpr nearest_plan search() {
    for (num changes = 0; changes <= static_cast<num>(num_plan_axes) && work_ > 0; ++changes) {
      best_ = {};
      walk(0, world_, changes);
      if (best_.found) {
        best_.changed_degrees = changes;
        return best_;
      }
    }
    best_ = {};
    best_.exhausted = work_ > 0;
    return best_;
  }

 private:
  /// Chooses the degree of axis `index` and those after it, with exactly `changes` of them changed, in ascending
  /// order: tuples come lexicographically. `rest` is what dense degrees still have to make up, or expert ones may.
  /// False once nothing better can follow.
  constexpr bool walk(std::size_t index, num rest, num changes) {
    if (index == num_plan_axes) return !propose();
    if (index == num_dense_axes) rest = q_.plan.fsdp * q_.plan.cp * q_.plan.tp;
    const auto [name, degree] = plan_axes[index];
    const num left = static_cast<num>(num_plan_axes - index) - 1;
    for (const num d : divisors_) {
      if (d > rest) break;
      if (--work_ <= 0) return false;
      if (rest % d != 0 || (index == num_dense_axes - 1 && d != rest)) continue;
      const num changes_left = changes - (d == asked_.*degree ? 0 : 1);
      if (changes_left < 0 || changes_left > left) continue;
      q_.plan.*degree = d;
      if (!walk(index + 1, rest / d, changes_left)) return false;
    }
    return true;
  }

  /// Tries the degrees chosen with the options asked, then with the fewest added. True when nothing can be better.
  constexpr bool propose() {
    keep_options();
    if (legal(q_, Rules{})) return record(0);
    const num added = add_options();
    if (added > 0 && (!best_.found || added < best_.added_options) && legal(q_, Rules{})) record(added);
    return false;
  }
  constexpr bool record(num added) {
    best_.found = true;
    best_.added_options = added;
    best_.plan = q_.plan;
    return true;
  }

  /// The options asked, but for what the degrees chosen leave no choice in: stages listed for another pp are dropped.
  constexpr void keep_options() {
    plan_spec kept = asked_;
    for (const plan_axis& a : plan_axes) kept.*a.degree = q_.plan.*a.degree;
    if (static_cast<num>(kept.stages.size()) != num_stages(kept) || sum_of_stages(kept) != q_.model.num_hidden_layers)
      kept.stages = {};
    if (kept.method == cp_method::ulysses_ring && checked_product(kept.method_ulysses, kept.method_ring) != kept.cp)
      split_context(kept);
    q_.plan = kept;
  }
  /// U as large as heads allow, in whole heads of queries, keys and values; R the rest.
  constexpr void split_context(plan_spec& p) const {
    const auto whole = [&](num ulysses) {
      const num cut = p.tp * ulysses, kv_heads = q_.model.num_key_value_heads;
      return p.cp % ulysses == 0 && q_.model.num_attention_heads % cut == 0 &&
             (kv_heads % cut == 0 || (p.kv_replicate && cut % kv_heads == 0));
    };
    p.method_ulysses = 1;
    for (const num d : divisors_)
      if (d <= p.cp && whole(d)) p.method_ulysses = d;
    p.method_ring = p.cp / p.method_ulysses;
  }
  /// Adds the options without which the degrees chosen cannot be legal; how many.
  constexpr num add_options() {
    plan_spec& p = q_.plan;
    const model_spec& m = q_.model;
    num added = 0;
    const auto add = [&](bool& flag, bool needed) {
      if (flag || !needed) return;
      flag = true;
      ++added;
    };
    add(p.kv_replicate, m.num_key_value_heads % p.tp != 0 || m.num_key_value_heads % (p.tp * ulysses_degree(p)) != 0);
    add(p.vocab_pad, m.vocab_size % p.tp != 0);
    add(p.expert_pad, m.num_experts % p.ep != 0);
    if (p.stages.empty() && m.num_hidden_layers % num_stages(p) != 0) {
      p.stages = nearest_even_stages(m.num_hidden_layers, num_stages(p));
      ++added;
    }
    return added;
  }

  question q_;  // with the plan under trial
  plan_spec asked_;
  num world_;
  num work_;
  fixed_vector<num, 1536> divisors_{};  // no number below 2^31 has more
  nearest_plan best_{};
};

}  // namespace detail

/// The legal plan nearest to `q.plan` on `q.world` ranks, or on as many as its degrees multiply to. Nearest is, in this
/// order: fewest changed degrees among pp, dp_replicate, fsdp, cp, tp, ep, etp; fewest options added (a flag or listed
/// stages, only where the degrees need them); the lexicographically first tuple of degrees in that order of axes.
/// Options stay as asked: stages that no longer fit are dropped, and U x R is split anew when cp no longer is U * R.
/// `work` bounds the divisors tried, a second at most.
template <class Rules = builtin_rules>
constexpr nearest_plan nearest_legal_plan(const question& q, Rules = {}, num work = num{1} << 21) {
  // A model or a batch that breaks a rule on one rank breaks it on all: no plan helps.
  question alone = q;
  alone.plan = {};
  alone.world = 0;
  alone.batch.rows = alone.batch.micro_batches = 0;
  if (!legal(alone)) return {};
  num world = q.world;
  if (world == 0) {
    world = 1;
    for (std::size_t i = 0; i < num_dense_axes && world >= 1 && world <= max_degree; ++i)
      world = checked_product(world, q.plan.*plan_axes[i].degree);
  }
  if (world < 1 || world > max_degree || q.plan.virtual_stages < 1 || q.plan.virtual_stages > max_degree) return {};
  return detail::nearest_search<Rules>(q, world, work).search();
}

}  // namespace shardplan
#endif  // SHARDPLAN_NEAREST_HPP
