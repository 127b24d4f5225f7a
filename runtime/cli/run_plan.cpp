// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/run_plan.hpp"

#include <fmt/format.h>

#include <shardplan/check.hpp>
#include <string>

#include "runtime/error.hpp"

namespace shardplan::runtime {

void require_legal(const plan_task& task, engine_kind engine) {
  const model_spec& model = task.weights.config().spec;
  validate(task.rows, model);
  question q;
  q.model = model;
  q.plan = task.plan;
  q.batch.length = task.rows.length;
  q.batch.rows = task.rows.rows;
  q.batch.micro_batches = task.options.micro_batches;
  q.engine = engine;
  std::string broken;
  check(q, [&](const violation& v) {
    broken += fmt::format("{}{}: {}", broken.empty() ? "" : "; ", v.rule, v.sentence);
    for (const operand_value& o : v.operands) broken += fmt::format(", {}={}", o.name, o.value);
  });
  if (!broken.empty()) throw plan_error(broken);
}

}  // namespace shardplan::runtime
