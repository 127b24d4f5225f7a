// SPDX-License-Identifier: Apache-2.0
// Results that another framework computed, held against the baseline: which of them are off, and how.
//
//   const foreign_results file = foreign_results::read("theirs.safetensors", config, rows);
//   const comparison c = compare_foreign(file, expected, rows);
//   c.tensors[0].note;  // "x 2.0: counted twice"
#ifndef SHARDPLAN_RUNTIME_VERIFY_FOREIGN_HPP
#define SHARDPLAN_RUNTIME_VERIFY_FOREIGN_HPP

#include "runtime/checkpoint/safetensors.hpp"
#include "runtime/verify/compare.hpp"

namespace shardplan::runtime {

/// A tensor of the file, or a part of it, and what it is of the baseline's.
struct foreign_tensor {
  std::string name;            ///< in the file
  std::string of;              ///< logits, grad.NAME, ...: one expert is a part of such a tensor
  num first = 0;               ///< where that part begins
  std::vector<num> shape;      ///< as the baseline has it
  bool is_transposed = false;  ///< the file has the last two dims in the other order; `values` have not
  tensor_dtype dtype{};
  std::vector<double> values;
};

struct foreign_results {
  std::string file;
  std::vector<foreign_tensor> tensors;
  std::vector<char> counts;                    ///< compare_mask, (rows, length); empty without one
  std::vector<std::string> missing;            ///< grad.NAME and parameter.NAME that it has not, where it has others
  bool gradients = false, parameters = false;  ///< it has some

  /// Reads logits, token_loss, loss, aux_loss (or balance_loss), gradient_norm, grad.NAME and parameter.NAME, in F64,
  /// F32, BF16 or F16; experts fused, or each by its name in a checkpoint. Inputs in the same file are passed over.
  /// Throws input_error naming tensors that are none of these, another shape, or when nothing is there to compare.
  static foreign_results read(const std::filesystem::path& path, const model_config& config, const batch_rows& rows);
};

/// Compares every tensor of the file. The limits are those of f32, wider for a file in bf16 or f16, or `limit`.
/// Parameters after steps are compared where they are steady.
template <class T>
comparison compare_foreign(const foreign_results& file, const baseline_result<T>& theirs, const batch_rows& rows,
                           std::optional<double> limit = {});

/// How values that are not equal to the baseline's came about.
struct diagnosis {
  std::optional<double> factor;
  std::string note;  ///< empty when nothing simple explains it
};

/// Looks for a constant factor, another order of tokens, rows or dims, and both at once. `by_token`: shape is (rows,
/// length) or (rows, length, width).
diagnosis diagnose(std::span<const double> values, std::span<const double> baseline, std::span<const num> shape,
                   bool by_token, double limit);
/// "x 2.0: counted twice".
std::string factor_text(double factor, double limit);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_VERIFY_FOREIGN_HPP
