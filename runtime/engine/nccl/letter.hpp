// SPDX-License-Identifier: Apache-2.0
// What one rank tells another beside the data: which call it has come to, and how it ended.
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_LETTER_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_LETTER_HPP

#include <string>
#include <vector>

#include "runtime/engine/processes.hpp"
#include "runtime/engine/request.hpp"

namespace shardplan::runtime::detail {

enum class letter_kind : num {
  call,     ///< the sender has come to a collective
  message,  ///< a send, which a receive takes
  fetch,    ///< the sender has come to the receive of a message, whose data may come now
  verdict,  ///< how the sender ended
  last,     ///< the last word
};

/// The kind first, and the ranks of the group; of a message its axes and phase before them. Letters of one sender with
/// one address are taken in the order they were sent in.
using letter_address = std::vector<num>;
letter_address address_of_calls(std::span<const num> ranks);
letter_address address_of_messages(std::span<const num> ranks, const request& call);
/// Of the letters that fetch the messages of an address.
letter_address address_of_fetches(letter_address messages);

struct letter {
  letter_address address;
  request call;             ///< its buffers are null, its counts lie in `counts`
  std::vector<num> counts;  ///< the counts, and then the receive counts, of the call
  std::string text;         ///< of a communicator the id, where it is new; of a verdict the report

  letter() = default;
  letter(letter_address to, const request& what, std::string with);
  letter(letter&&) = default;
  letter& operator=(letter&&) = default;
};

std::string pack(const letter& l);
/// collective_error naming the sender when the bytes are not a letter.
letter unpack(std::string_view bytes, num from);

letter to_letter(const verdict& v);
letter to_letter(const last_word& w);
verdict to_verdict(const letter& l);
last_word to_last_word(const letter& l);

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_LETTER_HPP
