// SPDX-License-Identifier: Apache-2.0
// One number for every element of every parameter of a model: its weights, or as well its gradients.
#ifndef SHARDPLAN_RUNTIME_REFERENCE_PARAMETER_SET_HPP
#define SHARDPLAN_RUNTIME_REFERENCE_PARAMETER_SET_HPP

#include <shardplan/parameters.hpp>
#include <span>         // span
#include <stdexcept>    // out_of_range
#include <string>       // string
#include <string_view>  // string_view
#include <utility>      // as_const, pair
#include <vector>       // vector

#include "runtime/reference/tensor.hpp"

namespace shardplan::runtime::reference {

template <class T>
class parameter_set {
 public:
  parameter_set() = default;
  /// All zero.
  explicit parameter_set(const model_spec& m) : first_of_layer_{0} {
    for (num layer = parameter::no_layer; layer < m.num_hidden_layers; ++layer) {
      for_each_parameter(m, [&](const parameter& p) {
        if (p.layer == layer) add(p);
      });
      first_of_layer_.push_back(list_.size());
    }
  }

  /// Calls `f(parameter, std::span<T>)` for each one.
  template <class F>
  void for_each(F&& f) {
    for (auto& [p, values] : list_) f(p, values.all());
  }
  template <class F>
  void for_each(F&& f) const {
    for (const auto& [p, values] : list_) f(p, values.all());
  }

  bool has(parameter_kind kind, num layer = parameter::no_layer) const { return find(kind, layer) != nullptr; }
  /// A matrix as it is, a vector as one row, experts as (E * rows, cols) of theirs.
  const tensor<T>& at(parameter_kind kind, num layer = parameter::no_layer) const { return *find(kind, layer); }
  tensor<T>& at(parameter_kind kind, num layer = parameter::no_layer) {
    return const_cast<tensor<T>&>(std::as_const(*this).at(kind, layer));
  }
  /// By its full name, as name_of(parameter) spells it; throws std::out_of_range when there is none.
  std::span<const T> at(std::string_view name) const {
    for (const auto& [p, values] : list_)
      if (name_of(p).view() == name) return values.all();
    throw std::out_of_range("no parameter " + std::string(name));
  }

 private:
  void add(const parameter& p) {
    const num cols = p.shape[p.shape.size() - 1];
    list_.emplace_back(p, tensor<T>(p.size() / cols, cols));
  }
  const tensor<T>* find(parameter_kind kind, num layer) const {
    for (std::size_t i = first_of_layer_[layer + 1]; i < first_of_layer_[layer + 2]; ++i)
      if (list_[i].first.kind == kind) return &list_[i].second;
    return nullptr;
  }

  std::vector<std::pair<parameter, tensor<T>>> list_;  // those of no layer, then layer by layer
  std::vector<std::size_t> first_of_layer_;            // at [layer + 1]: its first one in list_
};

}  // namespace shardplan::runtime::reference
#endif  // SHARDPLAN_RUNTIME_REFERENCE_PARAMETER_SET_HPP
