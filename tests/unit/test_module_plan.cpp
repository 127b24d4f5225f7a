// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <shardplan/module_plan.hpp>
#include <string>

namespace shardplan {

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
    for (const module_rule& rule : qwen3_moe_module_plan)
      if (matches(rule.pattern, module_of(p).view())) expected = rule.style;
    CHECK_MESSAGE(style_of(p) == expected, std::string(name_of(p).view()));
  });
  for (bool kind : seen) CHECK(kind);
}

TEST_CASE("every pattern names a module of the family") {
  model_spec m;
  m.num_hidden_layers = 2;
  m.num_experts = 2, m.num_experts_per_tok = 1;
  m.mlp_only_layers.insert(1);
  for (const module_rule& rule : qwen3_moe_module_plan) {
    bool found = false;
    for_each_parameter(m, [&](const parameter& p) { found = found || matches(rule.pattern, module_of(p).view()); });
    CHECK_MESSAGE(found, std::string(rule.pattern));
  }
}

}  // namespace shardplan
