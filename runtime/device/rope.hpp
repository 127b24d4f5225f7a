// SPDX-License-Identifier: Apache-2.0
// The numbers of a rotary embedding, as a configuration gives them.
#ifndef SHARDPLAN_RUNTIME_DEVICE_ROPE_HPP
#define SHARDPLAN_RUNTIME_DEVICE_ROPE_HPP

#include <optional>

namespace shardplan::runtime {

/// Rotary embedding: plain, or scaled by YaRN.
struct rope_config {
  enum class scaling : unsigned char { none, yarn };
  double theta = 10000;
  scaling type = scaling::none;
  double factor = 1;                       ///< yarn: how much longer positions may become
  double beta_fast = 32, beta_slow = 1;    ///< yarn: the ramp's two ends, in rotations
  double original_max_positions = 0;       ///< yarn: positions of the unscaled model
  std::optional<double> attention_factor;  ///< yarn: given outright
  std::optional<double> mscale, mscale_all_dim;
  bool truncate = true;  ///< yarn: floor and ceil the ends of the ramp

  friend bool operator==(const rope_config&, const rope_config&) = default;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_DEVICE_ROPE_HPP
