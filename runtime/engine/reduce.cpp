// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/reduce.hpp"

#include <algorithm>    // min, transform
#include <type_traits>  // make_unsigned

namespace shardplan::runtime::detail {

namespace {

template <reduce_op Op, class T>
T combine(T a, T b) {
  if constexpr (Op == reduce_op::sum) {
    if constexpr (std::is_integral_v<T>) {
      using wrapping = std::make_unsigned_t<T>;  // overflow of signed integers is undefined
      return static_cast<T>(static_cast<wrapping>(a) + static_cast<wrapping>(b));
    } else {
      return a + b;
    }
  } else if constexpr (Op == reduce_op::max) {
    return b > a || b != b ? b : a;  // b != b: a NaN replaces a number, and no number replaces a NaN
  } else {
    return b < a || b != b ? b : a;
  }
}

template <reduce_op Op, class T>
void reduce_typed(std::span<const std::byte* const> in, num first, num count, T* out) {
  constexpr num block = 512;  // accumulators that stay in the first-level cache while the inputs pass by once
  accumulated<T> sum[block];
  const auto value = [](T x) {
    if constexpr (is_real<T>)
      return widen(x);
    else
      return x;
  };
  for (num begin = 0; begin < count; begin += block) {
    const num size = std::min(block, count - begin);
    const auto from = [&](std::size_t i) { return reinterpret_cast<const T*>(in[i]) + first + begin; };
    std::transform(from(0), from(0) + size, sum, value);
    for (std::size_t i = 1; i < in.size(); ++i) {
      const T* const next = from(i);
      for (num e = 0; e < size; ++e) sum[e] = combine<Op>(sum[e], value(next[e]));
    }
    std::transform(sum, sum + size, out + begin, narrow<T>);
  }
}

template <class T>
void reduce_by(reduce_op op, std::span<const std::byte* const> in, num first, num count, std::byte* out) {
  T* const typed = reinterpret_cast<T*>(out);
  switch (op) {
    case reduce_op::sum:
      return reduce_typed<reduce_op::sum>(in, first, count, typed);
    case reduce_op::max:
      return reduce_typed<reduce_op::max>(in, first, count, typed);
    case reduce_op::min:
      return reduce_typed<reduce_op::min>(in, first, count, typed);
  }
}

}  // namespace

void reduce(element_type type, reduce_op op, std::span<const std::byte* const> in, num first, num count,
            std::byte* out) {
  switch (type) {
    case element_type::f32:
      return reduce_by<float>(op, in, first, count, out);
    case element_type::f64:
      return reduce_by<double>(op, in, first, count, out);
    case element_type::i64:
      return reduce_by<std::int64_t>(op, in, first, count, out);
    case element_type::u64:
      return reduce_by<std::uint64_t>(op, in, first, count, out);
    case element_type::i32:
      return reduce_by<std::int32_t>(op, in, first, count, out);
    case element_type::bf16:
      return reduce_by<bf16>(op, in, first, count, out);
  }
}

}  // namespace shardplan::runtime::detail
