// SPDX-License-Identifier: Apache-2.0
// Places of tokens in device memory, and which tiles of one side see which of the other: attention kernels walk lists
// of visible tiles, so that a tile nobody sees costs nothing, not even a barrier.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_PLACES_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_PLACES_HPP

#include <span>
#include <stdexcept>  // invalid_argument
#include <utility>    // declval
#include <vector>

#include "runtime/device/attention.hpp"  // token_places
#include "runtime/device/cuda/kernel.hpp"
#include "runtime/device/visibility.hpp"

namespace shardplan::runtime::cuda {

/// Places are summed up by this many tokens; tiles are a multiple of it.
constexpr int grain = 32;

/// Places of (rows, tokens), and the extent of every `grain` of them (rows, ceil(tokens / grain)).
struct places_view {
  const num *offset, *document;
  const char* key;
  const extent* extents;
  num rows, tokens;

  SHARDPLAN_HOST_DEVICE num grains() const { return (tokens + grain - 1) / grain; }
  SHARDPLAN_HOST_DEVICE num tiles(int side) const { return (tokens + side - 1) / side; }
  SHARDPLAN_HOST_DEVICE token_place at(num row, num token) const {
    const num i = row * tokens + token;
    return {offset[i], document[i], key[i] != 0};
  }
  SHARDPLAN_HOST_DEVICE extent of_tile(num row, num tile, int side) const {
    const num first = tile * (side / grain), end = first + side / grain;
    extent e = extents[row * grains() + first];
    for (num g = first + 1; g < end && g < grains(); ++g) e.add(extents[row * grains() + g]);
    return e;
  }
  /// Is every line of the tile a token?
  SHARDPLAN_HOST_DEVICE bool fills(num tile, int side) const { return (tile + 1) * side <= tokens; }
};

/// extents of `grain` tokens each: one thread for each.
struct extent_kernel : one_step {
  static constexpr int threads = 128;
  struct arguments {
    places_view places;
    extent* extents;
  };
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num, const place& at, state&, shared&) {
    const num i = at.block * threads + at.thread;
    if (i >= a.places.rows * a.places.grains()) return;
    const num row = i / a.places.grains(), first = i % a.places.grains() * grain;
    extent e = extent::of(a.places.at(row, first));
    for (num t = first + 1; t < first + grain && t < a.places.tokens; ++t) e.add(extent::of(a.places.at(row, t)));
    a.extents[i] = e;
  }
};

/// For each tile of the owner's side (rows, tiles) how many tiles of the other side it meets, and which:
/// entries (rows, tiles, other tiles), each 2 * tile + [does not everybody see everybody there?], in rising order.
struct tile_lists {
  const int *counts, *entries;
  num tiles, others;

  SHARDPLAN_HOST_DEVICE int count(num row, num tile) const { return counts[row * tiles + tile]; }
  SHARDPLAN_HOST_DEVICE num tile(num row, num of, num i) const { return entry(row, of, i) / 2; }
  SHARDPLAN_HOST_DEVICE bool masked(num row, num of, num i) const { return entry(row, of, i) % 2 != 0; }

 private:
  SHARDPLAN_HOST_DEVICE int entry(num row, num of, num i) const { return entries[(row * tiles + of) * others + i]; }
};

/// Writes tile_lists: one thread for each tile of the owner's side, which is that of the keys or that of the queries.
struct list_kernel : one_step {
  static constexpr int threads = 128;
  struct arguments {
    places_view queries, keys;
    num window;
    int side;
    bool owned_by_keys;
    int *counts, *entries;
  };
  SHARDPLAN_HOST_DEVICE static void step(const arguments& a, num, const place& at, state&, shared&) {
    const num query_tiles = a.queries.tiles(a.side), key_tiles = a.keys.tiles(a.side);
    const num tiles = a.owned_by_keys ? key_tiles : query_tiles, others = a.owned_by_keys ? query_tiles : key_tiles;
    const num i = at.block * threads + at.thread;
    if (i >= a.queries.rows * tiles) return;
    const num row = i / tiles, tile = i % tiles;
    const extent own = (a.owned_by_keys ? a.keys : a.queries).of_tile(row, tile, a.side);
    int count = 0;
    for (num other = 0; other < others; ++other) {
      const extent its = (a.owned_by_keys ? a.queries : a.keys).of_tile(row, other, a.side);
      const visibility v = a.owned_by_keys ? seen(its, own, a.window) : seen(own, its, a.window);
      if (v == visibility::none) continue;
      const bool full = a.queries.fills(a.owned_by_keys ? other : tile, a.side) &&
                        a.keys.fills(a.owned_by_keys ? tile : other, a.side);
      a.entries[i * others + count++] = static_cast<int>(2 * other + (v == visibility::all && full ? 0 : 1));
    }
    a.counts[i] = count;
  }
};

/// Memory of a launcher.
template <class L, class U>
using memory_of = decltype(std::declval<L&>().template allocate<U>(num{}));

/// Places that were copied to the device, once for all layers that use them.
template <Launcher L>
class uploaded_places {
 public:
  /// Every row of `places` has equally many tokens.
  uploaded_places(L& on, std::span<const token_places> places)
      : rows_(static_cast<num>(places.size())),
        tokens_(rows_ == 0 ? 0 : static_cast<num>(places[0].offset.size())),
        offset_(uploaded(on, places, &token_places::offset)),
        document_(uploaded(on, places, &token_places::document)),
        key_(uploaded(on, places, &token_places::key)),
        extents_(on.template allocate<extent>(rows_ * ((tokens_ + grain - 1) / grain))),
        view_{offset_.data(), document_.data(), key_.data(), extents_.data(), rows_, tokens_} {
    on.template launch<extent_kernel>(ceil_div(rows_ * view_.grains(), num{extent_kernel::threads}),
                                      {view_, extents_.data()});
  }

  uploaded_places(uploaded_places&&) = default;  // no copies: the view is of this object's memory
  uploaded_places& operator=(uploaded_places&&) = default;

  const places_view& view() const { return view_; }

 private:
  template <class U>
  static memory_of<L, U> uploaded(L& on, std::span<const token_places> places, std::vector<U> token_places::*member) {
    std::vector<U> all;
    for (const token_places& row : places) {
      const std::vector<U>& of_row = row.*member;
      if (of_row.size() != places[0].offset.size())
        throw std::invalid_argument("every row of places must have as many tokens as the first");
      all.insert(all.end(), of_row.begin(), of_row.end());
    }
    return on.upload(std::span<const U>(all));
  }

  num rows_, tokens_;
  memory_of<L, num> offset_, document_;
  memory_of<L, char> key_;
  memory_of<L, extent> extents_;
  places_view view_;
};

/// Who sees whom between queries and keys, by tiles of `side` tokens.
template <Launcher L>
class visible_tiles {
 public:
  visible_tiles(L& on, const places_view& queries, const places_view& keys, num window, int side, bool owned_by_keys)
      : tiles_((owned_by_keys ? keys : queries).tiles(side)),
        others_((owned_by_keys ? queries : keys).tiles(side)),
        counts_(on.template allocate<int>(queries.rows * tiles_)),
        entries_(on.template allocate<int>(queries.rows * tiles_ * others_)) {
    if (queries.rows != keys.rows) throw std::invalid_argument("queries and keys must have equally many rows");
    on.template launch<list_kernel>(ceil_div(queries.rows * tiles_, num{list_kernel::threads}),
                                    {queries, keys, window, side, owned_by_keys, counts_.data(), entries_.data()});
  }

  tile_lists view() { return {counts_.data(), entries_.data(), tiles_, others_}; }

 private:
  num tiles_, others_;
  memory_of<L, int> counts_, entries_;
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_PLACES_HPP
