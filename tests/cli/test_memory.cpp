// SPDX-License-Identifier: Apache-2.0
// Long sequences: scores of attention are never in memory as a whole, so that it grows with the length, not its square.
#include <sys/resource.h>  // getrusage

#include "command.hpp"
#include "runtime/checkpoint/safetensors_writer.hpp"

namespace command_test {
namespace {

using shardplan::num;

constexpr num length = 32768;
constexpr char config[] = R"({
  "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
  "num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 64, "moe_intermediate_size": 32, "num_experts": 4,
  "num_experts_per_tok": 2, "decoder_sparse_step": 1, "norm_topk_prob": true, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
  "vocab_size": 64, "attention_bias": false})";

/// The most memory that any command run so far has had, in MiB.
num largest_child() {
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  return used.ru_maxrss / 1024;
}

}  // namespace

TEST_CASE("a sequence of 32768 tokens on four context-parallel ranks needs less than 2 GiB") {
  const temporary_directory folder;
  write_file(folder.path / "config.json", config);
  REQUIRE(shardplan("init --model " + folder.path.string() + " --output " + (folder / "model")).exit_code == 0);
  std::vector<num> ids;
  for (num i = 0; i < length; ++i) ids.push_back((i * 7 + i / 64) % 64);
  shardplan::runtime::safetensors_writer inputs;
  inputs.add("input_ids", shardplan::runtime::tensor_dtype::i64, {1, length}, std::move(ids));
  inputs.write(folder / "in.safetensors");

  for (const char* plan : {"cp=4/ring/zigzag", "cp=4/ulysses"}) {
    CAPTURE(std::string(plan));
    const result r = shardplan("run --checkpoint " + (folder / "model") + " --plan " + plan + " --inputs " +
                               (folder / "in.safetensors") + " --output " + (folder / "out.safetensors"));
    CHECK(r.exit_code == 0);
    CHECK(largest_child() < 2048);
    MESSAGE(std::string(plan), ": ", largest_child(), " MiB; one head's scores would be ",
            length * length * 8 / 1048576);
  }
}

}  // namespace command_test
