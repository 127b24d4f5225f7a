// SPDX-License-Identifier: Apache-2.0
#include "runtime/verify/foreign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <shardplan/parameters.hpp>

#include "runtime/error.hpp"
#include "runtime/verify/inputs.hpp"

namespace shardplan::runtime {
namespace {

/// A tensor that a file may have.
struct place {
  std::string of;
  num first = 0;
  std::vector<num> shape;
};
using places = std::map<std::string, place, std::less<>>;

/// The projections of one expert by their names in a checkpoint, as parts of the fused tensors.
void add_experts(places& out, const std::string& prefix, const parameter& p, const model_spec& m) {
  const num inner = m.moe_intermediate_size, hidden = m.hidden_size;
  const std::string fused = prefix + std::string(name_of(p).view());
  for (num e = 0; e < m.num_experts; ++e) {
    const std::string expert = fmt::format("{}model.layers.{}.mlp.experts.{}.", prefix, p.layer, e);
    if (p.kind == parameter_kind::experts_gate_up) {
      out[expert + "gate_proj.weight"] = {fused, 2 * e * inner * hidden, {inner, hidden}};
      out[expert + "up_proj.weight"] = {fused, (2 * e + 1) * inner * hidden, {inner, hidden}};
    } else {
      out[expert + "down_proj.weight"] = {fused, e * hidden * inner, {hidden, inner}};
    }
  }
}

places known_places(const model_config& config, const batch_rows& rows) {
  const model_spec& m = config.spec;
  places out;
  out["logits"] = {"logits", 0, {rows.rows, rows.length, m.vocab_size}};
  out["token_loss"] = {"token_loss", 0, {rows.rows, rows.length}};
  for (const char* name : {"loss", "gradient_norm"}) out[name] = {name, 0, {}};
  if (config.output_router_logits)
    for (const char* name : {"balance_loss", "aux_loss"}) out[name] = {"balance_loss", 0, {}};
  for_each_parameter(m, [&](const parameter& p) {
    for (const char* prefix : {"grad.", "parameter."}) {
      const std::string name = prefix + std::string(name_of(p).view());
      out[name] = {name, 0, {p.shape.begin(), p.shape.end()}};
      if (class_of(p.kind) == parameter_class::expert) add_experts(out, prefix, p, m);
    }
  });
  return out;
}

void refuse_unknown(const safetensors_file& file, const places& known) {
  constexpr std::size_t shown = 8;
  std::vector<std::string> unknown;
  for (const tensor_entry& t : file.entries())
    if (!is_input_name(t.name) && t.name != "compare_mask" && known.find(t.name) == known.end())
      unknown.push_back('"' + t.name + '"');
  if (unknown.empty()) return;
  const std::size_t count = unknown.size();
  unknown.resize(std::min(count, shown));
  throw input_error(
      fmt::format("{}: {} {}{} not of this model: a file to compare holds logits, token_loss, loss, "
                  "aux_loss where the model has it, gradient_norm, grad.NAME and parameter.NAME",
                  file.path().string(), count == 1 ? "tensor" : "tensors", fmt::join(unknown, ", "),
                  count > shown ? fmt::format(" and {} more are", count - shown)
                  : count == 1  ? " is"
                                : " are"));
}

/// The last two dims in the other order.
std::vector<num> transposed(std::vector<num> shape) {
  if (shape.size() > 1) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return shape;
}
std::vector<double> transposed(const std::vector<double>& from, const std::vector<num>& shape) {
  const num cols = shape[shape.size() - 1], rows = shape[shape.size() - 2];
  std::vector<double> out(from.size());
  for (num g = 0; g < static_cast<num>(from.size()) / (rows * cols); ++g)
    for (num i = 0; i < rows; ++i)
      for (num j = 0; j < cols; ++j)
        out[static_cast<std::size_t>((g * cols + j) * rows + i)] =
            from[static_cast<std::size_t>((g * rows + i) * cols + j)];
  return out;
}

/// One number may be a scalar or a list of one.
bool is_number(const std::vector<num>& shape) { return shape.empty() || shape == std::vector<num>{1}; }

foreign_tensor read_tensor(const tensor_entry& t, const place& at) {
  foreign_tensor out{t.name, at.of, at.first, at.shape, false, t.dtype, {}};
  const bool as_it_is = t.shape == at.shape || (at.shape.empty() && is_number(t.shape));
  out.is_transposed = !as_it_is && at.of.find('.') != std::string::npos && t.shape == transposed(at.shape);
  if (!as_it_is && !out.is_transposed)
    throw input_error(fmt::format("{}: tensor \"{}\" must be of shape {}, but is {}", t.file, t.name, to_text(at.shape),
                                  to_text(t.shape)));
  out.values = read_as<double>(t);
  if (out.is_transposed) out.values = transposed(out.values, t.shape);
  return out;
}

/// Largest error that counts as equal: storing in a short type rounds by itself.
double limit_of(tensor_dtype dtype, bool is_output) {
  if (dtype == tensor_dtype::bf16) return 2e-2;
  if (dtype == tensor_dtype::f16) return 2e-3;
  return is_output ? output_limit<float> : gradient_limit<float>;
}

template <class T>
std::vector<double> baseline_values(const foreign_tensor& t, const baseline_result<T>& b) {
  const auto copy = [](const auto& from, num first, std::size_t count) {
    return std::vector<double>(from.begin() + first, from.begin() + first + static_cast<num>(count));
  };
  if (t.of == "logits") return copy(b.logits, 0, b.logits.size());
  if (t.of == "token_loss") return copy(b.token_loss, 0, b.token_loss.size());
  if (t.of == "loss") return {b.loss};
  if (t.of == "balance_loss") return {b.balance_loss};
  if (t.of == "gradient_norm") return {b.gradient_norm};
  const bool is_gradient = t.of.starts_with("grad.");
  const auto& all = is_gradient ? b.gradients : b.parameters;
  return copy(all.at(t.of.substr(t.of.find('.') + 1)), t.first, t.values.size());
}

/// What all gradients, of which none is zero, have in common.
std::string common_factor(const std::vector<tensor_comparison>& gradients, double limit) {
  std::optional<double> factor;
  num off = 0;
  for (const tensor_comparison& t : gradients) {
    if (t.equal || !t.factor || (factor && std::abs(*factor - *t.factor) > limit * std::abs(*factor))) return "";
    factor = t.factor;
    ++off;
  }
  return off < 2 ? "" : fmt::format("all {} gradients are off by one factor: {}", off, factor_text(*factor, limit));
}

}  // namespace

foreign_results foreign_results::read(const std::filesystem::path& path, const model_config& config,
                                      const batch_rows& rows) {
  const safetensors_file file = safetensors_file::open(path);
  const places known = known_places(config, rows);
  refuse_unknown(file, known);
  foreign_results out;
  out.file = path.string();
  std::map<std::string, num> covered;
  for (const tensor_entry& t : file.entries()) {
    const auto found = known.find(t.name);
    if (found == known.end()) continue;
    out.tensors.push_back(read_tensor(t, found->second));
    covered[found->second.of] += t.size();
    out.gradients = out.gradients || t.name.starts_with("grad.") || t.name == "gradient_norm";
    out.parameters = out.parameters || t.name.starts_with("parameter.");
  }
  if (out.tensors.empty())
    throw input_error(
        fmt::format("{}: holds nothing to compare: no logits, token_loss, loss, grad.NAME or "
                    "parameter.NAME",
                    out.file));
  const auto has_some = [&](const std::string& prefix) {
    const auto first = covered.lower_bound(prefix);
    return first != covered.end() && first->first.starts_with(prefix);
  };
  for (const std::string prefix : {"grad.", "parameter."})
    for_each_parameter(config.spec, [&](const parameter& p) {
      const std::string name = prefix + std::string(name_of(p).view());
      const auto found = covered.find(name);
      if (has_some(prefix) && (found == covered.end() || found->second < p.size())) out.missing.push_back(name);
    });
  if (const tensor_entry* mask = file.find("compare_mask")) {
    if (mask->shape != std::vector<num>{rows.rows, rows.length})
      throw input_error(fmt::format("{}: tensor \"compare_mask\" must be of shape {}, but is {}", mask->file,
                                    to_text(std::vector<num>{rows.rows, rows.length}), to_text(mask->shape)));
    for (num v : read_as<num>(*mask)) out.counts.push_back(v != 0);
  }
  return out;
}

template <class T>
comparison compare_foreign(const foreign_results& file, const baseline_result<T>& theirs, const batch_rows& rows,
                           std::optional<double> given_limit) {
  std::vector<char> counts = real_tokens(rows);
  for (std::size_t i = 0; i < file.counts.size(); ++i) counts[i] = counts[i] != 0 && file.counts[i] != 0;
  const double zero_limit = zero_share * largest_of(theirs.gradients);
  comparison out;
  std::vector<tensor_comparison> gradients;
  bool all_zero = true;
  for (const foreign_tensor& t : file.tensors) {
    const std::vector<double> expected = baseline_values(t, theirs);
    const bool by_token = t.of == "logits" || t.of == "token_loss", is_gradient = t.of.starts_with("grad."),
               is_parameter = t.of.starts_with("parameter.");
    const double limit = given_limit.value_or(limit_of(t.dtype, t.of.find('.') == std::string::npos));
    std::vector<char> compared;
    if (by_token) compared = counts;
    if (const auto found = theirs.steady.find(t.of.substr(t.of.find('.') + 1));
        is_parameter && found != theirs.steady.end())
      compared.assign(found->second.begin() + t.first,
                      found->second.begin() + t.first + static_cast<num>(expected.size()));
    tensor_comparison c =
        compare_tensor<double>(t.name, t.shape, t.values, expected, limit, compared,
                               t.of == "logits" ? theirs.vocab : 1, is_gradient ? zero_limit : 0, "the file's");
    const auto is_zero = [](double v) { return v == 0; };
    const bool zero = std::all_of(expected.begin(), expected.end(), is_zero);
    all_zero = all_zero && zero;
    if (!c.equal && std::isfinite(c.error) && !zero) {
      diagnosis d = diagnose(t.values, expected, t.shape, by_token, limit);
      c.factor = d.factor, c.note = std::move(d.note);
    }
    if (t.is_transposed) {
      c.note = "the last two dims are transposed" +
               (c.equal ? std::string() : "; " + (c.note.empty() ? "other values too" : c.note));
      c.equal = false;
    }
    if (is_gradient && !(zero && c.equal)) gradients.push_back(c);
    out.tensors.push_back(std::move(c));
  }
  out.equal = std::all_of(out.tensors.begin(), out.tensors.end(), [](const auto& t) { return t.equal; });
  out.note = common_factor(gradients, given_limit.value_or(gradient_limit<float>));
  if (out.equal && all_zero && theirs.num_items > 0) {
    out.equal = false;
    out.note = "all that the file holds is zero in the baseline: nothing was compared";
  }
  return out;
}

template comparison compare_foreign(const foreign_results&, const baseline_result<float>&, const batch_rows&,
                                    std::optional<double>);
template comparison compare_foreign(const foreign_results&, const baseline_result<double>&, const batch_rows&,
                                    std::optional<double>);

}  // namespace shardplan::runtime
