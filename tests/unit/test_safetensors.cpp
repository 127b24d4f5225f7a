// SPDX-License-Identifier: Apache-2.0
// Safetensors files: what is written is read, parts of tensors, and a message for everything that can be wrong.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "checkpoint_helpers.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/checkpoint/safetensors_writer.hpp"
#include "runtime/real.hpp"

using namespace shardplan;
using namespace shardplan::runtime;
using namespace shardplan::tests;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

/// A file of that header and `data_bytes` bytes of data.
std::string file_text(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t size = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &size, 8);
  return text + header + std::string(data_bytes, '\1');
}

std::string open_error(const std::filesystem::path& path, const std::string& text) {
  write_text(path, text);
  return message_of([&] { safetensors_file::open(path); });
}

std::uint16_t encode_16(double value, tensor_dtype dtype) {
  std::uint16_t bits = 0;
  encode(std::span<const double>(&value, 1), dtype, std::as_writable_bytes(std::span(&bits, 1)));
  return bits;
}

template <class T>
region part_of(std::initializer_list<T> dims) {
  region r;
  for (const dim_part& d : dims) r.dims.push_back(d);
  return r;
}

}  // namespace

TEST_CASE("every 16-bit floating number survives the way through float") {
  for (std::uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float half = float_from_f16(bits), brain = float_from_bf16(bits);
    const bool half_nan = (bits & 0x7fffu) > 0x7c00u, brain_nan = (bits & 0x7fffu) > 0x7f80u;
    REQUIRE(std::isnan(half) == half_nan);
    REQUIRE(std::isnan(brain) == brain_nan);
    REQUIRE(f16_from_float(half) == (half_nan ? bits | 0x200u : bits));
    REQUIRE(bf16_from_float(brain) == (brain_nan ? bits | 0x40u : bits));
  }
}

TEST_CASE("16-bit floating numbers have the values of their formats") {
  CHECK(float_from_f16(0x3c00) == 1.0f);
  CHECK(float_from_f16(0xc000) == -2.0f);
  CHECK(float_from_f16(0x7bff) == 65504.0f);
  CHECK(float_from_f16(0x0400) == 0x1p-14f);
  CHECK(float_from_f16(0x0001) == 0x1p-24f);
  CHECK(float_from_f16(0x03ff) == 0x1.ff8p-15f);
  CHECK(float_from_f16(0x7c00) == infinity);
  CHECK(std::signbit(float_from_f16(0x8000)));
  CHECK(float_from_bf16(0x3f80) == 1.0f);
  CHECK(float_from_bf16(0xc040) == -3.0f);
  CHECK(float_from_bf16(0x0001) == 0x1p-133f);
  CHECK(float_from_bf16(0xff80) == -infinity);
}

TEST_CASE("storing in 16 bits rounds to nearest, ties to even") {
  // Between any two neighbours: the midpoint goes to the even one, and what is next to it to its own side.
  for (std::uint32_t i = 0; i < 0x7c00; ++i) {
    const bool last = i + 1 == 0x7c00;  // the neighbour of the largest number would be 2^16
    const double low = float_from_f16(static_cast<std::uint16_t>(i));
    const double middle = (low + (last ? 65536.0 : float_from_f16(static_cast<std::uint16_t>(i + 1)))) / 2;
    const std::uint32_t even = i % 2 == 0 ? i : i + 1;
    REQUIRE(f16_from_float(static_cast<float>(middle)) == even);
    REQUIRE(f16_from_float(std::nextafter(static_cast<float>(middle), 0.0f)) == i);
    REQUIRE(f16_from_float(std::nextafter(static_cast<float>(middle), infinity)) == i + 1);
    REQUIRE(f16_from_float(-static_cast<float>(middle)) == (even | 0x8000u));
    // A double so near to the midpoint that the nearest float is the midpoint.
    REQUIRE(encode_16(std::nextafter(middle, 0.0), tensor_dtype::f16) == i);
    REQUIRE(encode_16(middle, tensor_dtype::f16) == even);
    REQUIRE(encode_16(std::nextafter(middle, 1e9), tensor_dtype::f16) == i + 1);
  }
  for (std::uint32_t i = 0; i < 0x7f80; ++i) {
    const auto middle = std::bit_cast<float>((i << 16) | 0x8000u);
    REQUIRE(bf16_from_float(middle) == (i % 2 == 0 ? i : i + 1));
    REQUIRE(bf16_from_float(std::bit_cast<float>((i << 16) | 0x7fffu)) == i);
    REQUIRE(bf16_from_float(std::bit_cast<float>((i << 16) | 0x8001u)) == i + 1);
    REQUIRE(encode_16(std::nextafter(static_cast<double>(middle), 0.0), tensor_dtype::bf16) == i);
    REQUIRE(encode_16(-std::nextafter(static_cast<double>(middle), 1e300), tensor_dtype::bf16) == ((i + 1) | 0x8000u));
  }
}

TEST_CASE("special values are stored in 16 bits as what they are") {
  struct row {
    double value;
    std::uint32_t f16, bf16;
  };
  const row rows[] = {
      {0.0, 0x0000, 0x0000},       {-0.0, 0x8000, 0x8000},         {infinity, 0x7c00, 0x7f80},
      {-infinity, 0xfc00, 0xff80}, {65519.99, 0x7bff, 0x4780},     {65520.0, 0x7c00, 0x4780},
      {1e300, 0x7c00, 0x7f80},     {-1e300, 0xfc00, 0xff80},       {1e-300, 0x0000, 0x0000},
      {-1e-300, 0x8000, 0x8000},   {0x1p-25, 0x0000, 0x3300},      {0x1.0001p-25, 0x0001, 0x3300},
      {0x1p-149, 0x0000, 0x0000},  {3.4028235e38, 0x7c00, 0x7f80},
  };
  for (const row& r : rows) {
    CAPTURE(r.value);
    CHECK(encode_16(r.value, tensor_dtype::f16) == r.f16);
    CHECK(encode_16(r.value, tensor_dtype::bf16) == r.bf16);
    CHECK(f16_from_float(static_cast<float>(r.value)) == (r.value == 65519.99 ? 0x7bffu : r.f16));
  }
  CHECK(std::isnan(float_from_f16(encode_16(quiet_nan, tensor_dtype::f16))));
  CHECK(std::isnan(float_from_bf16(encode_16(quiet_nan, tensor_dtype::bf16))));
  // A NaN whose payload is only in the bits that are dropped stays one.
  CHECK(std::isnan(float_from_f16(f16_from_float(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isnan(float_from_bf16(bf16_from_float(std::bit_cast<float>(0x7f800001u)))));
}

TEST_CASE("what is written is read: types, shapes, values, names in order") {
  const temporary_directory directory;
  const auto path = directory.path / "all.safetensors";
  const std::vector<double> reals = {1.5, -2.25, 0.0, infinity, 1024, -0.0078125};
  const std::vector<std::int64_t> integers = {0, 1, 127, 5, 6, 7};
  const std::vector<std::int64_t> bits = {0, 1, 1};
  safetensors_writer writer;
  for (const auto dtype : {tensor_dtype::bf16, tensor_dtype::f64, tensor_dtype::f16, tensor_dtype::f32})
    writer.add("real." + std::string(name_of(dtype)), dtype, {2, 3}, reals);
  for (const auto dtype : {tensor_dtype::i8, tensor_dtype::u8, tensor_dtype::i16, tensor_dtype::u16, tensor_dtype::i32,
                           tensor_dtype::u32, tensor_dtype::i64, tensor_dtype::u64})
    writer.add("integer." + std::string(name_of(dtype)), dtype, {6}, integers);
  writer.add_view("bits", tensor_dtype::boolean, {3}, std::span<const std::int64_t>(bits));
  writer.add("a scalar", tensor_dtype::f32, {}, std::vector<float>{7});
  writer.add("nothing", tensor_dtype::f32, {4, 0, 2}, std::vector<float>{});
  writer.write(path);
  CHECK(num_files(directory.path) == 1);

  const safetensors_file file = safetensors_file::open(path);
  CHECK(file.path() == path);
  const std::vector<std::string> names = file.names();
  CHECK(names.size() == 15);
  CHECK(std::is_sorted(names.begin(), names.end()));
  for (const tensor_entry& e : file.entries()) {
    CAPTURE(e.name);
    CHECK(e.file == path.string());
    CHECK(reinterpret_cast<std::uintptr_t>(e.bytes.data()) % static_cast<std::uintptr_t>(size_of(e.dtype)) == 0);
    if (e.name.starts_with("real.")) {
      CHECK(e.shape == std::vector<num>{2, 3});
      CHECK(name_of(e.dtype) == e.name.substr(5));
      CHECK(read_as<double>(e) == reals);
      CHECK(read_as<float>(e) == std::vector<float>(reals.begin(), reals.end()));
    }
    if (e.name.starts_with("integer.")) {
      CHECK(read_as<std::int64_t>(e) == integers);
      CHECK(read_as<std::int32_t>(e) == std::vector<std::int32_t>(integers.begin(), integers.end()));
      CHECK(read_as<std::uint8_t>(e) == std::vector<std::uint8_t>(integers.begin(), integers.end()));
    }
  }
  CHECK(read_as<std::uint8_t>(file.at("bits")) == std::vector<std::uint8_t>{0, 1, 1});
  CHECK(file.at("a scalar").shape.empty());
  CHECK(read_as<float>(file.at("a scalar")) == std::vector<float>{7});
  CHECK(read_as<float>(file.at("nothing")).empty());
  CHECK(file.find("absent") == nullptr);
  CHECK(message_of([&] { file.at("absent"); }) == path.string() + ": has no tensor \"absent\"");
}

TEST_CASE("a file without tensors is a file") {
  const temporary_directory directory;
  safetensors_writer().write(directory.path / "f");
  CHECK(safetensors_file::open(directory.path / "f").names().empty());
  CHECK(open_error(directory.path / "g", file_text("{}", 0)) == "no error");
}

TEST_CASE("values convert between floating types and between integer types, never across or with loss of range") {
  const temporary_directory directory;
  const auto path = directory.path / "f";
  safetensors_writer writer;
  writer.add("real", tensor_dtype::f64, {2}, std::vector<double>{1e-3, 1e300});
  writer.add("wide", tensor_dtype::i64, {3}, std::vector<std::int64_t>{7, -1, 1LL << 40});
  writer.write(path);
  const safetensors_file file = safetensors_file::open(path);
  CHECK(read_as<float>(file.at("real")) == std::vector<float>{1e-3f, infinity});
  CHECK(message_of([&] { read_as<std::int64_t>(file.at("real")); }) ==
        path.string() + ": tensor \"real\" must be of an integer type or BOOL, but is F64");
  CHECK(message_of([&] { read_as<double>(file.at("wide")); }) ==
        path.string() + ": tensor \"wide\" must be F64, F32, F16 or BF16, but is I64");
  CHECK(message_of([&] { read_as<std::int32_t>(file.at("wide")); }) ==
        path.string() + ": tensor \"wide\": element 2 is 1099511627776, not a 32-bit integer");
  CHECK(message_of([&] { read_as<std::uint8_t>(file.at("wide")); }) ==
        path.string() + ": tensor \"wide\": element 1 is -1, not a 8-bit unsigned integer");
}

TEST_CASE("a tensor that is not aligned is read") {
  const temporary_directory directory;
  std::string text = file_text(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                               R"("d":{"dtype":"F64","shape":[2],"data_offsets":[1,17]}})",
                               17);
  const double values[] = {1.25, -3e5};
  std::memcpy(text.data() + text.size() - 16, values, 16);
  write_text(directory.path / "f", text);
  const safetensors_file file = safetensors_file::open(directory.path / "f");
  CHECK(read_as<double>(file.at("d")) == std::vector<double>{1.25, -3e5});
  std::vector<float> last(1);
  read_part(file.at("d"), part_of<dim_part>({{1, 2}}), std::span(last));
  CHECK(last[0] == -3e5f);
}

TEST_CASE("bf16 is read from every floating type, rounded once, ties to even") {
  const temporary_directory directory;
  // Above 1 the next bf16 is 1 + 2^-7: halfway goes to 1, and what a float no longer tells from halfway goes up.
  const std::vector<double> values = {1.0 + 0x1p-8, 1.0 + 0x1p-8 + 0x1p-40, -3.0, 1e-41, 0x1.ffp127};
  const std::vector<std::uint16_t> bits[] = {{0x3f80, 0x3f81, 0xc040, 0x0000, 0x7f80},   // from f64
                                             {0x3f80, 0x3f80, 0xc040, 0x0000, 0x7f80}};  // from f32
  const std::vector<double> stored = {1.5, -0.25};
  safetensors_writer writer;
  writer.add("f64", tensor_dtype::f64, {5}, values);
  writer.add("f32", tensor_dtype::f32, {5}, values);
  writer.add("f16", tensor_dtype::f16, {2}, stored);
  writer.add("bf16", tensor_dtype::bf16, {2}, stored);
  writer.write(directory.path / "f");
  const safetensors_file file = safetensors_file::open(directory.path / "f");
  const auto read = [&](std::string_view name, num size) {
    std::vector<bf16> out(static_cast<std::size_t>(size));
    read_part(file.at(name), part_of<dim_part>({{0, size}}), std::span(out));
    std::vector<std::uint16_t> of;
    for (bf16 x : out) of.push_back(x.bits);
    return of;
  };
  CHECK(read("f64", 5) == bits[0]);
  CHECK(read("f32", 5) == bits[1]);
  for (const char* name : {"f16", "bf16"}) CHECK(read(name, 2) == std::vector<std::uint16_t>{0x3fc0, 0xbe80});
}

TEST_CASE("every byte of a BOOL but 0 is true") {
  const temporary_directory directory;
  std::string text = file_text(R"({"b":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", 3);
  text.replace(text.size() - 3, 3, std::string("\0\x07\xff", 3));
  write_text(directory.path / "f", text);
  const safetensors_file file = safetensors_file::open(directory.path / "f");
  CHECK(read_as<std::int64_t>(file.at("b")) == std::vector<std::int64_t>{0, 1, 1});
}

TEST_CASE("a part of a tensor is what indexing it gives") {
  const temporary_directory directory;
  safetensors_writer writer;
  std::vector<float> numbers(7 * 5 * 6);
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  const std::vector<float> row(numbers.begin(), numbers.begin() + 42);
  writer.add("three", tensor_dtype::f32, {7, 5, 6}, numbers);
  writer.add("two", tensor_dtype::bf16, {7, 6}, row);
  writer.add("one", tensor_dtype::f16, {42}, row);
  writer.write(directory.path / "f");
  const safetensors_file file = safetensors_file::open(directory.path / "f");
  random_numbers random;
  for (const tensor_entry& e : file.entries()) {
    for (int repeat = 0; repeat < 400; ++repeat) {
      region r;
      for (const num extent : e.shape) {
        // Whole, empty, one range, two ranges in either order.
        const auto some = [&] {
          const num begin = random.below(extent + 1);
          return dim_range{begin, begin + random.below(extent - begin + 1)};
        };
        r.dims.push_back(repeat % 3 == 0 ? dim_part(0, extent) : dim_part(some(), repeat % 2 ? some() : dim_range{}));
      }
      const auto at = [&](std::size_t d, num i) { return d < r.dims.size() ? r.dims[d].at(i) : 0; };
      const auto extent = [&](std::size_t d) { return d < r.dims.size() ? e.shape[d] : 1; };
      const auto size = [&](std::size_t d) { return d < r.dims.size() ? r.dims[d].size() : 1; };
      std::vector<double> expected;
      for (num i = 0; i < size(0); ++i)
        for (num j = 0; j < size(1); ++j)
          for (num k = 0; k < size(2); ++k)
            expected.push_back(static_cast<double>((at(0, i) * extent(1) + at(1, j)) * extent(2) + at(2, k)));
      std::vector<double> actual(static_cast<std::size_t>(r.size()));
      read_part(e, r, std::span(actual));
      REQUIRE(actual == expected);
    }
  }
}

TEST_CASE("what is no part of a tensor is refused") {
  const temporary_directory directory;
  safetensors_writer writer;
  writer.add("m", tensor_dtype::f32, {2, 3}, std::vector<float>(6));
  writer.add("i", tensor_dtype::i32, {2}, std::vector<std::int32_t>(2));
  writer.write(directory.path / "f");
  const safetensors_file file = safetensors_file::open(directory.path / "f");
  std::vector<float> six(6), two(2);
  const auto read = [&](const region& r, std::vector<float>& out) { read_part(file.at("m"), r, std::span(out)); };
  CHECK_NOTHROW(read(part_of<dim_part>({{0, 2}, {0, 3}}), six));
  CHECK_THROWS_AS(read(part_of<dim_part>({{0, 2}, {1, 4}}), six), std::logic_error);
  CHECK_THROWS_AS(read(part_of<dim_part>({{-1, 1}, {0, 3}}), six), std::logic_error);
  CHECK_THROWS_AS(read(part_of<dim_part>({{0, 6}}), six), std::logic_error);
  CHECK_THROWS_AS(read(part_of<dim_part>({{0, 1}, {0, 3}}), six), std::logic_error);
  CHECK(message_of([&] {
          read_part(file.at("i"), part_of<dim_part>({{0, 2}}), std::span(two));
        }) == (directory.path / "f").string() + ": tensor \"i\" must be F64, F32, F16 or BF16, but is I32");
}

TEST_CASE("a defect of a header is named with file, tensor and value") {
  struct row {
    const char* header;
    const char* message;  // behind the name of the file; the files have 8 bytes of data
  };
  const row rows[] = {
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "no error"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})", "header: not valid JSON: parse error at line 1"},
      {R"([1,2])", "header must be a JSON object, but is [1,2]"},
      {"{\"\xff\":1}", "header: not valid JSON"},
      {R"({"a":3})", "tensor \"a\" must be an object, but is 3"},
      {R"({"a":{"shape":[2],"data_offsets":[0,8]}})", "tensor \"a\" has no \"dtype\""},
      {R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", "tensor \"a\" has no \"shape\""},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "tensor \"a\" has no \"data_offsets\""},
      {R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})",
       "tensor \"a\": \"dtype\" must be a known element type, but is \"F31\""},
      {R"({"a":{"dtype":4,"shape":[2],"data_offsets":[0,8]}})",
       "tensor \"a\": \"dtype\" must be a known element type, but is 4"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",
       "tensor \"a\": \"shape\" must be a list of integers >= 0, but is [-2]"},
      {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})",
       "tensor \"a\": \"shape\" must be a list of integers >= 0, but is [2.0]"},
      {R"({"a":{"dtype":"F32","shape":[true],"data_offsets":[0,8]}})",
       "tensor \"a\": \"shape\" must be a list of integers >= 0, but is [true]"},
      {R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})",
       "tensor \"a\": \"shape\" must be a list of integers >= 0, but is 2"},
      {R"({"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]}})",
       "tensor \"a\": \"shape\" must be a list of integers >= 0, but is [9223372036854775808]"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
       "tensor \"a\": \"shape\" must be a shape of fewer than 2^63 elements, but is [4294967296,4294967296]"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,8]}})",
       "tensor \"a\": shape [4611686018427387905] of F32 takes more than 2^63 bytes, but \"data_offsets\" [0,8] hold "
       "8"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
       "tensor \"a\": shape [3] of F32 takes 12 bytes, but \"data_offsets\" [0,8] hold 8"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       "tensor \"a\": \"data_offsets\" must be within the 8 bytes of data, but is [4,12]"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",
       "tensor \"a\": \"data_offsets\" must be in ascending order, but is [8,0]"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})",
       "tensor \"a\": \"data_offsets\" must be two integers >= 0, but is [0,8,8]"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})",
       "tensor \"a\": \"data_offsets\" must be two integers >= 0, but is [-8,0]"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})",
       "tensor \"a\": \"data_offsets\" must be two integers >= 0, but is [0,18446744073709551615]"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "no tensor holds bytes 4 to 8 of the data"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "no tensor holds bytes 0 to 4 of the data"},
      {R"({})", "no tensor holds bytes 0 to 8 of the data"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})",
       "tensor \"b\" begins at byte 4 of the data, inside of tensor \"a\""},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       "no tensor holds bytes 2 to 4 of the data"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       "header: field \"a\" is given twice"},
      {R"({"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}})",
       "header: field \"dtype\" is given twice"},
      {R"({"__metadata__":{"x":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       "\"__metadata__\" must be an object of strings, but is {\"x\":1}"},
      {R"({"__metadata__":[],"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       "\"__metadata__\" must be an object of strings, but is []"},
      {R"({"__metadata__":{"x":"1"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "no error"},
  };
  const temporary_directory directory;
  const auto path = directory.path / "f.safetensors";
  for (const row& r : rows) {
    CAPTURE(r.header);
    const std::string message = open_error(path, file_text(r.header, 8));
    if (std::string_view(r.message) == "no error")
      CHECK(message == r.message);
    else
      CHECK(message.substr(0, path.string().size() + 2 + std::strlen(r.message)) == path.string() + ": " + r.message);
  }
}

TEST_CASE("what is no safetensors file at all is refused by name") {
  const temporary_directory directory;
  const auto path = directory.path / "f";
  const std::string name = path.string();
  CHECK(message_of([&] { safetensors_file::open(path); }) == name + ": cannot be opened: No such file or directory");
  CHECK(message_of([&] { safetensors_file::open(directory.path); }) ==
        directory.path.string() + ": not a regular file");
  CHECK(open_error(path, "") == name + ": 0 bytes, too short for a safetensors file");
  CHECK(open_error(path, "1234567") == name + ": 7 bytes, too short for a safetensors file");
  CHECK(open_error(path, std::string(20, '\xff')) ==
        name + ": header of 18446744073709551615 bytes in a file of 20 bytes: not a safetensors file, or cut short");
  CHECK(open_error(path, std::string("\x0d\0\0\0\0\0\0\0", 8) + std::string(12, ' ')) ==
        name + ": header of 13 bytes in a file of 20 bytes: not a safetensors file, or cut short");
  CHECK(open_error(path, std::string(8, '\0')).starts_with(name + ": header: not valid JSON"));
  for (const std::string end : {"", "]"}) {
    std::string deep(200000, '[');
    for (int i = 0; i < 200000; ++i) deep += end;
    CHECK(open_error(path, file_text(deep, 0)) == name + ": header: not valid JSON: nested too deeply");
  }
}

TEST_CASE("a message stays short and printable whatever the file holds") {
  const temporary_directory directory;
  const std::string name(5000, 'x');
  const std::string message = open_error(directory.path / "f", file_text("{\"\\u0007\\n" + name + "\":1}", 0));
  CHECK(message.size() < 400);
  CHECK(message.find("\\u0007\\nxxx") != std::string::npos);
  // What a parser quotes of a text that is none.
  for (const char c : open_error(directory.path / "f", file_text("{\"a\":\xc3\xa9}", 0))) CHECK((c >= ' ' && c <= '~'));
}

TEST_CASE("a file cut short anywhere is refused, one with changed bytes is refused or safe to read") {
  const temporary_directory directory;
  const auto path = directory.path / "f";
  safetensors_writer writer;
  writer.add("a.weight", tensor_dtype::f32, {2, 3}, std::vector<float>(6, 1));
  writer.add("ids", tensor_dtype::i64, {3}, std::vector<std::int64_t>{1, 2, 3});
  writer.add("h", tensor_dtype::bf16, {5}, std::vector<float>(5, 2));
  writer.write(path);
  const std::string text = read_text(path);
  for (std::size_t length = 0; length < text.size(); ++length) {
    CAPTURE(length);
    REQUIRE(open_error(path, text.substr(0, length)) != "no error");
  }
  CHECK(open_error(path, text + '\0') != "no error");

  const std::size_t header_end = text.size() - 24 - 24 - 10;
  random_numbers random;
  int opened = 0;
  for (int repeat = 0; repeat < 3000; ++repeat) {
    std::string changed = text;
    for (num n = 1 + random.below(3); n > 0; --n) {
      const auto at = static_cast<std::size_t>(random.below(static_cast<num>(header_end)));
      const std::string_view likely = "0123456789[]{},:\"-. eF";
      changed[at] = random.below(2) == 0
                        ? static_cast<char>(random.below(256))
                        : likely[static_cast<std::size_t>(random.below(static_cast<num>(likely.size())))];
    }
    write_text(path, changed);
    try {
      const safetensors_file file = safetensors_file::open(path);
      ++opened;
      for (const tensor_entry& e : file.entries())
        is_floating(e.dtype) ? (void)read_as<float>(e) : (void)read_as<std::int64_t>(e);
    } catch (const input_error& e) {
      REQUIRE(std::string_view(e.what()).starts_with(path.string()));
    }
  }
  CHECK(opened > 0);  // changed names and the padding are no defect
}

TEST_CASE("mistakes of a program that writes are refused") {
  const temporary_directory directory;
  const auto path = directory.path / "f";
  safetensors_writer writer;
  writer.add("a", tensor_dtype::f32, {2}, std::vector<float>(2));
  CHECK_THROWS_AS(writer.add("a", tensor_dtype::f32, {2}, std::vector<float>(2)), std::logic_error);
  CHECK_THROWS_AS(writer.add("__metadata__", tensor_dtype::f32, {2}, std::vector<float>(2)), std::logic_error);
  CHECK_THROWS_AS(writer.add("b", tensor_dtype::f32, {3}, std::vector<float>(2)), std::logic_error);
  CHECK_THROWS_AS(writer.add("c", tensor_dtype::f32, {-1}, std::vector<float>{}), std::logic_error);
  CHECK_THROWS_AS(writer.add("c", tensor_dtype::f32, {1LL << 40, 1LL << 40}, [](const auto&) {}), std::logic_error);
  const auto fails = [&](tensor_dtype dtype, auto values) {
    safetensors_writer w;
    w.add("x", dtype, {static_cast<num>(values.size())}, values);
    CHECK_THROWS_AS(w.write(path), std::logic_error);
  };
  fails(tensor_dtype::i32, std::vector<float>{1});
  fails(tensor_dtype::f32, std::vector<std::int64_t>{1});
  fails(tensor_dtype::i8, std::vector<std::int64_t>{128});
  fails(tensor_dtype::u64, std::vector<std::int64_t>{-1});
  fails(tensor_dtype::boolean, std::vector<std::int64_t>{2});
  for (const std::size_t bytes : {4u, 12u}) {
    safetensors_writer w;
    w.add("x", tensor_dtype::f32, {2},
          [&](const safetensors_writer::sink& out) { out(std::vector<std::byte>(bytes)); });
    CHECK_THROWS_AS(w.write(path), std::logic_error);
  }
  CHECK(num_files(directory.path) == 0);
}

TEST_CASE("a failure while writing leaves the old file and nothing else") {
  const temporary_directory directory;
  const auto path = directory.path / "f";
  write_text(path, "old");
  safetensors_writer writer;
  writer.add("x", tensor_dtype::f32, {1 << 20}, [](const safetensors_writer::sink& out) {
    out(std::vector<std::byte>(3 << 20));
    throw std::runtime_error("stop");
  });
  CHECK_THROWS_WITH(writer.write(path), "stop");
  CHECK(read_text(path) == "old");
  CHECK(num_files(directory.path) == 1);

  // A limit on the size of files acts like a full disk.
  safetensors_writer large;
  large.add("x", tensor_dtype::f32, {1 << 20}, std::vector<float>(1 << 20));
  ::rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const ::rlimit less{1 << 20, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &less) == 0);
  const std::string message = message_of([&] { large.write(path); });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(message == path.string() + ": cannot be written: File too large");
  CHECK(read_text(path) == "old");
  CHECK(num_files(directory.path) == 1);

  large.write(path);
  CHECK(safetensors_file::open(path).at("x").size() == 1 << 20);
  CHECK(num_files(directory.path) == 1);
}

TEST_CASE("a destination that cannot be written is refused by name") {
  const temporary_directory directory;
  const auto missing = directory.path / "none" / "f";
  CHECK(message_of([&] { safetensors_writer().write(missing); }) ==
        missing.string() + ": cannot be created: No such file or directory");
  CHECK(message_of([&] { safetensors_writer().write(directory.path); }) ==
        directory.path.string() + ": cannot be written: not a regular file");
  // A pipe stands for everything that is no file; a device of the machine would be lost if this failed.
  const auto pipe = directory.path / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(message_of([&] { safetensors_writer().write(pipe); }) ==
        pipe.string() + ": cannot be written: not a regular file");
  CHECK(std::filesystem::is_fifo(pipe));
  CHECK(message_of([&] { safetensors_file::open(pipe); }) == pipe.string() + ": not a regular file");
}
