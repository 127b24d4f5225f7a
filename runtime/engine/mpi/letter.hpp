// SPDX-License-Identifier: Apache-2.0
// What one rank tells another: a call with the sizes of it, and the data, in the letter itself where it is little.
#ifndef SHARDPLAN_RUNTIME_ENGINE_MPI_LETTER_HPP
#define SHARDPLAN_RUNTIME_ENGINE_MPI_LETTER_HPP

#include <cstdint>
#include <memory>  // shared_ptr
#include <vector>

#include "runtime/engine/processes.hpp"
#include "runtime/engine/request.hpp"

namespace shardplan::runtime::detail {

enum class letter_kind : num {
  call,     ///< the sender has come to a collective; with its whole input, where that is little
  piece,    ///< the part of its input, or of the result, that the receiver needs
  message,  ///< send, which a receive takes
  verdict,  ///< how the sender ended
  last,     ///< the last word
};

using bytes = std::vector<std::byte>;

struct letter {
  letter_kind kind{};
  num from = 0;                 ///< rank
  std::uint64_t group = 0;      ///< group_number of the members
  request call;                 ///< counts lie in `text`; `in` and `out` are null
  num data_size = 0;            ///< in bytes; 0 when there is none
  bool apart = false;           ///< the data comes after the letter, in pieces
  std::shared_ptr<bytes> text;  ///< of the letter
  const std::byte* data = nullptr;
  std::shared_ptr<bytes> own_data;  ///< holds what came apart
  num missing = 0;                  ///< bytes of it that have not come yet
};

/// More than that travels apart from its letter.
inline constexpr num most_inside = 512;

/// The letter as it is sent; `from` is left out. Data of up to `most_inside` bytes is put in.
std::shared_ptr<bytes> pack(const letter& what);
letter unpack(std::shared_ptr<bytes> text, num from);

std::shared_ptr<bytes> pack(const verdict& v);
std::shared_ptr<bytes> pack(const last_word& w);
verdict unpack_verdict(const letter& l);
last_word unpack_last(const letter& l);

/// The same on every member, and but for chance another for other members.
std::uint64_t group_number(std::span<const num> ranks);

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_MPI_LETTER_HPP
