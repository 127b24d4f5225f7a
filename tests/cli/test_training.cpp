// SPDX-License-Identifier: Apache-2.0
// Gradients, optimizer steps, what is sent, and the state of a training on disk, through the command.
#include "doctored.hpp"

using namespace command_test;

namespace {

const std::string verify = "verify --checkpoint " + tiny + " --plan ";
const std::string run = "run --checkpoint " + tiny + " --inputs " + tiny + "/expected.safetensors --plan ";

}  // namespace

TEST_CASE("verify --gradients: every gradient, the worst ten in the table") {
  const std::string plan = "pp=2,fsdp=2,cp=2/ring/zigzag,tp=2/sp,ep=4 --gradients";
  const result text = command(verify + plan);
  CHECK(text.exit_code == 0);
  CHECK(says(text.out, {"gradient_norm", "grad.*: 91 tensors", "1e-10"}));
  std::size_t shown = 0;
  for (std::size_t at = text.out.find("\ngrad."); at != std::string::npos; at = text.out.find("\ngrad.", at + 1))
    ++shown;
  CHECK(shown == 11);
  const json d = document(command(verify + plan + " --dtype f32 --json"));
  CHECK(d["equal"] == true);
  const json q = row_of(d["tensors"], "grad.model.layers.7.self_attn.q_proj.weight");
  CHECK(q["shape"] == json{64, 32});
  CHECK(q["limit"] == 1e-4);
  CHECK(row_of(d["tensors"], "gradient_norm")["equal"] == true);
  CHECK(command(verify + "tp=2 --gradients --tolerance 1e-18").exit_code == 1);

  const json balanced = document(
      command("verify --checkpoint " + (data / "auxiliary").string() + " --plan fsdp=2,ep=2 --gradients --json"));
  CHECK(balanced["equal"] == true);
  CHECK(row_of(balanced["tensors"], "balance_loss")["error"].get<double>() < 1e-10);
}

TEST_CASE("verify --steps: every parameter and every loss, in both types") {
  const json d = document(command(verify + "fsdp=2/zero1,cp=2/ring,tp=2,ep=2 --steps 3 --json"));
  CHECK(d["equal"] == true);
  CHECK(d["steps"] == 3);
  CHECK(row_of(d["tensors"], "step_losses")["shape"] == json{3});
  CHECK(row_of(d["tensors"], "parameter.model.layers.2.mlp.experts.down_proj")["shape"] == json{8, 32, 16});
  const result f32 = command(verify +
                             "pp=2,dp_replicate=2 --steps 3 --dtype f32 --learning-rate 0.01 "
                             "--weight-decay 0.1");
  CHECK(f32.exit_code == 0);
  CHECK(says(f32.out, {"learning rate 0.01, weight decay 0.1", "left out", "parameter.*: 91 tensors"}));
  const json replayed = document(command(verify + "cp=2/ring,ep=2 --steps 3 --dtype f32 --json"));
  CHECK(replayed["equal"] == true);
  CHECK(replayed["replayed"]["of"] == 3 * 8 * 2 * 13);  // steps, layers, rows, tokens
}

TEST_CASE("verify --ledger: what is sent is what was predicted") {
  const result text = command(verify + "pp=2,fsdp=2,cp=2/ring/zigzag,tp=2/sp,ep=4 --gradients --ledger");
  CHECK(text.exit_code == 0);
  CHECK(
      says(text.out, {"gradients", "reduce_scatter", "efsdp", "cp_ring", "the ledger of every rank is as predicted"}));
  const json l = document(command(verify + "fsdp=2,tp=2,ep=4 --ledger --json"))["ledger"];
  CHECK(l["equal"] == true);
  CHECK(l["entries"].get<int>() > 100);
  CHECK(l["entries"] == l["predicted_entries"]);
  CHECK(l["bytes"] == l["predicted_bytes"]);
  num bytes = 0;
  for (const json& line : l["by_axes"]) bytes += line["bytes"].get<num>();
  CHECK(bytes == l["bytes"]);
  CHECK(l["by_axes"][0]["phase"] == "parameters");
  // Steps change the routing, on which only dispatch depends.
  CHECK(document(command(verify + "fsdp=2,ep=2 --steps 2 --ledger --json"))["ledger"]["first_pass_only"] == true);
  CHECK(document(command(
            verify + "fsdp=2/zero1,ep=2/all_gather --steps 2 --ledger --json"))["ledger"]["first_pass_only"] == false);
  CHECK(document(command(verify + "tp=1 --ledger --json"))["ledger"]["entries"] == 0);
}

TEST_CASE("sweep --gradients --ledger") {
  const json d = document(command("sweep --checkpoint " + tiny + " --world 2 --gradients --ledger --json"));
  CHECK(d["equal"] == d["plans"]);
  CHECK(d["gradients"] == true);
  CHECK(d["ledger"]["entries"].get<int>() > 1000);
  CHECK(command("sweep --checkpoint " + (data / "auxiliary").string() + " --world 4 --sample 20 --gradients --ledger")
            .exit_code == 0);
}

TEST_CASE("run: gradients and parameters, the same under every plan") {
  const temporary_directory folder;
  const json d = document(command(run + "tp=2,cp=2/ring --gradients --steps 2 --json --output " + (folder / "a")));
  CHECK(d["gradient_norm"].get<double>() == doctest::Approx(4.18122519));
  CHECK(d["step_losses"].size() == 2);
  CHECK(d["tensors"].size() == 3 + 2 * 91);
  CHECK(command(run + "pp=2,fsdp=2 --gradients --steps 2 --output " + (folder / "b")).exit_code == 0);
  const plain_tensors a = results_of(folder / "a"), b = results_of(folder / "b");
  REQUIRE(a.size() == 3 + 2 * 91);
  for (const auto& [name, t] : a) {
    CHECK(t.shape == b.at(name).shape);
    double most = 0;
    for (std::size_t i = 0; i < t.values.size(); ++i)
      most = std::max(most, std::abs(t.values[i] - b.at(name).values[i]));
    CHECK_MESSAGE(most < 1e-10, name);
  }
}

TEST_CASE("run --save and --resume: a training goes on under another plan") {
  const temporary_directory folder;
  const std::string state = folder / "state";
  CHECK(command(run + "tp=2,fsdp=2 --steps 2 --save " + state + " --output " + (folder / "a")).exit_code == 0);
  CHECK(fs::exists(folder.path / "state" / "latest"));
  CHECK(command(run + "pp=2,cp=2/ring --steps 2 --resume " + state + " --save " + state + " --output " + (folder / "b"))
            .exit_code == 0);
  CHECK(command(run + "tp=1 --steps 4 --output " + (folder / "c")).exit_code == 0);
  const plain_tensors b = results_of(folder / "b"), c = results_of(folder / "c");
  for (const auto& [name, t] : c)
    if (name.starts_with("parameter."))
      for (std::size_t i = 0; i < t.values.size(); i += 7)
        REQUIRE(std::abs(t.values[i] - b.at(name).values[i]) < 1e-10);
  CHECK(fs::exists(folder.path / "state" / "step-00000004"));
}

TEST_CASE("run --save-checkpoint: what was read, through a state of another plan, or what was trained") {
  const temporary_directory folder;
  const std::string out = " --output " + (folder / "out"), state = folder / "state";

  CHECK(command(run + "tp=8,kv_replicate,ep=4 --save " + state + out).exit_code == 0);
  const json d = document(command(run + "pp=2,cp=2/ring/zigzag --json --resume " + state + " --save-checkpoint " +
                                  (folder / "same") + out));
  CHECK(d["saved_checkpoint"] == folder / "same");
  CHECK(d["tensors"].size() == 3);
  CHECK(read_file(folder.path / "same" / "config.json") == read_file(data / "tiny" / "config.json"));
  const plain_tensors same = results_of(folder / "same" + std::string("/model.safetensors")),
                      read = results_of(data / "tiny" / "model.safetensors");
  REQUIRE(same.size() == read.size());
  for (const auto& [name, t] : read)
    CHECK_MESSAGE((same.at(name).values == t.values && same.at(name).dtype == t.dtype), name);

  // After steps the type is that of the run, and the weights are those of --output.
  CHECK(command(run + "pp=2,cp=2/ring --steps 2 --save-checkpoint " + (folder / "new") + out).exit_code == 0);
  const plain_tensors fresh = results_of(folder / "new" + std::string("/model.safetensors")),
                      written = results_of(folder / "out");
  const std::string norm = "model.layers.3.input_layernorm.weight",
                    expert = "model.layers.2.mlp.experts.5.up_proj.weight";
  CHECK(fresh.at(norm).dtype == tensor_dtype::f64);
  CHECK(fresh.at(norm).values == written.at("parameter." + norm).values);
  const std::vector<double>& fused = written.at("parameter.model.layers.2.mlp.experts.gate_up_proj").values;
  CHECK(fresh.at(expert).values ==
        std::vector<double>(fused.begin() + (5 * 32 + 16) * 32, fused.begin() + 6 * 32 * 32));
  CHECK(command("verify --checkpoint " + (folder / "new") + " --plan tp=2,ep=2").exit_code == 0);
  check_failure(run + "tp=2 --save-checkpoint " + (folder / "new") + out, 2, {"new", "is there already"});
  check_failure(run + "tp=2 --save-checkpoint " + (folder / "no/where") + out, 2, {"where", "cannot be created"});
}

TEST_CASE("run refuses weights that are not finite, and steps without labels") {
  const temporary_directory folder;
  const std::string model = copy_of_tiny(folder), weights = model + "/model.safetensors";
  plain_tensors tensors = results_of(weights);
  tensors.at("model.layers.1.self_attn.q_proj.weight").values[7] = NAN;
  write_tensors(tensors, weights);
  const std::string inputs = " --inputs " + tiny + "/expected.safetensors", out = " --output " + (folder / "out");
  const std::string more = " --save-checkpoint " + (folder / "weights");
  check_failure("run --checkpoint " + model + inputs + " --plan tp=2" + out + more, 1, {"logits: value 0 is nan"});
  check_failure("run --checkpoint " + model + inputs + " --plan tp=2 --steps 1 --save " + (folder / "state") + out, 1,
                {"the state is not saved: model.embed_tokens.weight"});
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);  // nothing was written

  safetensors_writer ids;
  ids.add("input_ids", tensor_dtype::i64, {2, 4}, std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8});
  ids.write(folder / "ids");
  const std::string forward = "run --checkpoint " + tiny + " --plan tp=2 --inputs " + (folder / "ids") + out;
  CHECK(command(forward).exit_code == 0);
  check_failure(forward + " --steps 1", 2, {"--steps", "ids", "no label"});
}

TEST_CASE("options of training that make no sense") {
  for (const std::string value : {"0", "-1", "1099511627776", "1.5", "x"}) {
    check_failure(verify + "tp=2 --steps " + value, 2, {"--steps", value});
    check_failure(run + "tp=2 --output out --steps " + value, 2, {"--steps", value});
  }
  for (const std::string value : {"0", "-1", "nan", "inf", "2", "x"})
    check_failure(verify + "tp=2 --steps 1 --learning-rate " + value, 2, {"--learning-rate", value});
  check_failure(verify + "tp=2 --steps 1 --weight-decay -0.1", 2, {"--weight-decay", "-0.1"});
  check_failure(verify + "tp=2 --learning-rate 0.1", 2, {"--learning-rate", "--steps"});
  const temporary_directory folder;
  const std::string out = " --output " + (folder / "out");
  check_failure(run + "tp=2 --steps 1 --resume " + (folder / "nothing") + out, 2, {"nothing", "latest"});
  write_file(folder / "file", "x");
  check_failure(run + "tp=2 --steps 1 --save " + (folder / "file") + out, 2, {"file"});
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
}
