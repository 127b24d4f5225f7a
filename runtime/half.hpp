// SPDX-License-Identifier: Apache-2.0
// The two 16-bit floating formats as bit patterns. Storing rounds to nearest, ties to even; loading is exact.
#ifndef SHARDPLAN_RUNTIME_HALF_HPP
#define SHARDPLAN_RUNTIME_HALF_HPP

#include <bit>
#include <cstdint>

namespace shardplan::runtime {

constexpr float float_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

constexpr std::uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  // Rounding a NaN could carry into infinity; it keeps its sign and payload instead, and becomes quiet.
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24, exact in float
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));  // 112: the difference of biases
}

constexpr std::uint16_t f16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)  // NaN, made quiet
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 2^16 and more: infinity
  if (magnitude < 0x33000000u) return static_cast<std::uint16_t>(sign);             // below 2^-25: zero
  if (magnitude < 0x38800000u) {  // below 2^-14: a subnormal, counted in units of 2^-24
    const std::uint32_t shift = 126u - (magnitude >> 23), whole = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t quotient = whole >> shift, rest = whole & ((1u << shift) - 1u), half = 1u << (shift - 1u);
    const std::uint32_t up = rest > half || (rest == half && (quotient & 1u) != 0) ? 1u : 0u;
    return static_cast<std::uint16_t>(sign | (quotient + up));
  }
  const std::uint32_t rebased = magnitude - 0x38000000u;  // the carry of the rounding may end in infinity, as it should
  return static_cast<std::uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
}

/// The float next to `value` whose last bit is odd unless `value` is a float: rounding it once more, to a 16-bit
/// format, gives what rounding `value` directly would. (Rounding to nearest twice does not.)
constexpr float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  const auto reached = static_cast<double>(std::bit_cast<float>(bits & 0x7fffffffu));
  // Towards zero, and the last bit set where that lost something; without branches, as weights are random. A NaN may
  // get another payload.
  bits -= reached > (value < 0 ? -value : value) ? 1u : 0u;
  bits |= static_cast<double>(nearest) != value ? 1u : 0u;
  return std::bit_cast<float>(bits);
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_HALF_HPP
