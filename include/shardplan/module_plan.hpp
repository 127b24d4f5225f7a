// SPDX-License-Identifier: Apache-2.0
// Which style cuts which module: tables from name patterns to styles, one each for tensor, expert and context
// parallelism, and a caller's overrides, which merge onto them. Ownership, reductions, collectives and execution ask
// here; nothing else knows how a module is cut.
#ifndef SHARDPLAN_MODULE_PLAN_HPP
#define SHARDPLAN_MODULE_PLAN_HPP

#include <cstdint>           // uint32_t
#include <initializer_list>  // initializer_list
#include <shardplan/methods.hpp>
#include <shardplan/parameters.hpp>

namespace shardplan {

enum class module_style : unsigned char {
  replicated,       ///< whole on every rank
  colwise,          ///< tp: output features cut: rows of the weight, and the bias
  rowwise,          ///< tp: input features cut: columns of the weight; a sum is owed, the bias is added once after it
  vocabulary,       ///< tp: rows of the vocabulary cut
  packed_colwise,   ///< ep, etp: experts over ep; gate rows and up rows each cut over etp
  grouped_rowwise,  ///< ep, etp: experts over ep; input features cut over etp, a sum is owed
  planned,          ///< cp: the method that the plan names
  ulysses,          ///< cp: this method, whatever the plan names
  ring,             ///< cp
  all_gather,       ///< cp
};
inline constexpr module_style module_styles[] = {
    module_style::replicated,     module_style::colwise,         module_style::rowwise, module_style::vocabulary,
    module_style::packed_colwise, module_style::grouped_rowwise, module_style::planned, module_style::ulysses,
    module_style::ring,           module_style::all_gather,
};

constexpr text_view name_of(module_style s) {
  constexpr text_view names[] = {"replicated",      "colwise", "rowwise", "vocabulary", "packed_colwise",
                                 "grouped_rowwise", "planned", "ulysses", "ring",       "all_gather"};
  return names[static_cast<std::size_t>(s)];
}
/// Does the style say how context is cut, and not how weights are?
constexpr bool is_of_context(module_style s) { return s >= module_style::planned; }

struct module_rule {
  text_view pattern;  ///< dotted name of a module; `*` stands for one component
  module_style style;
};

// How the families of this library (qwen3_moe, qwen3, mistral) are cut unless a caller says otherwise. What no pattern
// names is replicated.
inline constexpr module_rule tp_module_plan[] = {
    {"model.embed_tokens", module_style::vocabulary},
    {"model.layers.*.self_attn.q_proj", module_style::colwise},
    {"model.layers.*.self_attn.k_proj", module_style::colwise},
    {"model.layers.*.self_attn.v_proj", module_style::colwise},
    {"model.layers.*.self_attn.o_proj", module_style::rowwise},
    {"model.layers.*.mlp.gate_proj", module_style::colwise},
    {"model.layers.*.mlp.up_proj", module_style::colwise},
    {"model.layers.*.mlp.down_proj", module_style::rowwise},
    {"lm_head", module_style::vocabulary},
};
inline constexpr module_rule ep_module_plan[] = {
    {"model.layers.*.mlp.experts.gate_up_proj", module_style::packed_colwise},
    {"model.layers.*.mlp.experts.down_proj", module_style::grouped_rowwise},
};
inline constexpr module_rule cp_module_plan[] = {
    {"model.layers.*.self_attn", module_style::planned},
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

/// Style of the modules that hold parameters of that kind, as the tables say: a test compares the two, and matching
/// names in every question would cost more than all the rest of it.
constexpr module_style default_style(parameter_kind kind) {
  switch (kind) {
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

// ---- overrides

/// Some modules, one bit for each kind of parameter they hold, and one for self_attn as a whole.
using module_set = std::uint32_t;
constexpr module_set bit_of(parameter_kind k) { return module_set{1} << static_cast<unsigned>(k); }
inline constexpr module_set self_attn_bit = module_set{1} << 31;
static_assert(num_parameter_kinds < 31);

/// Another style for some modules: in one layer, or wherever they are.
struct module_override {
  static constexpr int every_layer = -1;
  module_set modules = 0;
  int layer = every_layer;
  module_style style{};

  constexpr bool names(parameter_kind k, num in_layer) const { return names(bit_of(k), in_layer); }
  constexpr bool names(module_set some, num in_layer) const {
    return (modules & some) != 0 && (layer == every_layer || layer == in_layer);
  }
  friend constexpr bool operator==(const module_override&, const module_override&) = default;
};
/// In order: of several for one module, the last one counts. A full list is one that may have lost some.
using module_overrides = fixed_vector<module_override, 25>;

/// Style of the modules of `layer` that hold parameters of that kind.
constexpr module_style style_of(const module_overrides& overrides, parameter_kind kind, num layer) {
  module_style style = default_style(kind);
  for (const module_override& o : overrides)
    if (o.names(kind, layer)) style = o.style;
  return style;
}
/// How attention of `layer` cuts context.
constexpr module_style context_style_of(const module_overrides& overrides, num layer) {
  module_style style = module_style::planned;
  for (const module_override& o : overrides)
    if (o.names(self_attn_bit, layer)) style = o.style;
  return style;
}

namespace detail {

/// The modules that a plan's text names as one, outer ones first. `#` stands for a layer.
struct module_group {
  text_view pattern;
  module_set modules;
};
constexpr module_set bits_of(std::initializer_list<parameter_kind> kinds) {
  module_set bits = 0;
  for (parameter_kind k : kinds) bits |= bit_of(k);
  return bits;
}
inline constexpr module_set q_bits = bits_of({parameter_kind::q_proj, parameter_kind::q_bias}),
                            k_bits = bits_of({parameter_kind::k_proj, parameter_kind::k_bias}),
                            v_bits = bits_of({parameter_kind::v_proj, parameter_kind::v_bias}),
                            o_bits = bits_of({parameter_kind::o_proj, parameter_kind::o_bias}),
                            attention_bits = q_bits | k_bits | v_bits | o_bits,
                            mlp_bits =
                                bits_of({parameter_kind::mlp_gate, parameter_kind::mlp_up, parameter_kind::mlp_down}),
                            expert_bits = bits_of({parameter_kind::experts_gate_up, parameter_kind::experts_down});
inline constexpr module_group module_groups[] = {
    {"model.layers.#", attention_bits | mlp_bits | expert_bits},
    {"model.layers.#.self_attn", attention_bits},
    {"model.layers.#.mlp", mlp_bits | expert_bits},
    {"model.layers.#.mlp.experts", expert_bits},
    {"model.embed_tokens", bit_of(parameter_kind::embed_tokens)},
    {"model.layers.#.self_attn.q_proj", q_bits},
    {"model.layers.#.self_attn.k_proj", k_bits},
    {"model.layers.#.self_attn.v_proj", v_bits},
    {"model.layers.#.self_attn.o_proj", o_bits},
    {"model.layers.#.mlp.gate_proj", bit_of(parameter_kind::mlp_gate)},
    {"model.layers.#.mlp.up_proj", bit_of(parameter_kind::mlp_up)},
    {"model.layers.#.mlp.down_proj", bit_of(parameter_kind::mlp_down)},
    {"model.layers.#.mlp.experts.gate_up_proj", bit_of(parameter_kind::experts_gate_up)},
    {"model.layers.#.mlp.experts.down_proj", bit_of(parameter_kind::experts_down)},
    {"lm_head", bit_of(parameter_kind::lm_head)},
    {"model.layers.#.self_attn", self_attn_bit},
};

/// What a pattern stands for. A pattern may leave out the leading `model.`, and one that ends early stands for all
/// modules below: `layers.*.mlp` is every module of it.
struct expanded_pattern {
  bool known = false;      ///< it names some module of the families
  module_set modules = 0;  ///< of those, what can be cut; norms and routers cannot
  int layer = module_override::every_layer;
};

/// Does the pattern stand for the module `name` or one around it? Sets `layer` where it names one.
constexpr bool covers(text_view pattern, text_view name, int& layer) {
  const auto first = [](text_view t) { return t.substr(0, t.find('.')); };
  if (first(name) == "model" && first(pattern) != "model" && first(pattern) != "*") name.remove_prefix(6);
  int number = module_override::every_layer;
  while (true) {
    const text_view p = first(pattern), n = first(name);
    if (n == "#" && p != "*") {
      number = 0;
      if (p.empty() || p.size() > 4) return false;
      for (char c : p) {
        if (c < '0' || c > '9') return false;
        number = number * 10 + (c - '0');
      }
    } else if (p != "*" && p != n) {
      return false;
    }
    if (p.size() == pattern.size()) break;
    if (n.size() == name.size()) return false;
    pattern.remove_prefix(p.size() + 1);
    name.remove_prefix(n.size() + 1);
  }
  layer = number;
  return true;
}

constexpr expanded_pattern expand(text_view pattern) {
  expanded_pattern out;
  for (const module_group& g : module_groups)
    if (covers(pattern, g.pattern, out.layer)) out.known = true, out.modules |= g.modules;
  int ignored = 0;
  for (text_view name : {text_view("model.norm"), text_view("model.layers.#.input_layernorm"),
                         text_view("model.layers.#.post_attention_layernorm"), text_view("model.layers.#.mlp.gate"),
                         text_view("model.layers.#.self_attn.q_norm"), text_view("model.layers.#.self_attn.k_norm")})
    out.known = out.known || covers(pattern, name, ignored);
  return out;
}

/// The kinds of which a module set is made.
template <class F>
constexpr void for_each_kind(module_set modules, F&& f) {
  for (std::size_t k = 0; k < num_parameter_kinds; ++k)
    if ((modules >> k & 1) != 0) f(static_cast<parameter_kind>(k));
}

/// The modules of the pattern that the style is for; 0 where it fits none of them or not all.
constexpr module_set fitting(const expanded_pattern& pattern, module_style style) {
  if (is_of_context(style)) return pattern.modules & self_attn_bit;
  const module_set weights = pattern.modules & ~self_attn_bit;
  if (style == module_style::replicated) return weights;
  bool fits = true;
  for_each_kind(weights, [&](parameter_kind k) { fits = fits && default_style(k) == style; });
  return fits ? weights : 0;
}

/// Splits an override into those that one pattern each can say, and appends them.
constexpr void append(module_overrides& to, module_override o) {
  for (const module_group& g : module_groups)
    if ((o.modules & g.modules) == g.modules) {
      to.push_back({g.modules, o.layer, o.style});
      o.modules &= ~g.modules;
    }
}

}  // namespace detail

enum class override_problem : unsigned char { none, unknown_pattern, unknown_style, style_does_not_fit };

/// Merges `pattern`=`style` onto the overrides. A replicated norm is one already, so naming it changes nothing.
constexpr override_problem merge(module_overrides& overrides, text_view pattern, module_style style) {
  const detail::expanded_pattern expanded = detail::expand(pattern);
  if (!expanded.known) return override_problem::unknown_pattern;
  const module_set modules = detail::fitting(expanded, style);
  if (modules == 0 && (style != module_style::replicated || expanded.modules != 0))
    return override_problem::style_does_not_fit;
  detail::append(overrides, {modules, expanded.layer, style});
  return override_problem::none;
}
constexpr override_problem merge(module_overrides& overrides, text_view pattern, text_view style) {
  for (module_style s : module_styles)
    if (name_of(s) == style) return merge(overrides, pattern, s);
  return detail::expand(pattern).known ? override_problem::unknown_style : override_problem::unknown_pattern;
}

/// The pattern of one of `overrides`, for example `model.layers.3.self_attn`.
constexpr fixed_text<96> pattern_of(const module_override& o) {
  fixed_text<96> out;
  for (const detail::module_group& g : detail::module_groups)
    if (g.modules == o.modules && out.size() == 0)
      for (char c : g.pattern) {
        if (c != '#')
          out.push_back(c);
        else if (o.layer == module_override::every_layer)
          out.add("*");
        else
          out.add(num{o.layer});
      }
  return out;
}

}  // namespace shardplan
#endif  // SHARDPLAN_MODULE_PLAN_HPP
