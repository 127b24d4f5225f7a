// SPDX-License-Identifier: Apache-2.0
// Who may attend to whom, token by token and block by block, for every device alike.
#ifndef SHARDPLAN_RUNTIME_DEVICE_VISIBILITY_HPP
#define SHARDPLAN_RUNTIME_DEVICE_VISIBILITY_HPP

#include <shardplan/meta.hpp>

#include "runtime/device/cuda/kernel.hpp"

namespace shardplan::runtime {

/// Where a token stands: in its padded row, in which document, and whether it may be attended to.
struct token_place {
  num offset, document;
  bool key;
};

/// `window` 0: any distance.
SHARDPLAN_HOST_DEVICE inline bool sees(const token_place& q, const token_place& k, num window) {
  const num behind = q.offset - k.offset;
  return k.key && q.document == k.document && behind >= 0 && (window == 0 || behind < window);
}

/// The extremes of a block's places: enough to tell most blocks that nobody may see, or that everybody may.
struct extent {
  num first, last, first_document, last_document;
  bool every_key, any_key;

  SHARDPLAN_HOST_DEVICE static extent of(const token_place& p) {
    return {p.offset, p.offset, p.document, p.document, p.key, p.key};
  }
  SHARDPLAN_HOST_DEVICE void add(const extent& other) {
    first = other.first < first ? other.first : first;
    last = other.last > last ? other.last : last;
    first_document = other.first_document < first_document ? other.first_document : first_document;
    last_document = other.last_document > last_document ? other.last_document : last_document;
    every_key = every_key && other.every_key, any_key = any_key || other.any_key;
  }
};

enum class visibility : unsigned char { none, some, all };

SHARDPLAN_HOST_DEVICE inline visibility seen(const extent& q, const extent& k, num window) {
  const bool overlap = q.first_document <= k.last_document && k.first_document <= q.last_document;
  if (!k.any_key || !overlap || k.first > q.last || (window > 0 && q.first - k.last >= window)) return visibility::none;
  const bool one_document = q.first_document == q.last_document && k.first_document == k.last_document;
  const bool inside = window == 0 || q.last - k.first < window;
  return k.every_key && one_document && k.last <= q.first && inside ? visibility::all : visibility::some;
}

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_VISIBILITY_HPP
