// SPDX-License-Identifier: Apache-2.0
// Every command does what docs/command_line.md says, when nothing is wrong; and says no when the answer is no.
#include <chrono>

#include "command.hpp"

using namespace command_test;

TEST_CASE("check: a legal plan") {
  const result text = shardplan("check --model qwen3-30b-a3b --plan pp=2,fsdp=2,cp=2/ring/zigzag,tp=2/sp,ep=4");
  CHECK(text.exit_code == 0);
  CHECK(says(text.out, {"16 ranks", "legal"}));
  CHECK(text.err == "");

  const json d = document(shardplan("check --model " + tiny + " --plan cp=2/ring/zigzag,tp=2/sp --seq 13 --json"));
  CHECK(d["legal"] == true);
  CHECK(d["plan"] == "cp=2/ring/zigzag,tp=2/sp");
  CHECK(d["world"] == 4);
  CHECK(d["violations"] == json::array());
  CHECK(d["advice"] == json::array());
  CHECK(d["padded"] == 16);
  CHECK_FALSE(document(shardplan("check --model " + tiny + " --plan tp=2 --seq 13 --json")).contains("padded"));
  CHECK(document(shardplan("check --model " + tiny +
                           " --plan cp=2/ring/zigzag_documents --documents 5+7 --json"))["padded"] == 16);
}

TEST_CASE("check: every broken rule with its numbers, a fix and the nearest legal plan") {
  const std::string arguments = "check --model " + tiny + " --plan pp=3,tp=8";
  const result text = shardplan(arguments);
  CHECK(text.exit_code == 1);
  CHECK(says(text.out, {"illegal", "kv_heads_divide_over_tensor", "even_stages_divide_the_layers", "num_layers = 8",
                        "kv_replicate", "nearest legal plan"}));
  const result with_json = shardplan(arguments + " --json");
  CHECK(with_json.exit_code == 1);
  const json d = document(with_json);
  CHECK(d["legal"] == false);
  CHECK(d["world"] == 24);
  REQUIRE(d["violations"].size() == 2);
  const json& v = d["violations"][0];
  CHECK(v["rule"] == "kv_heads_divide_over_tensor");
  CHECK(v["kind"] == "math");
  CHECK(v["sentence"].get<std::string>().find("must") != std::string::npos);
  CHECK(v["operands"] == json{{"num_kv_heads", 4}, {"tensor_degree", 8}, {"kv_replicate", 0}});
  CHECK(v["fix"].get<std::string>().find("kv_replicate") != std::string::npos);
  CHECK(shardplan("check --model " + tiny + " --plan " + d["nearest"].get<std::string>()).exit_code == 0);
}

TEST_CASE("an empty plan is tp=1, for every command") {
  CHECK(document(shardplan("check --model " + tiny + " --plan '' --json"))["plan"] == "tp=1");
  const result r = shardplan("verify --checkpoint " + tiny + " --plan '' --json");
  CHECK(r.exit_code == 0);
  CHECK(document(r)["plan"] == "tp=1");
}

TEST_CASE("help and version: of the command, and of each of its words") {
  CHECK(says(shardplan("--help").out, {"Usage: shardplan [OPTIONS] SUBCOMMAND"}));
  for (const std::string word : {"check", "explain", "run", "verify", "sweep", "init"}) {
    CHECK(says(shardplan(word + " --help").out, {"Usage: shardplan " + word + " [OPTIONS]"}));
    CHECK(shardplan(word + " --version").out == shardplan("--version").out);
  }
}

TEST_CASE("check: advice is no refusal; a world that does not fit is") {
  const result advice = shardplan("check --model " + tiny + " --plan tp=1/sp --json");
  CHECK(advice.exit_code == 0);
  CHECK(document(advice)["advice"][0]["rule"] == "sequence_parallel_has_a_tensor_axis");
  CHECK(shardplan("check --model " + tiny + " --plan tp=2 --world 2").exit_code == 0);
  CHECK(document(shardplan("check --model " + tiny + " --plan 'fsdp=*,tp=2' --world 8 --json"))["plan"] ==
        "fsdp=4/zero3,tp=2");
  for (const char* plan : {"tp=2", "'fsdp=*,tp=3'"}) {
    const result r = shardplan("check --model " + tiny + " --plan " + plan + " --world 8 --json");
    CHECK(r.exit_code == 1);
    CHECK(document(r)["violations"][0]["rule"] == "world_is_the_product_of_degrees");
  }
}

TEST_CASE("explain: the world, or one rank") {
  const std::string arguments =
      "explain --model " + tiny + " --plan pp=2,fsdp=2,cp=2/ring/zigzag,tp=2/sp,ep=4 --seq 13";
  const result text = shardplan(arguments);
  CHECK(text.exit_code == 0);
  CHECK(says(text.out, {"16 ranks", "2 data shards", "ep=4", "stage 1 on pp 1", "cp 0: 0:4 12:16", "zero3 (the plan's)",
                        "all_gather"}));
  const json d = document(shardplan(arguments + " --rank 5 --json"));
  CHECK(d["world"] == 16);
  CHECK(d["place"]["coordinates"]["tp"] == 1);
  CHECK(d["place"]["data_index"] == 1);
  CHECK(d["tokens"]["padded"] == 16);
  CHECK(d["tokens"]["ranks"][1]["ranges"] == json{{4, 8}, {8, 12}});
  CHECK(d["stages"][1]["layers"] == json{4, 8});
  CHECK(d["parameters"][0]["name"] == "model.embed_tokens.weight");
  CHECK(d["parameters"][0]["in_use"]["elements"] == 48 * 32);
  CHECK(d["parameters"][0]["kept"]["optimizer"]["elements"] == 12 * 32);
  CHECK(d["memory"]["by_zero_stage"].size() == 3);
  CHECK(d["collectives"]["calls"].size() > 5);
  // r = 8 tokens of a cp rank / tp 2 * one row, k = 2, two of 8 experts on each of 4 ranks, 32 numbers of 2 bytes.
  const json& rows = d["collectives"]["dispatched_rows"];
  CHECK(rows["row_bytes"] == 64);
  CHECK(rows["sent"] == json{{"balanced", 8}, {"most", 8}, {"balanced_bytes", 512}, {"most_bytes", 512}});
  CHECK(rows["received"] == json{{"balanced", 8}, {"most", 32}, {"balanced_bytes", 512}, {"most_bytes", 2048}});
  CHECK(says(text.out, {"8 rows (512 B) sent, at most 8 (512 B); 8 rows (512 B) received, at most 32 (2.00 KiB)"}));
  CHECK(d["collectives"]["most_wire_bytes"] > d["collectives"]["wire_bytes"]);
  for (const json& call : d["collectives"]["calls"])
    CHECK((call["axes"] == "ep" ? call["most_wire_bytes"] >= call["wire_bytes"]
                                : call["most_wire_bytes"] == call["wire_bytes"]));
  // A million ranks in a ring are no million steps; at 10 s it is not the time of a slow machine.
  const auto begin = std::chrono::steady_clock::now();
  CHECK(shardplan("explain --model qwen3-30b-a3b --plan cp=1048576/ring --seq 1048576").exit_code == 0);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  CHECK(shardplan("explain --model qwen3-235b-a22b --plan pp=2,fsdp=4,ep=4,tp=4,cp=2/ring").exit_code == 0);
  check_failure(arguments + " --rank 16", 2, {"--rank", "16"});
  check_failure("explain --model " + tiny + " --plan tp=3", 1, {"heads_divide_over_tensor_and_ulysses"});
}

TEST_CASE("verify: equal, in both types, with inputs made up or given") {
  const std::string plan = " --plan pp=2,fsdp=2,cp=2/ring/zigzag,tp=2/sp,ep=4";
  const result text = shardplan("verify --checkpoint " + tiny + plan);
  CHECK(text.exit_code == 0);
  CHECK(says(text.out, {"logits", "token_loss", "1e-10", "\nequal:", "16 ranks"}));
  CHECK(text.err == "");
  const result with_json = shardplan("verify --checkpoint " + tiny + plan + " --json --dtype f32 --seed 7");
  CHECK(with_json.exit_code == 0);
  const json d = document(with_json);
  CHECK(d["equal"] == true);
  CHECK(d["plan"] == "pp=2/1f1b,fsdp=2/zero3,cp=2/ring/zigzag,tp=2/sp,ep=4/dispatch");
  CHECK(d["tensors"][0]["name"] == "logits");
  CHECK(d["tensors"][0]["shape"] == json{8, 13, 96});
  CHECK(d["tensors"][0]["limit"] == 2e-5);
  CHECK(d["tensors"][0]["error"].get<double>() > 0);
  CHECK(d["tensors"][0]["equal"] == true);
  CHECK(d["replayed"]["of"] == 8 * 8 * 13);

  CHECK(shardplan("verify --checkpoint " + tiny + " --plan cp=4/all_gather --inputs " + tiny + "/expected.safetensors")
            .exit_code == 0);
  CHECK(shardplan("verify --checkpoint " + (data / "f16").string() + " --plan cp=2/ring,ep=2,expert_pad --inputs " +
                  (data / "f16" / "expected.safetensors").string())
            .exit_code == 0);
  const json sized =
      document(shardplan("verify --checkpoint " + tiny + " --plan fsdp=2 --seq 9 --batch 4 --micro-batches 2 --json"));
  CHECK(sized["equal"] == true);
  CHECK(sized["tensors"][0]["shape"] == json{4, 9, 96});
  const json packed =
      document(shardplan("verify --checkpoint " + tiny + " --plan cp=2/ring/zigzag_documents --documents 5+7 --json"));
  CHECK(packed["equal"] == true);
  CHECK(packed["tensors"][0]["shape"] == json{2, 12, 96});
}

TEST_CASE("verify: exit 1 when a tensor differs more than the tolerance, and for an illegal plan") {
  const result r = shardplan("verify --checkpoint " + tiny + " --plan tp=2 --tolerance 1e-18");
  CHECK(r.exit_code == 1);
  CHECK(says(r.out, {"DIFFERS", "NOT EQUAL"}));
  const result with_json = shardplan("verify --checkpoint " + tiny + " --plan tp=2 --tolerance 1e-18 --json");
  CHECK(with_json.exit_code == 1);
  CHECK(document(with_json)["equal"] == false);
  check_failure("verify --checkpoint " + tiny + " --plan tp=3", 1, {"heads_divide_over_tensor_and_ulysses"});
  check_failure("verify --checkpoint " + tiny + " --plan tp=2 --world 4", 1, {"world_is_the_product_of_degrees"});
  check_failure("verify --checkpoint " + tiny + " --plan fsdp=2 --batch 3", 1,
                {"rows_divide_over_data_and_micro_batches"});
  check_failure("verify --checkpoint " + tiny + " --plan fsdp=3 --inputs " + tiny + "/expected.safetensors", 1,
                {"rows_divide_over_data_and_micro_batches"});
}

TEST_CASE("run: writes what every plan computes alike") {
  const temporary_directory folder;
  const std::string inputs = " --inputs " + tiny + "/expected.safetensors --output ";
  const result r =
      shardplan("run --checkpoint " + tiny + " --plan tp=2,cp=2/ring" + inputs + (folder / "a") + " --json");
  CHECK(r.exit_code == 0);
  const json d = document(r);
  CHECK(d["world"] == 4);
  CHECK(d["num_items"] == 44);
  CHECK(d["loss"].get<double>() == doctest::Approx(5.40463803));
  CHECK(shardplan("run --checkpoint " + tiny + " --plan tp=1 --dtype f32" + inputs + (folder / "b")).exit_code == 0);
  CHECK(fs::file_size(folder / "a") > 8 * 4 * 16 * 96);
  CHECK(fs::file_size(folder / "b") > 4 * 4 * 16 * 96);
  CHECK(fs::file_size(folder / "b") < 8 * 4 * 16 * 96);
  CHECK(says(read_file(folder / "a").substr(0, 400), {"logits", "token_loss", "loss", "F64"}));
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 2);  // nothing temporary
}

TEST_CASE("init: a checkpoint that verifies") {
  const temporary_directory folder;
  const result r = shardplan("init --model " + tiny + " --output " + (folder / "new") + " --seed 5 --dtype f32 --json");
  CHECK(r.exit_code == 0);
  CHECK(document(r)["parameters"] == 156320);
  CHECK(shardplan("verify --checkpoint " + (folder / "new") + " --plan tp=2,ep=2").exit_code == 0);
  check_failure("init --model " + tiny + " --output " + (folder / "new"), 2, {"new"});  // not empty
}

TEST_CASE("sweep: every legal plan of two ranks, or a sample") {
  const result r = shardplan("sweep --checkpoint " + tiny + " --world 2 --json");
  CHECK(r.exit_code == 0);
  CHECK(r.err == "");  // no bar where there is no terminal
  const json d = document(r);
  CHECK(d["world"] == 2);
  CHECK(d["plans"].get<int>() > 51);
  CHECK(d["equal"] == d["plans"]);
  CHECK(d["failed"] == json::array());
  const result sample = shardplan("sweep --checkpoint " + tiny + " --world 8 --sample 5");
  CHECK(sample.exit_code == 0);
  CHECK(says(sample.out, {"world 8: 5 sampled legal plans, 5 equal, 0 failed"}));
}

TEST_CASE("help and version are no failure") {
  CHECK(shardplan("--help").exit_code == 0);
  CHECK(says(shardplan("verify --help").out, {"--checkpoint", "--documents", "--timeout", "--against", "--ledger"}));
  CHECK(says(shardplan("--version").out, {"shardplan "}));
}
