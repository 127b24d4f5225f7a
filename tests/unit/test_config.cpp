// SPDX-License-Identifier: Apache-2.0
// config.json: all spellings of a field are read, what is written is read, and a bad value is refused with its name.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint_helpers.hpp"
#include "runtime/checkpoint/model_config.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::tests;
using nlohmann::json;

namespace {

const json small = json::parse(R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu",
  "vocab_size": 40, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 6, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "moe_intermediate_size": 10,
  "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": true, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
  "rope_scaling": null, "router_aux_loss_coef": 0.5, "initializer_range": 0.25, "tie_word_embeddings": false,
  "attention_bias": false, "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": false,
  "sliding_window": null, "output_router_logits": true
})");

/// `small` with the fields of `changes`, as a merge patch would put it: but null stays null.
json changed(const json& changes) {
  json all = small;
  for (const auto& [name, value] : changes.items()) all[name] = value;
  return all;
}

/// A dense model of another family, without the fields that have a default.
json dense(const char* family, const json& changes = json::object()) {
  json all = json::parse(R"({"vocab_size": 40, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 6,
      "num_attention_heads": 4, "max_position_embeddings": 256})");
  all["model_type"] = family;
  for (const auto& [name, value] : changes.items()) all[name] = value;
  return all;
}

json without(const std::string& field, json all = small) {
  all.erase(field);
  return all;
}

model_config read(const json& config) {
  const temporary_directory directory;
  write_text(directory.path / "config.json", config.dump());
  return read_config(directory.path);
}

/// What read_config says of `text`, behind the name of the file.
std::string error_of(const std::string& text) {
  const temporary_directory directory;
  write_text(directory.path / "config.json", text);
  const std::string message = message_of([&] { read_config(directory.path); });
  const std::string file = (directory.path / "config.json").string() + ": ";
  return message.starts_with(file) ? message.substr(file.size()) : message;
}
std::string error_of(const json& config) { return error_of(config.dump()); }

}  // namespace

TEST_CASE("the fields of a configuration are read") {
  const model_config c = read(small);
  model_spec m;
  m.num_hidden_layers = 6;
  m.hidden_size = 24;
  m.num_attention_heads = 4;
  m.num_key_value_heads = 2;
  m.head_dim = 8;
  m.intermediate_size = 20;
  m.moe_intermediate_size = 10;
  m.num_experts = 6;
  m.num_experts_per_tok = 2;
  m.vocab_size = 40;
  m.max_position_embeddings = 256;
  CHECK(c.spec == m);
  CHECK(c.rms_norm_eps == 1e-5);
  CHECK(c.norm_topk_prob);
  CHECK(c.initializer_range == 0.25);
  CHECK(c.router_aux_loss_coef == 0.5);
  CHECK(c.output_router_logits);
  CHECK(c.rope.theta == 1e6);
  CHECK(c.rope.type == rope_config::scaling::none);
}

TEST_CASE("what a configuration leaves out has the default of the public implementation") {
  const json least = json::parse(R"({"model_type": "qwen3_moe", "vocab_size": 40, "hidden_size": 24,
      "intermediate_size": 20, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
      "max_position_embeddings": 256, "moe_intermediate_size": 10, "num_experts": 6, "num_experts_per_tok": 2})");
  const model_config c = read(least);
  CHECK(c.spec.head_dim == 6);  // hidden_size / num_attention_heads
  CHECK(c.spec.decoder_sparse_step == 1);
  CHECK(c.spec.mlp_only_layers == layer_set{});
  CHECK(c.spec.sliding_window == 0);
  CHECK_FALSE(c.spec.attention_bias);
  CHECK_FALSE(c.spec.tie_word_embeddings);
  CHECK_FALSE(c.spec.scaled_rotary);
  CHECK(c.rms_norm_eps == 1e-6);
  CHECK_FALSE(c.norm_topk_prob);
  CHECK(c.initializer_range == 0.02);
  CHECK(c.router_aux_loss_coef == 0.001);
  CHECK_FALSE(c.output_router_logits);
  CHECK(c.rope == rope_config{});
  CHECK(c.rope.theta == 10000);
}

TEST_CASE("old and new spellings mean the same") {
  const model_config expected = read(small);
  json experts = without("num_experts");
  experts["num_local_experts"] = 6;
  CHECK(read(experts) == expected);
  CHECK(read(changed({{"num_local_experts", 6}, {"num_experts", 5}})) == expected);  // the new name goes first
  CHECK(read(changed({{"mlp_only_layers", nullptr}})) == expected);
  CHECK(read(without("mlp_only_layers")) == expected);
  CHECK(read(changed({{"rope_scaling", json::object()}})) == expected);
  const json other_theta = {{"rope_type", "default"}, {"rope_theta", 7}};  // an empty rope_scaling says nothing
  CHECK(read(changed({{"rope_scaling", json::object()}, {"rope_parameters", other_theta}})).rope.theta == 7);
  CHECK(read(changed({{"rope_scaling", {{"type", "default"}}}})) == expected);
  CHECK(read(changed({{"rope_scaling", {{"rope_type", "default"}}}})) == expected);
  CHECK(read(changed({{"qkv_bias", false}, {"use_qk_norm", true}, {"shared_expert_intermediate_size", 0}})) ==
        expected);
  const json parameters = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  CHECK(read(without("rope_theta", without("rope_scaling", changed({{"rope_parameters", parameters}})))) == expected);
  // The numbers of rope_parameters go before those beside it.
  CHECK(read(changed({{"rope_parameters", parameters}, {"rope_theta", 5}})) == expected);
  CHECK(read(changed({{"rope_parameters", {{"rope_type", "default"}}}})) == expected);
}

TEST_CASE("yarn is read in either spelling, with its defaults") {
  const json yarn = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  model_config expected = read(small);
  expected.spec.scaled_rotary = true;
  expected.rope.type = rope_config::scaling::yarn;
  expected.rope.factor = 4;
  expected.rope.original_max_positions = 64;
  CHECK(read(changed({{"rope_scaling", yarn}})) == expected);
  json parameters = yarn;
  parameters["rope_theta"] = 1e6;
  parameters["rope_type"] = "yarn";
  CHECK(read(without("rope_theta", changed({{"rope_parameters", parameters}}))) == expected);
  // rope_scaling goes before rope_parameters, rope_type before type; null and 0 are "not given".
  CHECK(read(changed({{"rope_scaling", yarn}, {"rope_parameters", {{"rope_type", "default"}}}})) == expected);
  parameters["type"] = "linear";
  for (const char* field : {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) parameters[field] = 0;
  parameters["attention_factor"] = nullptr;
  CHECK(read(changed({{"rope_scaling", parameters}})) == expected);

  const json all = {{"rope_type", "yarn"}, {"factor", 8},       {"beta_fast", 16},        {"beta_slow", 2},
                    {"mscale", 0.5},       {"truncate", false}, {"mscale_all_dim", 0.25}, {"attention_factor", 1.5}};
  const model_config c = read(changed({{"rope_scaling", all}}));
  CHECK(c.rope.factor == 8);
  CHECK(c.rope.beta_fast == 16);
  CHECK(c.rope.beta_slow == 2);
  CHECK(c.rope.original_max_positions == 256);  // max_position_embeddings
  CHECK(c.rope.attention_factor == 1.5);
  CHECK(c.rope.mscale == 0.5);
  CHECK(c.rope.mscale_all_dim == 0.25);
  CHECK_FALSE(c.rope.truncate);

  json ratio = yarn;
  ratio["factor"] = nullptr;
  CHECK(read(changed({{"rope_scaling", ratio}})).rope.factor == 4);  // 256 / 64
  CHECK(read(changed({{"rope_scaling", yarn}, {"original_max_position_embeddings", 32}})).rope.original_max_positions ==
        32);
}

TEST_CASE("a window needs its switch") {
  CHECK(read(changed({{"sliding_window", 16}})).spec.sliding_window == 0);
  CHECK(read(changed({{"sliding_window", 16}, {"use_sliding_window", true}})).spec.sliding_window == 16);
  CHECK(read(changed({{"sliding_window", nullptr}, {"use_sliding_window", true}})).spec.sliding_window == 0);
}

TEST_CASE("layers are dense where listed; an index beyond the last layer has no effect") {
  const model_spec m = read(changed({{"mlp_only_layers", {1, 5, 5, 6, 600, 1ull << 63}}})).spec;
  CHECK(m.mlp_only_layers == layer_set{}.insert(1).insert(5));
}

TEST_CASE("a dense model needs no sizes of experts") {
  const json config = without("moe_intermediate_size", without("num_experts_per_tok", changed({{"num_experts", 0}})));
  CHECK(read(config).spec.num_experts == 0);
  CHECK(num_moe_layers(read(config).spec) == 0);
}

TEST_CASE("a mistral model is read as the public implementation reads it") {
  const auto mistral = [](const json& changes = json::object()) { return dense("mistral", changes); };
  const model_config c = read(mistral());
  CHECK(c.family == model_family::mistral);
  CHECK(c.spec.num_key_value_heads == 8);
  CHECK(c.spec.head_dim == 6);  // hidden_size / num_attention_heads
  CHECK(c.spec.num_experts == 0);
  CHECK(c.spec.intermediate_size == 20);
  CHECK(c.spec.sliding_window == 4096);
  CHECK(c.spec.full_attention_layers == layer_set{});
  CHECK_FALSE(c.spec.head_norm);
  CHECK_FALSE(c.spec.attention_bias);
  CHECK_FALSE(c.spec.tie_word_embeddings);
  CHECK(c.rope.theta == 10000);

  CHECK(read(mistral({{"sliding_window", 5}})).spec.sliding_window == 5);
  CHECK(read(mistral({{"sliding_window", nullptr}})).spec.sliding_window == 0);
  CHECK(read(mistral({{"head_dim", nullptr}})) == c);
  CHECK(read(mistral({{"head_dim", 10}})).spec.head_dim == 10);
  CHECK(read(mistral({{"num_key_value_heads", 2}})).spec.num_key_value_heads == 2);
  // Fields of other families say nothing here.
  CHECK(read(mistral({{"use_sliding_window", false},
                      {"attention_bias", true},
                      {"num_experts", 4},
                      {"num_local_experts", 4},
                      {"max_window_layers", 1},
                      {"mlp_bias", false},
                      {"output_router_logits", true}})) == c);

  CHECK(error_of(mistral({{"sliding_window", 0}})) == R"(field "sliding_window" must be an integer >= 1, but is 0)");
  CHECK(error_of(mistral({{"num_key_value_heads", nullptr}})) ==
        R"(field "num_key_value_heads" must be an integer >= 1, but is null)");
  CHECK(error_of(mistral({{"layer_types", nullptr}})) ==
        R"(field "layer_types" must be absent: all layers have one window, but is null)");
  CHECK(error_of(mistral({{"mlp_bias", true}})) ==
        R"(field "mlp_bias" must be false: biases of the MLP are not supported, but is true)");
  CHECK(error_of(mistral({{"hidden_act", "gelu"}})) == R"(field "hidden_act" must be "silu", but is "gelu")");
  CHECK(error_of(without("intermediate_size", mistral())) ==
        R"(field "intermediate_size" must be an integer >= 1, but is missing)");
}

TEST_CASE("a qwen3 model is read as the public implementation reads it") {
  const auto qwen3 = [](const json& changes = json::object()) { return dense("qwen3", changes); };
  const model_config c = read(qwen3());
  CHECK(c.family == model_family::qwen3);
  CHECK(c.spec.num_key_value_heads == 32);
  CHECK(c.spec.head_dim == 128);
  CHECK(c.spec.num_experts == 0);
  CHECK(c.spec.sliding_window == 0);
  CHECK(c.spec.head_norm);
  CHECK_FALSE(c.spec.attention_bias);
  CHECK_FALSE(c.spec.tie_word_embeddings);
  CHECK(c.rope.theta == 10000);
  CHECK(read(qwen3({{"num_key_value_heads", nullptr}})).spec.num_key_value_heads == 4);
  CHECK(read(qwen3({{"num_key_value_heads", 2}})).spec.num_key_value_heads == 2);
  CHECK(read(qwen3({{"attention_bias", true}})).spec.attention_bias);
  CHECK(error_of(qwen3({{"head_dim", nullptr}})) == R"(field "head_dim" must be an integer >= 1, but is null)");
  CHECK(error_of(qwen3({{"mlp_bias", true}})) ==
        R"(field "mlp_bias" must be false: biases of the MLP are not supported, but is true)");
}

TEST_CASE("a layer of a qwen3 model has the window that its type or its index gives it") {
  const auto windows = [](const json& changes) {
    const model_spec m = read(dense("qwen3", changes)).spec;
    std::vector<num> all;
    for (num layer = 0; layer < m.num_hidden_layers; ++layer) all.push_back(attention_window(m, layer));
    return all;
  };
  using list = std::vector<num>;
  const auto types = [](const char* text) {  // "sfa": sliding, full, full by its older name
    json all = json::array();
    for (; *text != 0; ++text)
      all.push_back(*text == 's' ? "sliding_attention" : *text == 'f' ? "full_attention" : "attention");
    return all;
  };
  CHECK(windows({{"sliding_window", 5}}) == list(6, 0));
  CHECK(windows({{"sliding_window", 5}, {"max_window_layers", 0}}) == list(6, 0));
  CHECK(windows({{"use_sliding_window", true}, {"sliding_window", nullptr}, {"max_window_layers", 0}}) == list(6, 0));
  const json on = {{"use_sliding_window", true}, {"sliding_window", 5}};
  const auto with = [&](const char* field, const json& value) {
    json all = on;
    all[field] = value;
    return all;
  };
  CHECK(windows(on) == list(6, 0));  // from layer 28 on
  CHECK(windows(with("max_window_layers", 4)) == list{0, 0, 0, 0, 5, 5});
  CHECK(windows(with("max_window_layers", 0)) == list(6, 5));
  CHECK(windows({{"use_sliding_window", true}, {"max_window_layers", 5}}) == list{0, 0, 0, 0, 0, 4096});
  CHECK(windows(with("layer_types", types("sfasfa"))) == list{5, 0, 0, 5, 0, 0});
  CHECK(windows(with("layer_types", nullptr)) == list(6, 0));
  json both = with("layer_types", types("sfffff"));
  both["max_window_layers"] = 2;
  CHECK(windows(both) == list{5, 0, 0, 0, 0, 0});  // layer_types goes first
  CHECK(windows({{"layer_types", types("ffffff")}}) == list(6, 0));
  CHECK(read(dense("qwen3", with("layer_types", types("aaaaaa")))) == read(dense("qwen3")));

  const std::string each =
      R"(field "layer_types" must be a list of "full_attention" or "sliding_attention" for each of 6 )"
      "layers, or null, but is ";
  for (const json& bad : {types("sffff"), json::array(), json("full_attention"), json({1, 2, 3, 4, 5, 6})})
    CHECK(error_of(dense("qwen3", with("layer_types", bad))) == each + bad.dump());
  json other = types("ffffff");
  other[3] = "linear_attention";
  CHECK(error_of(dense("qwen3", with("layer_types", other))).starts_with(each));
  const std::string none =
      "field \"layer_types\" must be \"full_attention\" for every layer where there is no sliding_window";
  CHECK(error_of(dense("qwen3", {{"layer_types", types("fffffs")}})).starts_with(none));
  CHECK(error_of(dense("qwen3",
                       {{"layer_types", types("fffffs")}, {"use_sliding_window", true}, {"sliding_window", nullptr}}))
            .starts_with(none));
  CHECK(error_of(dense("qwen3", with("sliding_window", 0))) ==
        R"(field "sliding_window" must be an integer >= 1, but is 0)");
  for (const json& bad : {json(-1), json(nullptr), json(1.5)})
    CHECK(error_of(dense("qwen3", with("max_window_layers", bad))) ==
          "field \"max_window_layers\" must be an integer >= 0, but is " + bad.dump());
}

TEST_CASE("models that break a rule are read: the rules have their own report") {
  CHECK(read(changed({{"num_key_value_heads", 3}})).spec.num_key_value_heads == 3);
  CHECK(read(changed({{"head_dim", 7}})).spec.head_dim == 7);
  CHECK(read(changed({{"num_experts_per_tok", 9}})).spec.num_experts_per_tok == 9);
  CHECK(read(changed({{"hidden_size", 25}, {"head_dim", nullptr}})).spec.head_dim == 6);
}

TEST_CASE("a size that is missing is refused by name") {
  for (const std::string field :
       {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
        "moe_intermediate_size", "num_experts_per_tok", "vocab_size"}) {
    CHECK(error_of(without(field)) == "field \"" + field + "\" must be an integer >= 1, but is missing");
  }
  CHECK(error_of(without("num_hidden_layers")) ==
        "field \"num_hidden_layers\" must be an integer from 1 to 512, but is missing");
  CHECK(error_of(without("num_experts")) ==
        "field \"num_experts\" must be an integer >= 0 (or called num_local_experts), but is missing");
  CHECK(error_of(without("sliding_window", changed({{"use_sliding_window", true}}))) ==
        "field \"sliding_window\" must be given with use_sliding_window, but is missing");
  CHECK(error_of(without("model_type")) == "field \"model_type\" must be a string, but is missing");
}

TEST_CASE("what is no size is refused with field and value") {
  const json bad[] = {"12", true, 12.0, 0, -1, nullptr, json::array({12}), json::object()};
  for (const json& value : bad) {
    CHECK(error_of(changed({{"hidden_size", value}})) ==
          "field \"hidden_size\" must be an integer >= 1, but is " + value.dump());
    CHECK(error_of(changed({{"num_hidden_layers", value}})) ==
          "field \"num_hidden_layers\" must be an integer from 1 to 512, but is " + value.dump());
  }
  for (const char* field : {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
                            "head_dim", "max_position_embeddings", "moe_intermediate_size", "num_experts_per_tok",
                            "vocab_size", "decoder_sparse_step"}) {
    CHECK(error_of(changed({{field, 0}})) == std::string("field \"") + field + "\" must be an integer >= 1, but is 0");
    CHECK(error_of(changed({{field, 2147483648}})) ==
          std::string("field \"") + field + "\" must be an integer from 1 to 2147483647, but is 2147483648");
  }
  CHECK(read(changed({{"hidden_size", 2147483647}})).spec.hidden_size == 2147483647);
  for (const json& huge : {json(1ull << 63), json(1e30)})
    CHECK(error_of(changed({{"vocab_size", huge}})) ==
          "field \"vocab_size\" must be an integer from 1 to 2147483647, but is " + huge.dump());
  CHECK(error_of(changed({{"num_experts", -1}})) == "field \"num_experts\" must be an integer >= 0, but is -1");
  CHECK(error_of(changed({{"num_experts", nullptr}})) ==
        "field \"num_experts\" must be an integer >= 0 (or called num_local_experts), but is null");
  CHECK(read(changed({{"num_hidden_layers", 512}})).spec.num_hidden_layers == 512);
  CHECK(error_of(changed({{"num_hidden_layers", 513}})) ==
        "field \"num_hidden_layers\" must be an integer from 1 to 512, but is 513");
  CHECK(error_of(changed({{"sliding_window", 0}, {"use_sliding_window", true}})) ==
        "field \"sliding_window\" must be an integer >= 1, but is 0");
  CHECK(error_of(changed({{"hidden_size", 3}, {"head_dim", nullptr}})) ==
        "field \"head_dim\" must be given where hidden_size 3 is below num_attention_heads 4, but is null");
  for (const json& value : {json(3), json("[]"), json({-1}), json({1.0}), json({true}), json({"1"})})
    CHECK(error_of(changed({{"mlp_only_layers", value}})) ==
          "field \"mlp_only_layers\" must be a list of layer indices >= 0 or null, but is " + value.dump());
}

TEST_CASE("what is no number or switch is refused with field and value") {
  for (const char* field : {"rms_norm_eps", "initializer_range", "router_aux_loss_coef"})
    for (const json& value : {json("1"), json(true), json(-0.5), json(nullptr)})
      CHECK(error_of(changed({{field, value}})) ==
            std::string("field \"") + field + "\" must be a number >= 0, but is " + value.dump());
  for (const json& value : {json("1"), json(1), json(-5.0), json(nullptr)})
    CHECK(error_of(changed({{"rope_theta", value}})) ==
          "field \"rope_theta\" must be a number > 1, but is " + value.dump());
  for (const char* field : {"attention_bias", "tie_word_embeddings", "norm_topk_prob", "use_sliding_window",
                            "output_router_logits", "qkv_bias", "use_qk_norm"})
    for (const json& value : {json("true"), json(1), json(nullptr)})
      CHECK(error_of(changed({{field, value}})) ==
            std::string("field \"") + field + "\" must be true or false, but is " + value.dump());
}

TEST_CASE("what is not implemented is refused by name") {
  struct row {
    json changes;
    const char* message;
  };
  const row rows[] = {
      {{{"model_type", "qwen2_moe"}},
       R"(field "model_type" must be "qwen3_moe", "qwen3" or "mistral", but is "qwen2_moe")"},
      {{{"model_type", 3}}, R"(field "model_type" must be a string, but is 3)"},
      {{{"hidden_act", "gelu"}}, R"(field "hidden_act" must be "silu", but is "gelu")"},
      {{{"qkv_bias", true}},
       R"(field "qkv_bias" must be false (attention_bias has biases of q, k, v and o), but is true)"},
      {{{"use_qk_norm", false}}, R"(field "use_qk_norm" must be true, but is false)"},
      {{{"shared_expert_intermediate_size", 8}},
       R"(field "shared_expert_intermediate_size" must be 0: shared experts are not supported, but is 8)"},
      {{{"quantization_config", {{"bits", 4}}}},
       R"(field "quantization_config" must be absent: quantized weights are not supported, but is {"bits":4})"},
      {{{"partial_rotary_factor", 0.5}},
       R"(field "partial_rotary_factor" must be 1: rotating a part of a head is not supported, but is 0.5)"},
      {{{"rope_scaling", {{"partial_rotary_factor", 0.5}}}},
       R"(field "rope_scaling.partial_rotary_factor" must be 1: rotating a part of a head is not supported, but is 0.5)"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}},
       R"(field "rope_scaling.type" must be "default" or "yarn", but is "linear")"},
      {{{"rope_parameters", {{"rope_type", "llama3"}}}},
       R"(field "rope_parameters.rope_type" must be "default" or "yarn", but is "llama3")"},
      {{{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       R"(field "rope_parameters.full_attention" must be a plain value: all layers have one kind of rotary embedding, )"
       R"(but is {"rope_type":"default"})"},
      {{{"rope_scaling", "yarn"}}, R"(field "rope_scaling" must be an object or null, but is "yarn")"},
      {{{"rope_scaling", {{"rope_type", 3}}}}, R"(field "rope_scaling.rope_type" must be a string, but is 3)"},
      {{{"rope_scaling", {{"type", "yarn"}}}}, R"(field "rope_scaling.factor" must be a number > 0, but is missing)"},
      {{{"rope_scaling", {{"type", "yarn"}, {"factor", 0}}}},
       R"(field "rope_scaling.factor" must be a number > 0, but is 0)"},
      {{{"rope_scaling", {{"type", "yarn"}, {"factor", 2}, {"attention_factor", -1}}}},
       R"(field "rope_scaling.attention_factor" must be a number > 0, but is -1)"},
      {{{"rope_scaling", {{"type", "yarn"}, {"factor", 2}, {"beta_fast", "32"}}}},
       R"(field "rope_scaling.beta_fast" must be a number >= 0, but is "32")"},
      {{{"rope_scaling", {{"type", "yarn"}, {"factor", 2}, {"truncate", 1}}}},
       R"(field "rope_scaling.truncate" must be true or false, but is 1)"},
      {{{"rope_scaling", {{"type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 0.5}}}},
       R"(field "rope_scaling.original_max_position_embeddings" must be an integer >= 1, but is 0.5)"},
  };
  for (const row& r : rows) CHECK(error_of(changed(r.changes)) == r.message);
}

TEST_CASE("what is no JSON object is refused by name") {
  CHECK(error_of(std::string("")).starts_with("not valid JSON: parse error at line 1"));
  CHECK(error_of(std::string("{\"a\": NaN}")).starts_with("not valid JSON: parse error at line 1"));
  CHECK(error_of(std::string("{\"a\": 1e999}")).starts_with("not valid JSON: number overflow"));
  CHECK(error_of(std::string("{\"a\": 1,\n \"a\": 2}")) == "field \"a\" is given twice");
  CHECK(error_of(std::string("[]")) == "must hold a JSON object, but holds []");
  CHECK(error_of(std::string("{")).starts_with("not valid JSON"));
  CHECK(error_of(std::string("\xff\xfe{}")).starts_with("not valid JSON"));

  const temporary_directory directory;
  const auto path = directory.path / "config.json";
  CHECK(message_of([&] { read_config(directory.path); }) == path.string() + ": no such file");
  std::filesystem::create_directory(path);
  CHECK(message_of([&] { read_config(directory.path); }) == path.string() + ": not a regular file");
}

TEST_CASE("a configuration with some bytes changed is read or refused") {
  random_numbers random;
  const std::string text = small.dump();
  const temporary_directory directory;
  const auto path = directory.path / "config.json";
  for (int repeat = 0; repeat < 2000; ++repeat) {
    std::string changed = text;
    for (num n = 1 + random.below(3); n > 0; --n)
      changed[static_cast<std::size_t>(random.below(static_cast<num>(text.size())))] =
          static_cast<char>(32 + random.below(95));
    write_text(path, changed);
    const std::string message = message_of([&] { read_config(directory.path); });
    REQUIRE((message == "no error" || message.starts_with(path.string())));
  }
}

TEST_CASE("a configuration that is written is read again") {
  std::vector<json> configs = {small, without("num_experts_per_tok", changed({{"num_experts", 0}}))};
  configs.push_back(changed({{"mlp_only_layers", {0, 3}}, {"decoder_sparse_step", 2}, {"attention_bias", true}}));
  configs.push_back(changed({{"tie_word_embeddings", true}, {"use_sliding_window", true}, {"sliding_window", 5}}));
  configs.push_back(changed({{"rope_scaling", {{"type", "yarn"}, {"factor", 4}}}, {"rms_norm_eps", 1.0 / 3}}));
  configs.push_back(changed({{"rope_scaling",
                              {{"type", "yarn"},
                               {"factor", 2.5},
                               {"mscale", 0.5},
                               {"mscale_all_dim", 0.25},
                               {"attention_factor", 1.5},
                               {"beta_fast", 20},
                               {"original_max_position_embeddings", 64},
                               {"truncate", false}}}}));
  const json types = {"sliding_attention", "full_attention",    "full_attention",
                      "full_attention",    "sliding_attention", "sliding_attention"};
  const json window = {{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 4}};
  configs.push_back(dense("qwen3"));
  configs.push_back(dense("qwen3", window));
  configs.push_back(dense("qwen3", {{"use_sliding_window", true}, {"layer_types", types}, {"attention_bias", true}}));
  configs.push_back(
      dense("qwen3", {{"tie_word_embeddings", true}, {"rope_scaling", {{"type", "yarn"}, {"factor", 4}}}}));
  configs.push_back(dense("mistral"));
  configs.push_back(dense("mistral", {{"sliding_window", nullptr}, {"num_key_value_heads", 2}, {"rope_theta", 1e6}}));
  const temporary_directory directory;
  for (const json& config : configs) {
    const model_config expected = read(config);
    write_config(directory.path, expected, tensor_dtype::bf16);
    CHECK(read_config(directory.path) == expected);
    CHECK(json::parse(read_text(directory.path / "config.json"))["torch_dtype"] == "bfloat16");
  }
  CHECK(num_files(directory.path) == 1);
  CHECK(message_of([&] { write_config(directory.path, read(small), tensor_dtype::i64); }) ==
        "weights cannot be I64, only F64, F32, F16 or BF16");
}

TEST_CASE("what a family has no words for is not written") {
  const temporary_directory directory;
  const auto refused = [&](const model_config& config) {
    return message_of([&] { write_config(directory.path, config, tensor_dtype::f32); });
  };
  const model_config moe = read(small), qwen3 = read(dense("qwen3")), mistral = read(dense("mistral"));
  const auto changed_spec = [](model_config config, auto change) {
    change(config.spec);
    return config;
  };
  const auto full = [](model_spec& m) { m.full_attention_layers.insert(1); };
  const auto no_norm = [](model_spec& m) { m.head_norm = false; };
  const auto experts = [](model_spec& m) { m.num_experts = 2; };
  CHECK(refused(changed_spec(moe, full)) == "qwen3_moe models have no layers of several windows");
  CHECK(refused(changed_spec(mistral, full)) == "mistral models have no layers of several windows");
  CHECK(refused(changed_spec(moe, no_norm)) == "qwen3_moe models have no attention without norms of queries and keys");
  CHECK(refused(changed_spec(qwen3, no_norm)) == "qwen3 models have no attention without norms of queries and keys");
  CHECK(refused(changed_spec(mistral, [](model_spec& m) { m.head_norm = true; })) ==
        "mistral models have no norms of queries and keys");
  CHECK(refused(changed_spec(mistral, [](model_spec& m) { m.attention_bias = true; })) ==
        "mistral models have no biases");
  CHECK(refused(changed_spec(mistral, experts)) == "mistral models have no experts");
  CHECK(refused(changed_spec(qwen3, experts)) == "qwen3 models have no experts");
  CHECK(num_files(directory.path) == 0);
}

TEST_CASE("published models have the numbers of their releases") {
  for (const models::published_model& model : models::published) {
    const model_config c = config_of(model);
    CHECK(c.spec == model.spec);
    CHECK(c.rope.theta == model.rope_theta);
    CHECK(c.norm_topk_prob);
    CHECK(c.rms_norm_eps == 1e-6);
    CHECK(c.router_aux_loss_coef == (model.name == "qwen3-coder-480b-a35b" ? 0 : 0.001));
    const temporary_directory directory;
    write_config(directory.path, c, tensor_dtype::bf16);
    CHECK(read_config(directory.path) == c);
  }
}
