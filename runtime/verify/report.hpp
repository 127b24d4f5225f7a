// SPDX-License-Identifier: Apache-2.0
// A comparison as a table for people and as JSON.
#ifndef SHARDPLAN_RUNTIME_VERIFY_REPORT_HPP
#define SHARDPLAN_RUNTIME_VERIFY_REPORT_HPP

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/verify/compare.hpp"

namespace shardplan::runtime {

/// One line per tensor under a heading, in aligned columns; of gradients, and of parameters, only the worst ten, worst
/// first, and one line for all of them. Then what else there is to say.
std::string to_table(const comparison& c);

/// [{"name", "shape", "error", "limit", "equal"}], with "note" where there is one. An infinite error is null.
nlohmann::ordered_json to_json(const comparison& c);

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_VERIFY_REPORT_HPP
