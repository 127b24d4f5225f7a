// SPDX-License-Identifier: Apache-2.0
// What a Hugging Face `config.json` says of a model: its dims (model_spec) and the real numbers beside them.
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_MODEL_CONFIG_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_MODEL_CONFIG_HPP

#include <filesystem>
#include <shardplan/model.hpp>
#include <shardplan/models.hpp>
#include <string_view>

#include "runtime/checkpoint/tensor_dtype.hpp"
#include "runtime/device/rope.hpp"

namespace shardplan::runtime {

/// `model_type` of a configuration.
enum class model_family {
  qwen3_moe,
  qwen3,   ///< dense; any layer may have a window
  mistral  ///< dense, without norms of queries and keys; all layers have the window or none
};

struct model_config {
  model_family family = model_family::qwen3_moe;  ///< as which it is written; what is computed, the spec says
  model_spec spec;
  double rms_norm_eps = 1e-6;
  bool norm_topk_prob = false;
  rope_config rope;
  double initializer_range = 0.02;
  double router_aux_loss_coef = 0.001;
  bool output_router_logits = false;  ///< the loss includes the auxiliary loss

  friend bool operator==(const model_config&, const model_config&) = default;
};

/// Reads `directory/config.json`; old and new spellings of rotary and expert fields are understood. Sizes must be
/// there; what tells heads of a dense model apart, real numbers and switches have the defaults of the public
/// implementation. A model that breaks a rule (an
/// odd head_dim, more chosen experts than experts) is read all the same: rules are checked elsewhere.
/// Throws input_error naming file, field and value; so does a field that asks for what is not implemented (another
/// activation, shared experts, quantized weights).
model_config read_config(const std::filesystem::path& directory);

/// "float32", "bfloat16" ...: how a configuration spells the type of weights. Throws input_error when it is no floating
/// type.
std::string_view torch_name(tensor_dtype dtype);

/// Writes `directory/config.json` so that `transformers`, version 4 or 5, and read_config read `config` from it;
/// `dtype` is that of the weights. Throws input_error when it cannot be written, or the family has no words for the
/// spec. (Version 4 reads the windows of a qwen3 model only where the layers below some index have none.)
void write_config(const std::filesystem::path& directory, const model_config& config, tensor_dtype dtype);

/// A published model with the real numbers of its release.
model_config config_of(const models::published_model& model);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_MODEL_CONFIG_HPP
