// SPDX-License-Identifier: Apache-2.0
// What a rank really sent: one entry per collective call, from the buffers handed over. A plan predicts the same list.
#ifndef SHARDPLAN_RUNTIME_ENGINE_RECORDER_HPP
#define SHARDPLAN_RUNTIME_ENGINE_RECORDER_HPP

#include <shardplan/ledger.hpp>
#include <vector>  // vector

namespace shardplan::runtime {

/// The list of one rank. Each rank owns its own, so nothing is locked.
class recorder {
 public:
  void add(const ledger_entry& entry) {
    if (entry.group_size > 1 && entry.what != operation::barrier) entries_.push_back(entry);
  }
  const std::vector<ledger_entry>& entries() const { return entries_; }
  void clear() { entries_.clear(); }

 private:
  std::vector<ledger_entry> entries_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_ENGINE_RECORDER_HPP
