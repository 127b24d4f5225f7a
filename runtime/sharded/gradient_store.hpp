// SPDX-License-Identifier: Apache-2.0
// Gradients of the parts a rank computes with, summed over what this rank has seen.
#ifndef SHARDPLAN_RUNTIME_SHARDED_GRADIENT_STORE_HPP
#define SHARDPLAN_RUNTIME_SHARDED_GRADIENT_STORE_HPP

#include <map>
#include <utility>

#include "runtime/sharded/rank_view.hpp"

namespace shardplan::runtime {

using parameter_key = std::pair<num, parameter_kind>;  ///< layer, kind

template <class T, class D = cpu_device>
class gradient_store {
 public:
  using key = parameter_key;

  explicit gradient_store(const D& on = {}) : on_(on) {}

  /// The sum so far of one parameter's gradient, shaped as its part in use (`size` elements); zeros at first.
  std::span<T> operator()(num layer, parameter_kind kind, std::size_t size) {
    buffer_on<D, T>& sum = sums_[key{layer, kind}];
    if (sum.size() == 0) sum = filled<T>(on_, size, T{0});
    return sum;
  }
  std::map<key, buffer_on<D, T>>& sums() { return sums_; }

 private:
  D on_;
  std::map<key, buffer_on<D, T>> sums_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_GRADIENT_STORE_HPP
