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
                                            "shift_labels", "attention_mask", "position_ids",
                                            "cu_seq_lens",  "cu_seq_lens_q",  "cu_seq_lens_k"};
constexpr std::string_view result_names[] = {"logits",       "token_loss",    "loss",        "aux_loss",
                                             "balance_loss", "gradient_norm", "compare_mask"};

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

/// Where documents begin, over all rows; empty when the file does not say. Every row begins one.
std::vector<char> read_borders(const safetensors_file& file, const batch_rows& rows) {
  const num tokens = rows.rows * rows.length;
  std::vector<num> known;
  std::string_view known_name;
  for (std::string_view name : {"cu_seq_lens", "cu_seq_lens_q", "cu_seq_lens_k"}) {
    const tensor_entry* tensor = file.find(name);
    if (tensor == nullptr) continue;
    if (tensor->shape.size() != 1 || tensor->size() < 2) refuse(*tensor, "[documents + 1]");
    const std::vector<num> values = read_as<num>(*tensor);
    const auto wrong = [&](std::size_t i, const std::string& must) {
      throw input_error(fmt::format("{}: {}[{}] must be {}, but is {}", tensor->file, name, i, must, values[i]));
    };
    if (values.front() != 0) wrong(0, "0");
    for (std::size_t i = 1; i < values.size(); ++i)
      if (values[i] <= values[i - 1]) wrong(i, fmt::format("above {}, the one before it", values[i - 1]));
    if (values.back() != tokens)
      wrong(values.size() - 1, fmt::format("{}, the tokens of {} rows of {}", tokens, rows.rows, rows.length));
    if (!known_name.empty() && values != known)
      throw input_error(fmt::format("{}: {} and {} must be the same", tensor->file, known_name, name));
    known = values, known_name = name;
  }
  if (known.empty()) return {};
  std::vector<char> borders(static_cast<std::size_t>(tokens), 0);
  for (std::size_t i = 0; i + 1 < known.size(); ++i) borders[static_cast<std::size_t>(known[i])] = 1;
  for (num row = 0; row < rows.rows; ++row)
    if (borders[static_cast<std::size_t>(row * rows.length)] == 0)
      throw input_error(fmt::format("{}: {} must hold {}, where row {} begins: a document lies in one row",
                                    file.path().string(), known_name, row * rows.length, row));
  return borders;
}

/// position_ids that restart where documents begin, or a check that those given begin documents there too.
void set_documents(batch_rows& rows, const std::vector<char>& borders) {
  if (borders.empty()) return;
  if (rows.position_ids.empty())
    for (std::size_t i = 0; i < borders.size(); ++i)
      rows.position_ids.push_back(borders[i] != 0 ? 0 : rows.position_ids.back() + 1);
  const std::vector<std::vector<num>> documents = find_documents(rows);
  for (num row = 0; row < rows.rows; ++row) {
    num next = 0;
    std::size_t document = 0;
    for (num i = 0; i < rows.length; ++i) {
      const bool begins = i == next;
      if (begins) next += documents[static_cast<std::size_t>(row)][document++];
      if (begins == (borders[static_cast<std::size_t>(row * rows.length + i)] != 0)) continue;
      const std::string_view others = rows.attention_mask.empty() ? "position_ids" : "attention_mask";
      throw input_error(fmt::format(
          "cu_seq_lens and {} disagree: at [{}][{}] a document begins according to {} alone{}", others, row, i,
          begins ? others : "cu_seq_lens", rows.attention_mask.empty() ? "" : " (with a mask, a row is one document)"));
    }
  }
}

}  // namespace

bool is_input_name(std::string_view name) { return is_one_of(input_names, name); }
bool is_result_name(std::string_view name) {
  return is_one_of(result_names, name) || name.starts_with("grad.") || name.starts_with("parameter.");
}

batch_rows read_inputs(const std::filesystem::path& path, const model_spec& model) {
  const safetensors_file file = safetensors_file::open(path);
  for (const tensor_entry& t : file.entries())
    if (!is_input_name(t.name) && !is_result_name(t.name))
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
  const std::vector<char> borders = read_borders(file, rows);
  try {
    validate(rows, model);
    set_documents(rows, borders);
  } catch (const input_error& e) {
    throw input_error(fmt::format("{}: {}", path.string(), e.what()));
  }
  return rows;
}

}  // namespace shardplan::runtime
