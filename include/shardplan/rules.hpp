// SPDX-License-Identifier: Apache-2.0
// All rules. A rule lives in one struct of rules/, and nothing about it is said anywhere else.
#ifndef SHARDPLAN_RULES_HPP
#define SHARDPLAN_RULES_HPP

#include <shardplan/rules/experts.hpp>
#include <shardplan/rules/heads.hpp>
#include <shardplan/rules/mesh.hpp>
#include <shardplan/rules/modules.hpp>
#include <shardplan/rules/pipeline.hpp>
#include <shardplan/rules/sequence.hpp>

namespace shardplan {

namespace detail {
template <class... Lists>
struct joined;
template <class... A>
struct joined<list<A...>> {
  using type = list<A...>;
};
template <class... A, class... B, class... Rest>
struct joined<list<A...>, list<B...>, Rest...> : joined<list<A..., B...>, Rest...> {};
}  // namespace detail

/// One list of the rules of several.
template <class... Lists>
using join = typename detail::joined<Lists...>::type;

/// Every rule of the library, the presumed ones first.
using builtin_rules = join<rule::mesh_rules, rule::model_rules, rule::head_rules, rule::sequence_rules,
                           rule::pipeline_rules, rule::expert_rules, rule::module_rules>;

}  // namespace shardplan
#endif  // SHARDPLAN_RULES_HPP
