// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/error.hpp"
#include "runtime/verify/inputs.hpp"

namespace shardplan::runtime {
namespace {

constexpr std::string_view input_names[] = {"input_ids",    "inputs_embeds",  "labels",
                                            "shift_labels", "attention_mask", "position_ids"};
constexpr std::string_view result_names[] = {"logits", "token_loss", "loss", "compare_mask"};

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

[[noreturn]] void refuse(const tensor_entry& tensor, std::string_view must) {
  throw input_error(fmt::format("{}: tensor \"{}\" must be of shape {}, but is {}", tensor.file, tensor.name, must,
                                to_text(tensor.shape)));
}

/// Integers of shape (rows, length); (1, length) is given to every row where `shared`.
std::vector<num> read_field(const safetensors_file& file, std::string_view name, const batch_rows& rows,
                            bool shared = false) {
  const tensor_entry* tensor = file.find(name);
  if (tensor == nullptr) return {};
  const std::vector<num> whole{rows.rows, rows.length}, single{1, rows.length};
  if (tensor->shape != whole && !(shared && tensor->shape == single)) refuse(*tensor, to_text(whole));
  std::vector<num> values = read_as<num>(*tensor);
  const std::size_t count = values.size();
  for (num row = 1; tensor->shape != whole && row < rows.rows; ++row)
    for (std::size_t i = 0; i < count; ++i) values.push_back(values[i]);
  return values;
}

}  // namespace

batch_rows read_inputs(const std::filesystem::path& path, const model_spec& model) {
  const safetensors_file file = safetensors_file::open(path);
  for (const tensor_entry& t : file.entries())
    if (!is_one_of(input_names, t.name) && !is_one_of(result_names, t.name) && !t.name.starts_with("grad."))
      throw input_error(
          fmt::format("{}: tensor \"{}\" is not an input: {}", t.file, t.name, fmt::join(input_names, ", ")));

  const tensor_entry *ids = file.find("input_ids"), *embeds = file.find("inputs_embeds");
  if ((ids == nullptr) == (embeds == nullptr))
    throw input_error(fmt::format("{}: must hold exactly one of the tensors input_ids and inputs_embeds, but holds {}",
                                  path.string(), ids == nullptr ? "none" : "both"));
  batch_rows rows;
  const tensor_entry& tokens = ids != nullptr ? *ids : *embeds;
  if (tokens.shape.size() != (ids != nullptr ? 2u : 3u) || tokens.size() == 0)
    refuse(tokens, ids != nullptr ? "[rows, length]" : "[rows, length, hidden_size]");
  rows.rows = tokens.shape[0], rows.length = tokens.shape[1];
  if (embeds != nullptr) {
    if (embeds->shape[2] != model.hidden_size)
      refuse(*embeds, to_text(std::vector<num>{rows.rows, rows.length, model.hidden_size}));
    rows.inputs_embeds = read_as<double>(*embeds);
  }
  rows.input_ids = read_field(file, "input_ids", rows);
  rows.labels = read_field(file, "labels", rows);
  rows.shift_labels = read_field(file, "shift_labels", rows);
  rows.attention_mask = read_field(file, "attention_mask", rows);
  rows.position_ids = read_field(file, "position_ids", rows, true);
  if (!rows.shift_labels.empty()) rows.labels.clear();
  try {
    validate(rows, model);
  } catch (const input_error& e) {
    throw input_error(fmt::format("{}: {}", path.string(), e.what()));
  }
  return rows;
}

}  // namespace shardplan::runtime
