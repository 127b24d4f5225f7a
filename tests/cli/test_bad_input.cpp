// SPDX-License-Identifier: Apache-2.0
// Bad usage and bad input end with exit status 2 and a message that names file, field and value; an engine that is not
// there or too slow with 3. Each is tried in text and with --json.
#include "command.hpp"
#include "runtime/checkpoint/safetensors_writer.hpp"

using namespace command_test;
using shardplan::num;
using shardplan::runtime::safetensors_writer;
using shardplan::runtime::tensor_dtype;

namespace {

const std::string verify = "verify --checkpoint " + tiny;

/// verify of a copy of the checkpoint whose configuration `change` has spoilt.
template <class Change>
void check_config(Change change, std::initializer_list<std::string> words, int exit_code = 2) {
  const temporary_directory folder;
  const std::string model = copy_of_tiny(folder);
  json config = json::parse(read_file(model + "/config.json"));
  change(config);
  write_file(model + "/config.json", config.dump());
  check_failure("verify --checkpoint " + model + " --plan tp=2", exit_code, words);
}

/// verify with an input file that holds one tensor of integers.
void check_inputs(const char* name, std::vector<num> shape, std::vector<num> values,
                  std::initializer_list<std::string> words, bool with_ids = true) {
  const temporary_directory folder;
  safetensors_writer writer;
  if (with_ids) writer.add("input_ids", tensor_dtype::i64, {1, 4}, std::vector<num>{1, 2, 3, 4});
  writer.add(name, tensor_dtype::i64, std::move(shape), std::move(values));
  writer.write(folder / "in.safetensors");
  check_failure(verify + " --plan tp=2 --inputs " + (folder / "in.safetensors"), 2, words);
}

}  // namespace

TEST_CASE("unknown commands and options") {
  check_failure("", 2, {"check", "verify"});
  check_failure("bogus", 2, {"bogus", "check"});
  check_failure(verify, 2, {"--plan"});
  check_failure(verify + " --plan tp=2 --bogus", 2, {"--bogus"});
  check_failure(verify + " --plan tp=2 more", 2, {"more"});
  check_failure(verify + " --plan tp=2 --plan tp=4", 2, {"--plan"});
  check_failure(verify + " --plan tp=2 --seq 4 --documents 2+2", 2, {"--seq", "--documents"});
  check_failure(verify + " --plan tp=2 --seq 4 --inputs x", 2, {"--seq", "--inputs"});
  check_failure("check --plan tp=2", 2, {"--model"});
}

TEST_CASE("plan texts") {
  check_failure(verify + " --plan tp=0", 2, {"--plan", "tp", "'0'"});
  check_failure(verify + " --plan tp=-2", 2, {"tp", "'-2'"});
  check_failure(verify + " --plan tp=1099511627776", 2, {"tp", "1099511627776"});
  check_failure(verify + " --plan tp=65536,fsdp=65536", 2, {"fsdp", "2147483647"});
  check_failure(verify + " --plan tp=two", 2, {"tp", "two"});
  check_failure(verify + " --plan xp=2", 2, {"xp", "dp_replicate"});
  check_failure(verify + " --plan cp=2/spiral", 2, {"spiral", "ulysses"});
  check_failure(verify + " --plan 'tp=2, cp=2'", 2, {"space"});
  check_failure(verify + " --plan tp=2,tp=2", 2, {"tp", "twice"});
  check_failure(verify + " --plan 'fsdp=*'", 2, {"fsdp", "world"});
  check_failure("check --model " + tiny + " --plan tp=0", 2, {"tp", "'0'"});
}

TEST_CASE("numbers out of range, negative, huge, or no numbers") {
  for (const std::string option : {"--seq", "--batch", "--micro-batches", "--world"})
    for (const std::string value :
         {"0", "-1", "1099511627776", "99999999999999999999999", "1.5", "x", "''", "0x10", "+3"})
      check_failure(verify + " --plan tp=2 " + option + " " + value, 2, {option, value == "''" ? "" : value});
  for (const std::string value : {"0", "-1", "1099511627776", "x"}) {
    check_failure(verify + " --plan tp=2 --timeout " + value, 2, {"--timeout", value});
    check_failure("sweep --checkpoint " + tiny + " --world " + value, 2, {"--world", value});
    check_failure("sweep --checkpoint " + tiny + " --world 2 --sample " + value, 2, {"--sample", value});
  }
  for (const std::string value : {"5+", "+5", "5+0", "5,7", "-5+7", "5+1099511627776"})
    check_failure(verify + " --plan tp=2 --documents " + value, 2, {"--documents"});
  for (const std::string value : {"0", "-1", "nan", "x", "2"})
    check_failure(verify + " --plan tp=2 --tolerance " + value, 2, {"--tolerance", value});
  for (const std::string value : {"-1", "x", "99999999999999999999999"})
    check_failure(verify + " --plan tp=2 --seed " + value, 2, {"--seed", value});
  for (const std::string value : {"-1", "1099511627776", "x"})
    check_failure("explain --model " + tiny + " --plan tp=2 --rank " + value, 2, {"--rank", value});
  check_failure(verify + " --plan tp=2 --seq 2147483647 --batch 2147483647", 2, {"--batch", "2147483647"});
}

TEST_CASE("engines and types that are not there") {
  check_failure(verify + " --plan tp=2 --engine nccl", 3, {"nccl", "threads"});
  check_failure("sweep --checkpoint " + tiny + " --world 2 --engine nccl", 3, {"nccl"});
#ifndef SHARDPLAN_HAS_MPI
  check_failure(verify + " --plan tp=2 --engine mpi", 3, {"mpi", "threads"});
#endif
  check_failure(verify + " --plan tp=2 --engine smoke", 2, {"--engine", "smoke"});
  for (const char* engine : {"", " --engine threads", " --engine mpi"})
    check_failure(verify + " --plan tp=2 --dtype bf16" + engine, 2, {"--dtype", "bf16", "--engine nccl", "f32"});
  check_failure(verify + " --plan tp=2 --dtype f8", 2, {"--dtype", "f8"});
  check_failure(verify + " --plan fsdp=2048", 3, {"2048"});
}

TEST_CASE("checkpoints that are missing or broken") {
  check_failure("verify --checkpoint nowhere --plan tp=2", 2, {"nowhere"});
  check_failure("check --model nowhere --plan tp=2", 2, {"nowhere", "qwen3-30b-a3b"});
  check_failure("sweep --checkpoint nowhere --world 2", 2, {"nowhere"});
  const temporary_directory folder;
  check_failure("verify --checkpoint " + folder.path.string() + " --plan tp=2", 2, {"config.json"});
  const std::string model = copy_of_tiny(folder), weights = model + "/model.safetensors";
  const std::string again = "verify --checkpoint " + model + " --plan tp=2";
  const std::string good = read_file(weights);
  write_file(weights, good.substr(0, good.size() - 100));
  check_failure(again, 2, {"model.safetensors"});
  write_file(weights, good.substr(0, 5));
  check_failure(again, 2, {"model.safetensors"});
  std::string renamed = good;
  renamed.replace(renamed.find("model.norm.weight"), 17, "model.nerm.weight");
  write_file(weights, renamed);
  check_failure(again, 2, {"model.safetensors", "model.norm.weight"});
  std::string reshaped = good;
  reshaped.replace(reshaped.find("\"shape\":[96,32]"), 15, "\"shape\":[32,96]");
  write_file(weights, reshaped);
  check_failure(again, 2, {"model.safetensors", "[96, 32]", "[32, 96]"});
  fs::remove(weights);
  check_failure(again, 2, {"model.safetensors"});
}

TEST_CASE("configurations that are broken, by field and value; a model that breaks a rule is no bad input") {
  check_config([](json& c) { c.erase("num_hidden_layers"); }, {"config.json", "num_hidden_layers"});
  check_config([](json& c) { c["hidden_size"] = "32"; }, {"config.json", "hidden_size", "32"});
  check_config([](json& c) { c["num_attention_heads"] = 0; }, {"config.json", "num_attention_heads", "0"});
  check_config([](json& c) { c["num_experts_per_tok"] = -1; }, {"config.json", "num_experts_per_tok", "-1"});
  check_config([](json& c) { c["vocab_size"] = 97; }, {"model.safetensors", "97"});
  check_config([](json& c) { c["model_type"] = "llama"; }, {"config.json", "model_type", "llama"});
  check_config([](json& c) { c["num_experts_per_tok"] = 9; }, {"experts_per_token_fit_the_experts"}, 1);
  const temporary_directory folder;
  const std::string model = copy_of_tiny(folder);
  write_file(model + "/config.json", "{");
  check_failure("check --model " + model + " --plan tp=2", 2, {"config.json"});
}

TEST_CASE("inputs that do not fit the model or each other") {
  check_inputs("labels", {1, 4}, {1, 2, 3, 96}, {"in.safetensors", "labels[0][3]", "96"});
  check_inputs("labels", {1, 4}, {1, 2, 3, -1}, {"in.safetensors", "labels[0][3]", "-1"});
  check_inputs("labels", {1, 5}, {1, 2, 3, 4, 5}, {"in.safetensors", "labels", "[1, 4]", "[1, 5]"});
  check_inputs("position_ids", {4}, {1, 2, 3, 4}, {"in.safetensors", "position_ids", "[1, 4]", "[4]"});
  check_inputs("attention_mask", {1, 4}, {1, 2, 1, 1}, {"in.safetensors", "attention_mask[0][1]", "2"});
  check_inputs("cu_seq_lens_q", {3}, {0, 2, 5}, {"in.safetensors", "cu_seq_lens_q[2]", "4", "5"});
  check_inputs("cu_seq_lens", {4}, {0, 2, 2, 4}, {"in.safetensors", "cu_seq_lens[2]", "2"});
  check_inputs("cu_seq_lens", {2}, {1, 4}, {"in.safetensors", "cu_seq_lens[0]", "1"});
  check_inputs("cu_seq_lens", {1, 3}, {0, 2, 4}, {"in.safetensors", "cu_seq_lens", "[1, 3]"});
  check_inputs("input_idx", {1, 4}, {1, 2, 3, 4}, {"in.safetensors", "input_idx"});
  check_inputs("labels", {1, 4}, {1, 2, 3, 4}, {"in.safetensors", "input_ids"}, false);
  check_inputs("input_ids", {1, 4}, {1, 2, 3, 1000}, {"in.safetensors", "input_ids[0][3]", "1000"}, false);
  check_failure(verify + " --plan tp=2 --inputs nowhere.safetensors", 2, {"nowhere.safetensors"});
  check_failure(verify + " --plan tp=2 --inputs " + tiny + "/config.json", 2, {"config.json"});
}

TEST_CASE("outputs that cannot be written") {
  const temporary_directory folder;
  const std::string run = "run --checkpoint " + tiny + " --plan tp=2 --inputs " + tiny + "/expected.safetensors";
  check_failure(run, 2, {"--output"});
  check_failure(run + " --output " + (folder / "missing/out"), 2, {"missing/out"});
  check_failure(run + " --output " + folder.path.string(), 2, {folder.path.string()});
  CHECK(fs::is_empty(folder.path));
  check_failure("run --checkpoint " + tiny + " --plan tp=3 --inputs " + tiny + "/expected.safetensors --output " +
                    (folder / "out"),
                1, {"heads_divide_over_tensor_and_ulysses"});
  CHECK(fs::is_empty(folder.path));
  write_file(folder / "file", "x");
  check_failure("init --model " + tiny + " --output " + (folder / "file"), 2, {"file"});
}

TEST_CASE("files that are not named, or would be lost") {
  const temporary_directory folder;
  const std::string both = folder / "rows.safetensors";
  fs::copy_file(tiny + "/expected.safetensors", both);
  const auto size = fs::file_size(both);
  const std::string run = "run --checkpoint " + tiny + " --plan tp=2 --inputs " + both;
  check_failure(run + " --output " + both, 2, {"--output", "--inputs"});
  CHECK(fs::file_size(both) == size);
  const std::string copy = folder / "checkpoint", weights = copy + "/model.safetensors", state = folder / "state";
  fs::copy(tiny, copy);
  const std::string bytes = read_file(weights);
  const std::string of_copy = "run --checkpoint " + copy + " --plan tp=2 --inputs " + both;
  check_failure(of_copy + " --output " + weights, 2, {"--output", "--checkpoint"});
  check_failure(of_copy + " --output " + copy + "/config.json", 2, {"--output", "--checkpoint"});
  CHECK(read_file(weights) == bytes);
  check_failure(run + " --output " + (folder / "new") + " --save " + state + " --save-checkpoint " + state + "/", 2,
                {"--save-checkpoint", "--save"});
  CHECK_FALSE(fs::exists(state));
  check_failure(run + " --output \"\"", 2, {"--output", "empty"});
  check_failure(run + " --output " + (folder / "new") + " --resume \"\"", 2, {"--resume", "empty"});
  CHECK_FALSE(fs::exists(folder / "new"));
  const std::string verify = "verify --checkpoint " + tiny + " --plan tp=2";
  check_failure(verify + " --inputs \"\"", 2, {"--inputs", "empty"});
  check_failure(verify + " --inputs " + both + " --against \"\"", 2, {"--against", "empty"});
  check_failure("verify --checkpoint \"\" --plan tp=2", 2, {"--checkpoint", "empty"});
  check_failure("sweep --checkpoint \"\" --world 2", 2, {"--checkpoint", "empty"});
  check_failure("init --model " + tiny + " --output \"\"", 2, {"--output", "empty"});
}

TEST_CASE("more ranks than threads carry are refused before anything is computed") {
  check_failure("verify --checkpoint " + tiny + " --plan dp_replicate=100000", 3, {"1024", "100000"});
}
