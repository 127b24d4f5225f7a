// SPDX-License-Identifier: Apache-2.0
// verify --against: what transformers computed is the baseline's; what is off is found, and told how.
#include <algorithm>
#include <limits>

#include "doctored.hpp"

using namespace command_test;

namespace {

const std::string q_proj = "grad.model.layers.1.self_attn.q_proj.weight";
const auto as_it_is = [](plain_tensors&) {};

/// The row of a tensor that `change` has spoilt, and alone is off.
template <class Change>
json only_off(const std::string& fixture, const std::string& name, Change change) {
  const result r = against(
      fixture, [&](plain_tensors& all) { change(all.at(name)); }, "--json");
  CHECK(r.exit_code == 1);
  const json d = document(r)["against"];
  CHECK(d["equal"] == false);
  for (const json& t : d["tensors"]) CHECK_MESSAGE((t["equal"] == (t["name"] != name)), t.dump());
  return row_of(d["tensors"], name);
}

std::vector<double> take_tokens(const plain_tensor& t, const std::vector<num>& order) {
  const num length = t.shape[1], width = t.shape.size() > 2 ? t.shape[2] : 1;
  std::vector<double> out;
  for (num row = 0; row < t.shape[0]; ++row)
    for (num at : order)
      for (num k = 0; k < width; ++k)
        out.push_back(t.values[static_cast<std::size_t>((row * length + at) * width + k)]);
  return out;
}

}  // namespace

TEST_CASE("against: what transformers computed is what the baseline computes") {
  for (const char* fixture : {"tiny", "auxiliary", "embeds", "f16", "gaps", "packed_cu", "sparse_step", "tied"}) {
    CAPTURE(fixture);
    const result r = against(fixture, as_it_is, "--json");
    CHECK(r.exit_code == 0);
    const json d = document(r);
    CHECK(d["equal"] == true);
    CHECK(d["plan"].is_null());
    CHECK(d["tensors"] == json::array());
    CHECK(d["against"]["missing"] == json::array());
    CHECK(d["against"]["tensors"].size() > 20);
  }
  // The inputs themselves may stand in the file, and a plan may be verified beside it.
  const std::string file = tiny + "/expected.safetensors";
  const result both = command("verify --checkpoint " + tiny + " --plan tp=2,cp=2/ring/zigzag --inputs " + file +
                              " --against " + file + " --dtype f32");
  CHECK(both.exit_code == 0);
  CHECK(says(both.out, {"grad.*: 91 tensors", "equal: 4 ranks compute", "expected.safetensors holds what"}));
}

TEST_CASE("against: what run writes") {
  const temporary_directory folder;
  const std::string inputs = " --inputs " + tiny + "/expected.safetensors";
  CHECK(command("run --checkpoint " + tiny + " --plan fsdp=2,tp=2/sp,ep=4 --gradients --steps 2" + inputs +
                " --output " + (folder / "out"))
            .exit_code == 0);
  const std::string verify = "verify --checkpoint " + tiny + inputs + " --against " + (folder / "out");
  CHECK(command(verify + " --steps 2 --tolerance 1e-10").exit_code == 0);
  CHECK(command(verify).exit_code == 1);  // parameters without steps are those of the checkpoint
  CHECK(command(verify + " --steps 2 --learning-rate 0.01").exit_code == 1);
}

TEST_CASE("against: one gradient counted twice, or halved, or all of them") {
  const json twice = only_off("tiny", q_proj, [](plain_tensor& t) {
    for (double& v : t.values) v *= 2;
  });
  CHECK(twice["factor"].get<double>() == doctest::Approx(2));
  CHECK(twice["note"] == "x 2.0: counted twice");
  const json half = only_off("tiny", "grad.model.layers.0.mlp.gate.weight", [](plain_tensor& t) {
    for (double& v : t.values) v *= 0.5;
  });
  CHECK(says(half["note"], {"x 0.5", "divided by 2"}));
  CHECK(says(only_off("tiny", "loss", [](plain_tensor& t) { t.values[0] *= 4; })["note"], {"x 4.0"}));
  CHECK(says(only_off("tiny", q_proj, [](plain_tensor& t) { std::fill(t.values.begin(), t.values.end(), 0); })["note"],
             {"all of it is zero"}));
  CHECK_FALSE(only_off("tiny", q_proj, [](plain_tensor& t) { t.values[3] += 1; }).contains("factor"));

  const result all = against("tiny", [](plain_tensors& tensors) {
    for (auto& [name, t] : tensors)
      if (name.starts_with("grad."))
        for (double& v : t.values) v *= 4;
  });
  CHECK(all.exit_code == 1);
  CHECK(says(all.out, {"all 91 gradients are off by one factor: x 4.0: counted 4 times", "NOT EQUAL"}));
}

TEST_CASE("against: tokens in the order in which ranks hold them, shifted, and rows exchanged") {
  const std::vector<num> zigzag2{0, 1, 2, 3, 12, 13, 14, 15, 4, 5, 6, 7, 8, 9, 10, 11};
  for (const char* name : {"logits", "token_loss"}) {
    const auto note = [&](const std::vector<num>& order) {
      return only_off("tiny", name, [&](plain_tensor& t) { t.values = take_tokens(t, order); })["note"]
          .get<std::string>();
    };
    CHECK(note(zigzag2) == "tokens are in zigzag order of cp=2");
    CHECK(note({0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9}) == "tokens are in zigzag order of cp=4");
    CHECK(says(note({0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}), {"striped order of cp=4"}));
    CHECK(says(note({15, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}), {"shifted by one", "before"}));
  }
  CHECK(says(only_off("tiny", "logits",
                      [](plain_tensor& t) {
                        std::rotate(t.values.begin(), t.values.begin() + 16 * 96, t.values.end());
                      })["note"],
             {"rows are permuted", "1, 2, 3, 0"}));
  CHECK(says(only_off("packed", "logits",  // 13 tokens, padded to 16 and cut
                      [](plain_tensor& t) {
                        t.values = take_tokens(t, {0, 1, 2, 3, 12, 4, 5, 6, 7, 8, 9, 10, 11});
                      })["note"],
             {"zigzag order of cp=2"}));
}

TEST_CASE("against: dims and rows of weights in another order") {
  const std::string gate_up = "grad.model.layers.0.mlp.experts.gate_up_proj";
  CHECK(says(only_off("tiny", gate_up,
                      [](plain_tensor& t) {  // (8, 32, 32): up before gate
                        for (auto at = t.values.begin(); at != t.values.end(); at += 32 * 32)
                          std::rotate(at, at + 16 * 32, at + 32 * 32);
                      })["note"],
             {"two halves"}));
  CHECK(says(only_off("tiny", q_proj,
                      [](plain_tensor& t) {  // (64, 32)
                        std::vector<double> turned;
                        for (std::size_t col = 0; col < 32; ++col)
                          for (std::size_t row = 0; row < 64; ++row) turned.push_back(2 * t.values[row * 32 + col]);
                        t = {{32, 64}, std::move(turned)};
                      })["note"],
             {"transposed", "counted twice"}));
  CHECK(says(
      only_off("tiny", q_proj,
               [](plain_tensor& t) { std::rotate(t.values.begin(), t.values.begin() + 32, t.values.end()); })["note"],
      {"rows are permuted", "1, 2, 3"}));
}

TEST_CASE("against: experts by their names in a checkpoint, each a part of the fused ones") {
  const auto unfuse = [](plain_tensors& all) {
    for (const std::string layer : {"grad.model.layers.0.mlp.experts.", "grad.model.layers.5.mlp.experts."}) {
      const plain_tensor both = all.at(layer + "gate_up_proj"), down = all.at(layer + "down_proj");
      all.erase(layer + "gate_up_proj"), all.erase(layer + "down_proj");
      for (num e = 0; e < 8; ++e) {
        const std::string expert = layer + std::to_string(e);
        const auto part = [](const plain_tensor& t, num first, num count) {
          return std::vector<double>(t.values.begin() + first, t.values.begin() + first + count);
        };
        all[expert + ".gate_proj.weight"] = {{16, 32}, part(both, e * 1024, 512)};
        all[expert + ".up_proj.weight"] = {{16, 32}, part(both, e * 1024 + 512, 512)};
        all[expert + ".down_proj.weight"] = {{32, 16}, part(down, e * 512, 512)};
      }
    }
  };
  CHECK(against("tiny", unfuse).exit_code == 0);
  const std::string spoilt = "grad.model.layers.5.mlp.experts.3.up_proj.weight";
  const result r = against(
      "tiny",
      [&](plain_tensors& all) {
        unfuse(all);
        for (double& v : all.at(spoilt).values) v *= 2;
        all.erase("grad.model.layers.0.mlp.experts.7.gate_proj.weight");
      },
      "--json");
  CHECK(r.exit_code == 1);
  const json d = document(r)["against"];
  CHECK(row_of(d["tensors"], spoilt)["note"] == "x 2.0: counted twice");
  CHECK(d["missing"] == json{"grad.model.layers.0.mlp.experts.gate_up_proj"});
}

TEST_CASE("against: short types are held to what they can hold; other tolerances") {
  const auto as = [](tensor_dtype type) {
    return [type](plain_tensors& all) {
      for (auto& [name, t] : all) t.dtype = type;
    };
  };
  CHECK(against("tiny", as(tensor_dtype::bf16)).exit_code == 0);
  CHECK(against("tiny", as(tensor_dtype::f16)).exit_code == 0);
  CHECK(against("tiny", as(tensor_dtype::f64)).exit_code == 0);
  CHECK(against("tiny", as(tensor_dtype::bf16), "--tolerance 1e-4").exit_code == 1);
  CHECK(against("tiny", as_it_is, "--tolerance 1e-9").exit_code == 1);
}

TEST_CASE("against: files that are not to be compared") {
  const auto refused = [](auto change, std::initializer_list<std::string> words) {
    const result r = against("tiny", change);
    CHECK(r.exit_code == 2);
    CHECK(r.out == "");
    CHECK(says(r.err, words));
  };
  refused([](plain_tensors& all) { all["grad.model.layers.9.x"] = {{1}, {0}}; }, {"theirs", "grad.model.layers.9.x"});
  refused([](plain_tensors& all) { all["logit"] = all["logits"]; }, {"\"logit\"", "token_loss"});
  refused([](plain_tensors& all) { all["aux_loss"] = {{}, {0}}; }, {"aux_loss"});  // the model has none
  refused([](plain_tensors& all) { all.at("logits").shape = {4, 96, 16}; }, {"logits", "[4, 16, 96]", "[4, 96, 16]"});
  refused([](plain_tensors& all) { all.at(q_proj).shape = {2048}; }, {q_proj, "[64, 32]", "[2048]"});
  refused([](plain_tensors& all) { all.at("loss") = {{2}, {1, 1}}; }, {"loss", "[]", "[2]"});
  refused([](plain_tensors& all) { all.clear(); }, {"nothing to compare"});

  const result nan =
      against("tiny", [](plain_tensors& all) { all.at(q_proj).values[5] = std::numeric_limits<double>::quiet_NaN(); });
  CHECK(nan.exit_code == 1);
  CHECK(says(nan.out, {q_proj, "DIFFERS", "the file's value 5 is nan"}));

  const std::string file = tiny + "/expected.safetensors", verify = "verify --checkpoint " + tiny;
  check_failure(verify + " --against " + file, 2, {"--against", "--inputs"});
  check_failure(verify + " --inputs " + file, 2, {"--plan", "--against"});
  check_failure(verify + " --inputs " + file + " --against nowhere", 2, {"nowhere"});
  check_failure(verify + " --inputs " + file + " --against " + tiny + "/config.json", 2, {"config.json"});
  check_failure(verify + " --inputs " + file + " --against " + file + " --ledger", 2, {"--ledger", "--plan"});
}
