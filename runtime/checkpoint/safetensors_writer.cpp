// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/safetensors_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "runtime/checkpoint/atomic_file.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/half.hpp"

namespace shardplan::runtime {
namespace {

/// Stores `convert(value)` for each value, whatever the alignment of `out`.
template <class T, class Convert>
void store_all(std::span<const T> values, std::byte* out, Convert convert) {
  for (const T value : values) {
    const auto stored = convert(value);
    std::memcpy(out, &stored, sizeof stored);
    out += sizeof stored;
  }
}

template <class Stored, class T>
void store_integers(std::span<const T> values, std::byte* out, Stored most = std::numeric_limits<Stored>::max()) {
  store_all(values, out, [&](T value) {
    if (!std::in_range<Stored>(value) || std::cmp_greater(value, most))
      throw std::logic_error(fmt::format("{} does not fit the integer type of a tensor", value));
    return static_cast<Stored>(value);
  });
}

float to_float(float value) { return value; }
float to_float(double value) { return round_to_odd(value); }  // to be rounded once more, to 16 bits

}  // namespace

template <class T>
void encode(std::span<const T> values, tensor_dtype dtype, std::span<std::byte> out) {
  if (out.size() != values.size() * static_cast<std::size_t>(size_of(dtype)))
    throw std::logic_error("encode: the destination has another size than the values");
  std::byte* const to = out.data();
  if constexpr (std::is_floating_point_v<T>) {
    switch (dtype) {
      case tensor_dtype::f64:
        return store_all(values, to, [](T v) { return static_cast<double>(v); });
      case tensor_dtype::f32:
        return store_all(values, to, [](T v) { return static_cast<float>(v); });
      case tensor_dtype::f16:
        return store_all(values, to, [](T v) { return f16_from_float(to_float(v)); });
      case tensor_dtype::bf16:
        return store_all(values, to, [](T v) { return bf16_from_float(to_float(v)); });
      default:
        break;
    }
  } else {
    switch (dtype) {
      case tensor_dtype::i64:
        return store_integers<std::int64_t>(values, to);
      case tensor_dtype::i32:
        return store_integers<std::int32_t>(values, to);
      case tensor_dtype::i16:
        return store_integers<std::int16_t>(values, to);
      case tensor_dtype::i8:
        return store_integers<std::int8_t>(values, to);
      case tensor_dtype::u64:
        return store_integers<std::uint64_t>(values, to);
      case tensor_dtype::u32:
        return store_integers<std::uint32_t>(values, to);
      case tensor_dtype::u16:
        return store_integers<std::uint16_t>(values, to);
      case tensor_dtype::u8:
        return store_integers<std::uint8_t>(values, to);
      case tensor_dtype::boolean:
        return store_integers<std::uint8_t>(values, to, 1);
      default:
        break;
    }
  }
  throw std::logic_error(fmt::format("encode: these values cannot be stored as {}", name_of(dtype)));
}

template <class T>
byte_producer encoded(std::span<const T> values, tensor_dtype dtype) {
  return [values, dtype](const byte_sink& out) {
    constexpr std::size_t piece = 65536;
    std::vector<std::byte> bytes;
    for (std::size_t done = 0; done < values.size(); done += piece) {
      const auto part = values.subspan(done, std::min(piece, values.size() - done));
      bytes.resize(part.size() * static_cast<std::size_t>(size_of(dtype)));
      encode(part, dtype, std::span(bytes));
      out(bytes);
    }
  };
}

void safetensors_writer::add(std::string name, tensor_dtype dtype, std::vector<num> shape, producer produce) {
  num elements = 1;
  for (const num extent : shape) elements = checked_product(elements, extent);
  const num bytes = checked_product(elements, size_of(dtype));
  if (elements < 0 || bytes < 0)
    throw std::logic_error(fmt::format("tensor \"{}\" cannot have shape {}", name, to_text(shape)));
  if (name == "__metadata__" || !names_.insert(name).second)
    throw std::logic_error(fmt::format("tensor \"{}\" cannot be added (twice)", name));
  data_bytes_ += bytes;
  tensors_.push_back({std::move(name), dtype, std::move(shape), bytes, std::move(produce)});
}

template <class T>
void safetensors_writer::add_view(std::string name, tensor_dtype dtype, std::vector<num> shape,
                                  std::span<const T> values) {
  num elements = 1;
  for (const num extent : shape) elements = checked_product(elements, extent);
  if (elements != static_cast<num>(values.size()))
    throw std::logic_error(
        fmt::format("tensor \"{}\" of shape {} is given {} values", name, to_text(shape), values.size()));
  add(std::move(name), dtype, std::move(shape), encoded(values, dtype));
}

template <class T>
void safetensors_writer::add(std::string name, tensor_dtype dtype, std::vector<num> shape, std::vector<T> values) {
  // std::function copies what it holds; a shared pointer keeps the values where the view sees them.
  const auto owned = std::make_shared<const std::vector<T>>(std::move(values));
  add_view(std::move(name), dtype, std::move(shape), std::span<const T>(*owned));
  tensors_.back().produce = [owned, view = std::move(tensors_.back().produce)](const sink& out) { view(out); };
}

void safetensors_writer::write(const std::filesystem::path& path) const {
  // Wide elements first: every tensor is then aligned to its elements, as the header is padded to 8 bytes.
  std::vector<const tensor*> order;
  for (const tensor& t : tensors_) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(),
                   [](const tensor* a, const tensor* b) { return size_of(a->dtype) > size_of(b->dtype); });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};  // `transformers` refuses a file without
  num offset = 0;
  for (const tensor* t : order) {
    header[t->name] = {
        {"dtype", name_of(t->dtype)}, {"shape", t->shape}, {"data_offsets", {offset, offset + t->bytes}}};
    offset += t->bytes;
  }
  std::string text = header.dump();
  text.resize(static_cast<std::size_t>(round_up(static_cast<num>(text.size()), 8)), ' ');

  atomic_file file(path);
  const auto header_bytes = static_cast<std::uint64_t>(text.size());
  file.write(std::as_bytes(std::span(&header_bytes, 1)));
  file.write(text);
  for (const tensor* t : order) {
    num handed = 0;
    t->produce([&](std::span<const std::byte> bytes) {
      handed += static_cast<num>(bytes.size());
      if (handed <= t->bytes) file.write(bytes);
    });
    if (handed != t->bytes)
      throw std::logic_error(fmt::format("tensor \"{}\" of {} bytes is given {}", t->name, t->bytes, handed));
  }
  file.commit();
}

template void encode(std::span<const float>, tensor_dtype, std::span<std::byte>);
template void encode(std::span<const double>, tensor_dtype, std::span<std::byte>);
template void encode(std::span<const std::int64_t>, tensor_dtype, std::span<std::byte>);
template void encode(std::span<const std::int32_t>, tensor_dtype, std::span<std::byte>);
template void encode(std::span<const std::uint8_t>, tensor_dtype, std::span<std::byte>);

#define SHARDPLAN_INSTANTIATE(T)                                                                      \
  template byte_producer encoded(std::span<const T>, tensor_dtype);                                   \
  template void safetensors_writer::add(std::string, tensor_dtype, std::vector<num>, std::vector<T>); \
  template void safetensors_writer::add_view(std::string, tensor_dtype, std::vector<num>, std::span<const T>);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(double)
SHARDPLAN_INSTANTIATE(std::int64_t)
SHARDPLAN_INSTANTIATE(std::int32_t)
SHARDPLAN_INSTANTIATE(std::uint8_t)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan::runtime
