// SPDX-License-Identifier: Apache-2.0
// Typed access to the fields of a JSON file. Every message names the file, the field, what it must be and what it is:
//   DIR/config.json: field "num_hidden_layers" must be an integer >= 1, but is "12"
#ifndef SHARDPLAN_RUNTIME_CHECKPOINT_JSON_FILE_HPP
#define SHARDPLAN_RUNTIME_CHECKPOINT_JSON_FILE_HPP

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <shardplan/meta.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/error.hpp"

namespace shardplan::runtime {

/// Parses `text`, refusing a key given twice in one object. Throws input_error that starts with `where`.
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// Text as it goes into a message: cut off when long, and what is not printable ASCII replaced.
std::string excerpt_text(std::string text);
/// A value as it goes into a message: JSON in ASCII, cut off when long.
std::string excerpt(const nlohmann::json& value);

/// An object of a JSON file.
class json_object {
 public:
  /// The largest integer that a field may hold.
  static constexpr num max_integer = 2147483647;

  /// Reads a file whose top level is an object. Throws input_error.
  static json_object read(const std::filesystem::path& path);

  /// Has the field, and it is not null.
  bool has(std::string_view field) const;
  /// The value of a field, null when absent.
  const nlohmann::json& get(std::string_view field) const;
  /// Throws input_error: field "F" must be `requirement`, but is ... (or is missing).
  [[noreturn]] void refuse(std::string_view field, std::string_view requirement) const;

  /// An integer from `least` to `most`; throws input_error when missing.
  num integer(std::string_view field, num least, num most = max_integer) const;
  num integer_or(std::string_view field, num otherwise, num least, num most = max_integer) const;
  /// A finite number of at least `least` (or above it, when `open`).
  double number_or(std::string_view field, double otherwise, double least, bool open = false) const;
  bool boolean_or(std::string_view field, bool otherwise) const;
  std::string text(std::string_view field) const;
  std::string text_or(std::string_view field, std::string_view otherwise) const;
  /// An object, or none when absent or null.
  std::optional<json_object> object(std::string_view field) const;

  const nlohmann::json& value() const { return value_; }
  const std::string& where() const { return where_; }

 private:
  json_object(std::string where, std::string prefix, nlohmann::json value)
      : where_(std::move(where)), prefix_(std::move(prefix)), value_(std::move(value)) {}
  std::string where_;   // the file
  std::string prefix_;  // names of the objects around this one, each followed by a dot
  nlohmann::json value_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_CHECKPOINT_JSON_FILE_HPP
