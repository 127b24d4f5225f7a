// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "runtime/checkpoint/json_file.hpp"
#include "runtime/error.hpp"

static_assert(std::endian::native == std::endian::little, "safetensors files are little endian, and mapped as such");

namespace shardplan::runtime {
namespace {

struct dtype_info {
  std::string_view name;
  num bytes;
};
constexpr std::array<dtype_info, 15> dtypes = {{{"F64", 8},
                                                {"F32", 4},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"I64", 8},
                                                {"I32", 4},
                                                {"I16", 2},
                                                {"I8", 1},
                                                {"U64", 8},
                                                {"U32", 4},
                                                {"U16", 2},
                                                {"U8", 1},
                                                {"BOOL", 1},
                                                {"F8_E4M3", 1},
                                                {"F8_E5M2", 1}}};

std::string system_message() { return std::system_category().message(errno); }

/// A file mapped read-only, unmapped with the object.
struct mapping {
  explicit mapping(const std::filesystem::path& path) {
    const std::string where = path.string();
    // O_NONBLOCK: opening a pipe would otherwise wait for a writer; it has no effect on a regular file.
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) throw input_error(fmt::format("{}: cannot be opened: {}", where, system_message()));
    std::string problem;
    struct ::stat status {};
    if (::fstat(file, &status) != 0) {
      problem = "cannot be read: " + system_message();
    } else if (!S_ISREG(status.st_mode)) {
      problem = "not a regular file";
    } else if (status.st_size < 8) {
      problem = fmt::format("{} bytes, too short for a safetensors file", status.st_size);
    } else {
      size = static_cast<std::size_t>(status.st_size);
      address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
      if (address == MAP_FAILED) problem = "cannot be mapped: " + system_message();
    }
    ::close(file);
    if (!problem.empty()) throw input_error(where + ": " + problem);
  }
  ~mapping() { ::munmap(address, size); }
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(address), size}; }

  void* address = nullptr;
  std::size_t size = 0;
};

/// A tensor of the header with its place in the data.
struct placed_entry {
  tensor_entry entry;
  num begin = 0, end = 0;
};

/// Reads one tensor of the header; `where` names file and tensor.
placed_entry parse_entry(const std::string& name, const nlohmann::json& fields, num data_bytes,
                         const std::string& where) {
  const auto field = [&](const char* key) -> const nlohmann::json& {
    if (!fields.contains(key)) throw input_error(fmt::format("{} has no \"{}\"", where, key));
    return fields[key];
  };
  const auto fail = [&](const char* key, std::string_view requirement) {
    throw input_error(fmt::format("{}: \"{}\" must be {}, but is {}", where, key, requirement, excerpt(fields[key])));
  };
  const auto is_size = [](const nlohmann::json& v) {  // fits num: a larger one is a negative number or none
    return v.is_number_integer() && (!v.is_number_unsigned() || v.get<std::uint64_t>() <= INT64_MAX) &&
           v.get<num>() >= 0;
  };
  if (!fields.is_object()) throw input_error(fmt::format("{} must be an object, but is {}", where, excerpt(fields)));

  placed_entry result;
  result.entry.name = name;
  const nlohmann::json& dtype = field("dtype");
  const auto known = dtype.is_string() ? find_dtype(dtype.get_ref<const std::string&>()) : std::nullopt;
  if (!known) fail("dtype", "a known element type");
  result.entry.dtype = *known;

  const nlohmann::json& shape = field("shape");
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_size)) fail("shape", "a list of integers >= 0");
  num elements = 1;
  for (const nlohmann::json& extent : shape) {
    result.entry.shape.push_back(extent.get<num>());
    elements = checked_product(elements, extent.get<num>());
    if (elements < 0) fail("shape", "a shape of fewer than 2^63 elements");
  }

  const nlohmann::json& offsets = field("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !std::all_of(offsets.begin(), offsets.end(), is_size))
    fail("data_offsets", "two integers >= 0");
  result.begin = offsets[0].get<num>();
  result.end = offsets[1].get<num>();
  if (result.begin > result.end) fail("data_offsets", "in ascending order");
  if (result.end > data_bytes) fail("data_offsets", fmt::format("within the {} bytes of data", data_bytes));
  const num bytes = checked_product(elements, size_of(*known));
  if (bytes != result.end - result.begin)
    throw input_error(fmt::format("{}: shape {} of {} takes {} bytes, but \"data_offsets\" {} hold {}", where,
                                  to_text(result.entry.shape), name_of(*known),
                                  bytes < 0 ? "more than 2^63" : std::to_string(bytes), excerpt(offsets),
                                  result.end - result.begin));
  return result;
}

void check_metadata(const nlohmann::json& metadata, const std::string& where) {
  const auto is_text = [](const nlohmann::json& v) { return v.is_string(); };
  if (!metadata.is_object() || !std::all_of(metadata.begin(), metadata.end(), is_text))
    throw input_error(
        fmt::format("{}: \"__metadata__\" must be an object of strings, but is {}", where, excerpt(metadata)));
}

/// The tensors must cover the data from its first byte to its last, none twice.
void check_cover(std::vector<placed_entry>& entries, num data_bytes, const std::string& where) {
  std::sort(entries.begin(), entries.end(), [](const placed_entry& a, const placed_entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  num covered = 0;
  const std::string* before = nullptr;
  for (const placed_entry& e : entries) {
    if (e.begin < covered)
      throw input_error(fmt::format("{}: tensor {} begins at byte {} of the data, inside of tensor {}", where,
                                    excerpt(e.entry.name), e.begin, excerpt(*before)));
    if (e.begin > covered)
      throw input_error(fmt::format("{}: no tensor holds bytes {} to {} of the data", where, covered, e.begin));
    covered = e.end;
    before = &e.entry.name;
  }
  if (covered != data_bytes)
    throw input_error(fmt::format("{}: no tensor holds bytes {} to {} of the data", where, covered, data_bytes));
}

}  // namespace

std::string_view name_of(tensor_dtype dtype) { return dtypes[static_cast<std::size_t>(dtype)].name; }

num size_of(tensor_dtype dtype) { return dtypes[static_cast<std::size_t>(dtype)].bytes; }

std::optional<tensor_dtype> find_dtype(std::string_view name) {
  for (std::size_t i = 0; i < dtypes.size(); ++i)
    if (dtypes[i].name == name) return static_cast<tensor_dtype>(i);
  return std::nullopt;
}

std::string to_text(std::span<const num> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

num tensor_entry::size() const {
  num n = 1;
  for (num extent : shape) n *= extent;
  return n;
}

struct safetensors_file::state {
  explicit state(const std::filesystem::path& p) : path(p), where(p.string()), map(p) {}

  std::filesystem::path path;
  std::string where;  // the tensors refer to it
  mapping map;
  std::vector<tensor_entry> entries;
};

safetensors_file safetensors_file::open(const std::filesystem::path& path) {
  const auto opened = std::make_shared<state>(path);
  const std::string& where = opened->where;
  const std::span<const std::byte> bytes = opened->map.bytes();

  constexpr std::uint64_t max_header = 100'000'000;  // the limit of the format
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  if (header_bytes > max_header || header_bytes > bytes.size() - 8)
    throw input_error(fmt::format("{}: header of {} bytes in a file of {} bytes: not a safetensors file, or cut short",
                                  where, header_bytes, bytes.size()));
  const std::span<const std::byte> data = bytes.subspan(8 + header_bytes);
  const auto data_bytes = static_cast<num>(data.size());

  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes);
  const nlohmann::json header = parse_json(text, where + ": header");
  if (!header.is_object())
    throw input_error(fmt::format("{}: header must be a JSON object, but is {}", where, excerpt(header)));

  std::vector<placed_entry> entries;
  for (const auto& [name, fields] : header.items()) {
    if (name == "__metadata__") {
      check_metadata(fields, where);
      continue;
    }
    entries.push_back(parse_entry(name, fields, data_bytes, fmt::format("{}: tensor {}", where, excerpt(name))));
  }
  check_cover(entries, data_bytes, where);

  for (placed_entry& e : entries) {
    e.entry.bytes = data.subspan(static_cast<std::size_t>(e.begin), static_cast<std::size_t>(e.end - e.begin));
    e.entry.file = where;
    opened->entries.push_back(std::move(e.entry));
  }
  std::sort(opened->entries.begin(), opened->entries.end(),
            [](const tensor_entry& a, const tensor_entry& b) { return a.name < b.name; });
  safetensors_file file;
  file.state_ = opened;
  return file;
}

const std::filesystem::path& safetensors_file::path() const { return state_->path; }

std::span<const tensor_entry> safetensors_file::entries() const { return state_->entries; }

std::vector<std::string> safetensors_file::names() const {
  std::vector<std::string> names;
  for (const tensor_entry& e : entries()) names.push_back(e.name);
  return names;
}

const tensor_entry* safetensors_file::find(std::string_view name) const {
  const auto all = entries();
  const auto found = std::lower_bound(all.begin(), all.end(), name,
                                      [](const tensor_entry& e, std::string_view n) { return e.name < n; });
  return found != all.end() && found->name == name ? &*found : nullptr;
}

const tensor_entry& safetensors_file::at(std::string_view name) const {
  if (const tensor_entry* entry = find(name)) return *entry;
  throw input_error(fmt::format("{}: has no tensor \"{}\"", state_->where, name));
}

}  // namespace shardplan::runtime
