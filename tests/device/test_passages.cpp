// SPDX-License-Identifier: Apache-2.0
// How often values pass between a device and its host, which docs/gpu.md says.
#include "runtime/checkpoint/init.hpp"
#include "tests/device/run_on_host.hpp"

namespace shardplan::runtime {

TEST_CASE("inside a layer no more passes between host and device than docs/gpu.md says") {
  tests::temporary_directory directory;
  std::vector<checkpoint> models;  // of one layer and of two
  for (num layers : {1, 2}) {
    model_config config = weights_of("tiny").config();
    config.spec.num_hidden_layers = layers;
    const auto path = directory.path / std::to_string(layers);
    write_random_checkpoint(path, config, 3, tensor_dtype::f32);
    models.push_back(checkpoint::open(path));
  }
  const batch_rows rows = make_rows(models[0].config().spec, 2, 11);
  struct {
    const char* plan;
    guarded::passages in_layer;  // forward and backward
    num blocks;                  // whose places a rank needs
  } const expected[] = {
      {"tp=1", {0, 1}, 1},
      {"cp=4/ring/zigzag", {0, 1}, 4},
      {"cp=4/ulysses2xring2,tp=2/sp,ep=2", {1, 1}, 2},
      {"cp=2/all_gather,ep=2,etp=2,tp=2", {1, 1}, 2},
      {"tp=2/sp,ep=2/all_reduce", {0, 1}, 1},
      {"cp=2,ep=2/all_gather", {0, 1}, 1},
  };
  for (const auto& e : expected) {
    INFO(std::string(e.plan));
    // One micro-batch more is as much again inside each layer, and what goes there before the first.
    guarded::passages of_micro_batch[2];
    for (std::size_t i = 0; i < 2; ++i) {
      const plan_spec plan = plan_for(models[i].config().spec, e.plan);
      REQUIRE(broken_rules(models[i].config().spec, plan, rows, 2) == "");
      guarded::passages one, two;
      run_kernels<bf16>(models[i], plan, 1, rows, with_gradients(), nullptr, &one);
      run_kernels<bf16>(models[i], plan, 2, rows, with_gradients(), nullptr, &two);
      of_micro_batch[i] = two - one;
    }
    const guarded::passages in_layer = of_micro_batch[1] - of_micro_batch[0], before = of_micro_batch[0] - in_layer;
    CHECK(in_layer.up == e.in_layer.up);
    CHECK(in_layer.down == e.in_layer.down);
    // Ids, targets, positions, what is real and what is counted; of each place the offset, the document, the mask.
    CHECK(before.up == 5 + 3 * e.blocks);
  }
}

}  // namespace shardplan::runtime
