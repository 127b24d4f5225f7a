// SPDX-License-Identifier: Apache-2.0
// Gradients of the parts a rank computes with, summed over what this rank has seen.
#ifndef SHARDPLAN_RUNTIME_SHARDED_GRADIENT_STORE_HPP
#define SHARDPLAN_RUNTIME_SHARDED_GRADIENT_STORE_HPP

#include <map>
#include <utility>

#include "runtime/sharded/rank_view.hpp"

namespace shardplan::runtime {

template <class T>
class gradient_store {
 public:
  using key = std::pair<num, parameter_kind>;  // layer, kind

  /// The sum so far of one parameter's gradient, shaped as its part in use (`size` elements); zeros at first.
  std::span<T> operator()(num layer, parameter_kind kind, std::size_t size) {
    buffer<T>& sum = sums_[key{layer, kind}];
    if (sum.empty()) sum.assign(size, T{0});
    return sum;
  }
  std::map<key, buffer<T>>& sums() { return sums_; }

 private:
  std::map<key, buffer<T>> sums_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_GRADIENT_STORE_HPP
