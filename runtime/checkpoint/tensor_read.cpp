// SPDX-License-Identifier: Apache-2.0
// Conversion of mapped tensors. The dtype is chosen once per tensor, so that the loop over elements only converts.
#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/error.hpp"
#include "runtime/real.hpp"

namespace shardplan::runtime {
namespace {

// Each format: what is stored, and the number that it means.
template <class T>
struct plain {
  using stored = T;
  static constexpr T value(T bits) { return bits; }
};
struct stored_f16 {
  using stored = std::uint16_t;
  static constexpr float value(stored bits) { return float_from_f16(bits); }
};
struct stored_bf16 {
  using stored = std::uint16_t;
  static constexpr float value(stored bits) { return float_from_bf16(bits); }
};
struct boolean {
  using stored = std::uint8_t;
  static constexpr std::uint8_t value(stored bits) { return bits != 0 ? 1 : 0; }
};

/// Calls `f` with the format of a floating dtype; false for another.
template <class F>
bool visit_floating(tensor_dtype dtype, F&& f) {
  switch (dtype) {
    case tensor_dtype::f64:
      return f(plain<double>{}), true;
    case tensor_dtype::f32:
      return f(plain<float>{}), true;
    case tensor_dtype::f16:
      return f(stored_f16{}), true;
    case tensor_dtype::bf16:
      return f(stored_bf16{}), true;
    default:
      return false;
  }
}

/// Calls `f` with the format of an integer dtype or BOOL; false for another.
template <class F>
bool visit_integer(tensor_dtype dtype, F&& f) {
  switch (dtype) {
    case tensor_dtype::i64:
      return f(plain<std::int64_t>{}), true;
    case tensor_dtype::i32:
      return f(plain<std::int32_t>{}), true;
    case tensor_dtype::i16:
      return f(plain<std::int16_t>{}), true;
    case tensor_dtype::i8:
      return f(plain<std::int8_t>{}), true;
    case tensor_dtype::u64:
      return f(plain<std::uint64_t>{}), true;
    case tensor_dtype::u32:
      return f(plain<std::uint32_t>{}), true;
    case tensor_dtype::u16:
      return f(plain<std::uint16_t>{}), true;
    case tensor_dtype::u8:
      return f(plain<std::uint8_t>{}), true;
    case tensor_dtype::boolean:
      return f(boolean{}), true;
    default:
      return false;
  }
}

/// Element `i`; a mapped tensor need not be aligned.
template <class Format>
typename Format::stored load(const std::byte* from, num i) {
  typename Format::stored bits;
  std::memcpy(&bits, from + i * static_cast<num>(sizeof bits), sizeof bits);
  return bits;
}

/// Converts elements [begin, begin + n) of a floating tensor.
template <class Format, class T>
void convert_run(const std::byte* from, num begin, num n, T* out) {
  if (n == 0) return;  // no elements may mean no addresses
  if constexpr (std::is_same_v<Format, plain<T>> || (std::is_same_v<Format, stored_bf16> && std::is_same_v<T, bf16>)) {
    std::memcpy(out, from + begin * static_cast<num>(sizeof(T)), static_cast<std::size_t>(n) * sizeof(T));
  } else if constexpr (std::is_same_v<T, bf16>) {
    for (num i = 0; i < n; ++i)
      out[i] = nearest<bf16>(static_cast<double>(Format::value(load<Format>(from, begin + i))));
  } else {
    for (num i = 0; i < n; ++i) out[i] = static_cast<T>(Format::value(load<Format>(from, begin + i)));
  }
}

[[noreturn]] void refuse_dtype(const tensor_entry& tensor, std::string_view requirement) {
  throw input_error(fmt::format("{}: tensor \"{}\" must be {}, but is {}", tensor.file, tensor.name, requirement,
                                name_of(tensor.dtype)));
}

/// A part of a tensor as three dims, trailing ones where it has fewer, with ranges that touch joined.
struct box {
  num extent[3] = {1, 1, 1};
  fixed_vector<dim_range, 2> ranges[3];
};

box make_box(const tensor_entry& tensor, const region& r) {
  const auto fail = [&](std::string_view what) {
    throw std::logic_error(
        fmt::format("{}: tensor \"{}\" of shape {}: {}", tensor.file, tensor.name, to_text(tensor.shape), what));
  };
  const std::size_t n = tensor.shape.size();
  if (n < 1 || n > 3 || r.dims.size() != n) fail(fmt::format("a part has {} dims", r.dims.size()));
  box b;
  for (std::size_t d = 0; d < 3; ++d) {
    if (d >= n) {
      b.ranges[d].push_back({0, 1});
      continue;
    }
    b.extent[d] = tensor.shape[d];
    for (const dim_range& range : r.dims[d].ranges) {
      if (range.size() == 0) continue;
      if (range.begin < 0 || range.end > b.extent[d])
        fail(fmt::format("a part has indices {} to {} of dim {}", range.begin, range.end, d));
      if (!b.ranges[d].empty() && b.ranges[d][0].end == range.begin)
        b.ranges[d][0].end = range.end;
      else
        b.ranges[d].push_back(range);
    }
  }
  return b;
}

bool is_whole(const box& b, std::size_t dim) {
  return b.ranges[dim].size() == 1 && b.ranges[dim][0].size() == b.extent[dim];
}

/// Calls `run(begin, n)` for each run of consecutive elements, in row-major order of the part.
template <class F>
void for_each_run(const box& b, F&& run) {
  const num row = b.extent[2], plane = b.extent[1] * row;
  for (const dim_range& x : b.ranges[0]) {
    if (is_whole(b, 1) && is_whole(b, 2)) {
      run(x.begin * plane, x.size() * plane);
      continue;
    }
    for (num i = x.begin; i < x.end; ++i) {
      for (const dim_range& y : b.ranges[1]) {
        if (is_whole(b, 2)) {
          run(i * plane + y.begin * row, y.size() * row);
          continue;
        }
        for (num j = y.begin; j < y.end; ++j)
          for (const dim_range& z : b.ranges[2]) run(i * plane + j * row + z.begin, z.size());
      }
    }
  }
}

template <class T>
constexpr std::string_view type_name() {
  if constexpr (std::is_same_v<T, std::int64_t>) return "64-bit integer";
  if constexpr (std::is_same_v<T, std::int32_t>) return "32-bit integer";
  return "8-bit unsigned integer";
}

}  // namespace

template <class T>
std::vector<T> read_as(const tensor_entry& tensor) {
  std::vector<T> out(static_cast<std::size_t>(tensor.size()));
  const std::byte* const from = tensor.bytes.data();
  if constexpr (std::is_floating_point_v<T>) {
    const auto convert = [&]<class Format>(Format) { convert_run<Format>(from, 0, tensor.size(), out.data()); };
    if (!visit_floating(tensor.dtype, convert)) refuse_dtype(tensor, "F64, F32, F16 or BF16");
  } else {
    const auto convert = [&]<class Format>(Format) {
      for (num i = 0; i < tensor.size(); ++i) {
        const auto value = Format::value(load<Format>(from, i));
        if (!std::in_range<T>(value))
          throw input_error(fmt::format("{}: tensor \"{}\": element {} is {}, not a {}", tensor.file, tensor.name, i,
                                        value, type_name<T>()));
        out[static_cast<std::size_t>(i)] = static_cast<T>(value);
      }
    };
    if (!visit_integer(tensor.dtype, convert)) refuse_dtype(tensor, "of an integer type or BOOL");
  }
  return out;
}

template <class T>
void read_part(const tensor_entry& tensor, const region& r, std::span<T> out) {
  const box b = make_box(tensor, r);
  if (static_cast<num>(out.size()) != r.size())
    throw std::logic_error(fmt::format("{}: tensor \"{}\": a part of {} elements is read into {}", tensor.file,
                                       tensor.name, r.size(), out.size()));
  const auto convert = [&]<class Format>(Format) {
    T* next = out.data();
    for_each_run(b, [&](num begin, num n) {
      convert_run<Format>(tensor.bytes.data(), begin, n, next);
      next += n;
    });
  };
  if (!visit_floating(tensor.dtype, convert)) refuse_dtype(tensor, "F64, F32, F16 or BF16");
}

template std::vector<float> read_as(const tensor_entry&);
template std::vector<double> read_as(const tensor_entry&);
template std::vector<std::int64_t> read_as(const tensor_entry&);
template std::vector<std::int32_t> read_as(const tensor_entry&);
template std::vector<std::uint8_t> read_as(const tensor_entry&);
template void read_part(const tensor_entry&, const region&, std::span<float>);
template void read_part(const tensor_entry&, const region&, std::span<double>);
template void read_part(const tensor_entry&, const region&, std::span<bf16>);

}  // namespace shardplan::runtime
