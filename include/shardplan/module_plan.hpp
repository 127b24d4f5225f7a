// SPDX-License-Identifier: Apache-2.0
// Which style cuts which module: a table from name patterns to styles, one for tensor parallelism and one for experts.
// Ownership and execution read the table; nothing else knows how a module is cut.
#ifndef SHARDPLAN_MODULE_PLAN_HPP
#define SHARDPLAN_MODULE_PLAN_HPP

#include <initializer_list>  // initializer_list
#include <shardplan/parameters.hpp>

namespace shardplan {

enum class module_style : unsigned char {
  replicated,      ///< whole on every rank
  colwise,         ///< output features cut: rows of the weight, and the bias
  rowwise,         ///< input features cut: columns of the weight; a sum is owed, the bias is added once after it
  vocabulary,      ///< rows of the vocabulary cut
  grouped,         ///< whole experts cut over ep, none inside
  packed_colwise,  ///< experts over ep; gate rows and up rows each cut over etp
  grouped_rowwise  ///< experts over ep; input features cut over etp, a sum is owed
};

constexpr text_view name_of(module_style s) {
  constexpr text_view names[] = {"replicated", "colwise",        "rowwise",        "vocabulary",
                                 "grouped",    "packed_colwise", "grouped_rowwise"};
  return names[static_cast<std::size_t>(s)];
}

struct module_rule {
  text_view pattern;  ///< dotted name of a module; `*` stands for one component
  module_style style;
};

/// How the Qwen3-MoE family is cut unless a caller says otherwise. The last matching pattern counts.
inline constexpr module_rule qwen3_moe_module_plan[] = {
    {"model.embed_tokens", module_style::vocabulary},
    {"model.layers.*.self_attn.q_proj", module_style::colwise},
    {"model.layers.*.self_attn.k_proj", module_style::colwise},
    {"model.layers.*.self_attn.v_proj", module_style::colwise},
    {"model.layers.*.self_attn.o_proj", module_style::rowwise},
    {"model.layers.*.mlp.gate_proj", module_style::colwise},
    {"model.layers.*.mlp.up_proj", module_style::colwise},
    {"model.layers.*.mlp.down_proj", module_style::rowwise},
    {"model.layers.*.mlp.experts.gate_up_proj", module_style::packed_colwise},
    {"model.layers.*.mlp.experts.down_proj", module_style::grouped_rowwise},
    {"lm_head", module_style::vocabulary},
};

/// Does a pattern match a dotted name, component by component?
constexpr bool matches(text_view pattern, text_view name) {
  while (true) {
    const text_view p = pattern.substr(0, pattern.find('.')), n = name.substr(0, name.find('.'));
    if (p != "*" && p != n) return false;
    const bool pattern_ends = p.size() == pattern.size(), name_ends = n.size() == name.size();
    if (pattern_ends || name_ends) return pattern_ends && name_ends;
    pattern.remove_prefix(p.size() + 1);
    name.remove_prefix(n.size() + 1);
  }
}

/// The module a parameter belongs to: its name without `.weight` or `.bias`.
constexpr fixed_text<96> module_of(const parameter& p) {
  const fixed_text<96> name = name_of(p);
  text_view v = name.view();
  for (text_view leaf : {text_view(".weight"), text_view(".bias")})
    if (v.ends_with(leaf)) v.remove_suffix(leaf.size());
  return fixed_text<96>(v);
}

/// Style of the module that holds `p`; modules that no pattern names are replicated. What the patterns say, by kind: a
/// test compares the two, and matching names in every question would cost more than all the rest of it.
constexpr module_style style_of(const parameter& p) {
  switch (p.kind) {
    case parameter_kind::embed_tokens:
    case parameter_kind::lm_head:
      return module_style::vocabulary;
    case parameter_kind::q_proj:
    case parameter_kind::k_proj:
    case parameter_kind::v_proj:
    case parameter_kind::q_bias:
    case parameter_kind::k_bias:
    case parameter_kind::v_bias:
    case parameter_kind::mlp_gate:
    case parameter_kind::mlp_up:
      return module_style::colwise;
    case parameter_kind::o_proj:
    case parameter_kind::o_bias:
    case parameter_kind::mlp_down:
      return module_style::rowwise;
    case parameter_kind::experts_gate_up:
      return module_style::packed_colwise;
    case parameter_kind::experts_down:
      return module_style::grouped_rowwise;
    default:
      return module_style::replicated;
  }
}

}  // namespace shardplan
#endif  // SHARDPLAN_MODULE_PLAN_HPP
