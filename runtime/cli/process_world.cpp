// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/process_world.hpp"

namespace shardplan::runtime {
namespace {

constexpr std::size_t entry_fields = 8;  // of a ledger_entry

}  // namespace

std::vector<num> to_numbers(const std::vector<ledger_entry>& entries) {
  std::vector<num> out;
  for (const ledger_entry& e : entries)
    for (num field : {static_cast<num>(e.what), static_cast<num>(e.axes.bits), e.group_size, e.bytes, e.kept,
                      static_cast<num>(e.root), static_cast<num>(e.why), e.layer})
      out.push_back(field);
  return out;
}

recorder to_recorder(std::span<const num> numbers) {
  recorder out;
  for (; !numbers.empty(); numbers = numbers.subspan(entry_fields)) {
    ledger_entry e;
    e.what = static_cast<operation>(numbers[0]);
    e.axes.bits = static_cast<unsigned>(numbers[1]);
    e.group_size = numbers[2];
    e.bytes = numbers[3];
    e.kept = numbers[4];
    e.root = numbers[5] != 0;
    e.why = static_cast<phase>(numbers[6]);
    e.layer = numbers[7];
    out.add(e);
  }
  return out;
}

}  // namespace shardplan::runtime
