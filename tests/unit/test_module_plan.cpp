// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <shardplan/module_plan.hpp>
#include <string>

namespace shardplan {

template <class F>
void for_each_rule(F&& f) {
  for (const module_rule& rule : tp_module_plan) f(rule);
  for (const module_rule& rule : ep_module_plan) f(rule);
}

TEST_CASE("patterns match names component by component") {
  CHECK(matches("model.layers.*.mlp.gate", "model.layers.17.mlp.gate"));
  CHECK(matches("lm_head", "lm_head"));
  CHECK_FALSE(matches("model.layers.*.mlp.gate", "model.layers.17.mlp.gate_proj"));
  CHECK_FALSE(matches("model.layers.*", "model.layers.17.mlp"));
  CHECK_FALSE(matches("model.layers.*.mlp", "model.layers.17"));
  CHECK_FALSE(matches("model.*", "model"));
}

TEST_CASE("the style of every parameter is that of the last pattern that names its module") {
  model_spec m;
  m.num_hidden_layers = 2;
  m.num_experts = 2, m.num_experts_per_tok = 1;
  m.attention_bias = true;
  m.mlp_only_layers.insert(1);
  bool seen[num_parameter_kinds]{};
  for_each_parameter(m, [&](const parameter& p) {
    seen[static_cast<std::size_t>(p.kind)] = true;
    module_style expected = module_style::replicated;
    for_each_rule([&](const module_rule& rule) {
      if (matches(rule.pattern, module_of(p).view())) expected = rule.style;
    });
    CHECK_MESSAGE(default_style(p.kind) == expected, std::string(name_of(p).view()));
  });
  for (bool kind : seen) CHECK(kind);
}

TEST_CASE("every pattern names a module of the family") {
  model_spec m;
  m.num_hidden_layers = 2;
  m.num_experts = 2, m.num_experts_per_tok = 1;
  m.mlp_only_layers.insert(1);
  for_each_rule([&](const module_rule& rule) {
    bool found = false;
    for_each_parameter(m, [&](const parameter& p) { found = found || matches(rule.pattern, module_of(p).view()); });
    CHECK_MESSAGE(found, std::string(std::string_view(rule.pattern)));
  });
  CHECK(matches(cp_module_plan[0].pattern, "model.layers.7.self_attn"));
}

TEST_CASE("a pattern stands for all modules of its name, and of names below it") {
  const auto merged = [](std::string_view pattern, module_style style) {
    module_overrides o;
    REQUIRE(merge(o, pattern, style) == override_problem::none);
    return o;
  };
  const auto whole = [&](std::string_view pattern, parameter_kind kind, num layer = parameter::no_layer) {
    return style_of(merged(pattern, module_style::replicated), kind, layer) == module_style::replicated;
  };
  CHECK(whole("lm_head", parameter_kind::lm_head));
  CHECK_FALSE(whole("lm_head", parameter_kind::embed_tokens));
  CHECK(whole("model.layers.*.self_attn", parameter_kind::k_bias, 511));
  CHECK(whole("layers.3.self_attn", parameter_kind::o_proj, 3));
  CHECK_FALSE(whole("layers.3.self_attn", parameter_kind::o_proj, 2));
  CHECK_FALSE(whole("layers.*.self_attn", parameter_kind::mlp_up, 0));
  CHECK(whole("layers.*.mlp", parameter_kind::experts_down, 0));
  CHECK(whole("layers.*.mlp.experts", parameter_kind::experts_gate_up, 0));
  CHECK_FALSE(whole("layers.*.mlp.experts", parameter_kind::mlp_down, 0));
  CHECK(whole("layers.*.*.q_proj", parameter_kind::q_proj, 0));
  CHECK_FALSE(whole("layers.*.*.q_proj", parameter_kind::k_proj, 0));
  CHECK(whole("*", parameter_kind::embed_tokens));
  CHECK(whole("*", parameter_kind::mlp_gate, 5));
  CHECK(merged("model.norm", module_style::replicated).empty());  // it is already
  CHECK(merged("layers.*.self_attn", module_style::ring).size() == 1);
}

TEST_CASE("unknown patterns, unknown styles and styles that do not fit are told apart") {
  module_overrides o;
  for (const char* pattern :
       {"lm_hed", "layers.x.mlp", "layers.*.mlp.experts.7", "layers.12345", "", "model.", ".", "layers."})
    CHECK_MESSAGE(merge(o, pattern, "replicated") == override_problem::unknown_pattern, std::string(pattern));
  CHECK(merge(o, "lm_head", "column") == override_problem::unknown_style);
  CHECK(merge(o, "lm_hed", "column") == override_problem::unknown_pattern);
  for (const auto& [pattern, style] :
       {std::pair{"lm_head", "colwise"}, std::pair{"lm_head", "ring"}, std::pair{"layers.*.self_attn", "colwise"},
        std::pair{"model.norm", "colwise"}, std::pair{"layers.*.mlp", "ulysses"}})
    CHECK(merge(o, pattern, style) == override_problem::style_does_not_fit);
  CHECK(o.empty());
}

TEST_CASE("of several overrides the last one counts, and context styles leave weights alone") {
  module_overrides o;
  merge(o, "layers.*.self_attn", "replicated");
  merge(o, "layers.2.self_attn", "ring");
  for (const char* module : {"q_proj", "k_proj", "v_proj"})
    merge(o, "layers.2.self_attn." + std::string(module), "colwise");
  merge(o, "layers.2.self_attn.o_proj", "rowwise");
  CHECK(style_of(o, parameter_kind::v_bias, 1) == module_style::replicated);
  CHECK(style_of(o, parameter_kind::v_bias, 2) == module_style::colwise);
  CHECK(style_of(o, parameter_kind::o_bias, 2) == module_style::rowwise);
  CHECK(context_style_of(o, 2) == module_style::ring);
  CHECK(context_style_of(o, 1) == module_style::planned);
}

}  // namespace shardplan
