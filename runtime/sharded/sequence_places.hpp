// SPDX-License-Identifier: Apache-2.0
// Where the tokens of a micro-batch stand that the context-parallel ranks hold: for all layers that attend to them.
#ifndef SHARDPLAN_RUNTIME_SHARDED_SEQUENCE_PLACES_HPP
#define SHARDPLAN_RUNTIME_SHARDED_SEQUENCE_PLACES_HPP

#include <map>
#include <utility>

#include "runtime/sharded/rank_view.hpp"

namespace shardplan::runtime {

/// What a device is asked for goes there once, when it is first asked for.
template <class D = cpu_device>
class sequence_places {
 public:
  /// `of_ranks[rank][row]`
  explicit sequence_places(std::vector<std::vector<token_places>> of_ranks) : host_(std::move(of_ranks)) {}

  /// On the host: by context-parallel rank and row.
  const std::vector<std::vector<token_places>>& host() const { return host_; }
  operator std::span<const std::vector<token_places>>() const { return host_; }  // NOLINT: as a vector converts
  /// Every rank holds as many.
  num tokens_of_rank() const { return static_cast<num>(host_[0][0].offset.size() * host_[0].size()); }

  /// On the device: of ranks [first, last), whose tokens are held one rank after another. Lives as long as this does.
  const typename D::places& of_ranks(const D& on, num first, num last) const {
    auto found = there_.find({first, last});
    if (found == there_.end())
      found = there_.emplace(std::pair{first, last}, upload_places(on, join(first, last))).first;
    return found->second;
  }

 private:
  std::vector<token_places> join(num first, num last) const {
    std::vector<token_places> all(host_[0].size());
    for (num r = first; r < last; ++r)
      for (std::size_t row = 0; row < all.size(); ++row) {
        const token_places& p = host_[static_cast<std::size_t>(r)][row];
        all[row].offset.insert(all[row].offset.end(), p.offset.begin(), p.offset.end());
        all[row].document.insert(all[row].document.end(), p.document.begin(), p.document.end());
        all[row].key.insert(all[row].key.end(), p.key.begin(), p.key.end());
      }
    return all;
  }

  std::vector<std::vector<token_places>> host_;
  mutable std::map<std::pair<num, num>, typename D::places> there_;  // a rank's thread alone uses it
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_SEQUENCE_PLACES_HPP
