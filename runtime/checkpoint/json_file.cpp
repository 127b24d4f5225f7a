// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/json_file.hpp"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

namespace shardplan::runtime {
namespace {

// A configuration has a few kilobytes, the index of the largest published model a few megabytes.
constexpr std::uintmax_t max_file_bytes = 100'000'000;

std::string whole_file(const std::filesystem::path& path) {
  const std::string where = path.string();
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw input_error(fmt::format("{}: no such file", where));
  if (!std::filesystem::is_regular_file(status)) throw input_error(fmt::format("{}: not a regular file", where));
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) throw input_error(fmt::format("{}: cannot be read: {}", where, error.message()));
  if (bytes > max_file_bytes)
    throw input_error(fmt::format("{}: {} bytes, but at most {} are read", where, bytes, max_file_bytes));
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) throw input_error(fmt::format("{}: cannot be read", where));
  return text;
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  using json = nlohmann::json;
  std::vector<std::set<std::string>> keys;  // of the objects that are open, outermost first
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    // Printing a value is recursive, unlike parsing it.
    if (depth > 100) throw input_error(fmt::format("{}: not valid JSON: nested too deeply", where));
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw input_error(fmt::format("{}: field {} is given twice", where, excerpt(parsed)));
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& e) {
    // The library's own name and number of the error, in brackets, tell a user nothing.
    std::string reason = e.what();
    if (const auto bracket = reason.find("] "); bracket != std::string::npos) reason.erase(0, bracket + 2);
    throw input_error(fmt::format("{}: not valid JSON: {}", where, excerpt_text(reason)));
  }
}

std::string excerpt_text(std::string text) {
  constexpr std::size_t longest = 120;
  if (text.size() > longest) text.replace(longest - 3, std::string::npos, "...");
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

std::string excerpt(const nlohmann::json& value) {
  return excerpt_text(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

json_object json_object::read(const std::filesystem::path& path) {
  nlohmann::json value = parse_json(whole_file(path), path.string());
  if (!value.is_object())
    throw input_error(fmt::format("{}: must hold a JSON object, but holds {}", path.string(), excerpt(value)));
  return {path.string(), "", std::move(value)};
}

const nlohmann::json& json_object::get(std::string_view field) const {
  static const nlohmann::json none;
  const auto found = value_.find(field);
  return found == value_.end() ? none : *found;
}

bool json_object::has(std::string_view field) const { return !get(field).is_null(); }

void json_object::refuse(std::string_view field, std::string_view requirement) const {
  const std::string is = value_.contains(field) ? "is " + excerpt(get(field)) : "is missing";
  throw input_error(fmt::format("{}: field \"{}{}\" must be {}, but {}", where_, prefix_, field, requirement, is));
}

num json_object::integer(std::string_view field, num least, num most) const {
  const nlohmann::json& value = get(field);
  // true, 12.0 and "12" are no integers.
  const bool exceeds = value.is_number() && value.get<double>() > static_cast<double>(most);
  if (!value.is_number_integer() || exceeds || value.get<num>() < least)
    refuse(field, exceeds || most != max_integer ? fmt::format("an integer from {} to {}", least, most)
                                                 : fmt::format("an integer >= {}", least));
  return value.get<num>();
}

num json_object::integer_or(std::string_view field, num otherwise, num least, num most) const {
  return value_.contains(field) ? integer(field, least, most) : otherwise;
}

double json_object::number_or(std::string_view field, double otherwise, double least, bool open) const {
  if (!value_.contains(field)) return otherwise;
  const nlohmann::json& value = get(field);
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!std::isfinite(number) || number < least || (open && number == least))
    refuse(field, fmt::format("a number {} {}", open ? ">" : ">=", least));
  return number;
}

bool json_object::boolean_or(std::string_view field, bool otherwise) const {
  if (!value_.contains(field)) return otherwise;
  if (!get(field).is_boolean()) refuse(field, "true or false");
  return get(field).get<bool>();
}

std::string json_object::text(std::string_view field) const {
  if (!get(field).is_string()) refuse(field, "a string");
  return get(field).get<std::string>();
}

std::string json_object::text_or(std::string_view field, std::string_view otherwise) const {
  return value_.contains(field) ? text(field) : std::string(otherwise);
}

std::optional<json_object> json_object::object(std::string_view field) const {
  if (!has(field)) return std::nullopt;
  if (!get(field).is_object()) refuse(field, "an object or null");
  return json_object(where_, fmt::format("{}{}.", prefix_, field), get(field));
}

}  // namespace shardplan::runtime
