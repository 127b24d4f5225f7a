// SPDX-License-Identifier: Apache-2.0
// The parts of an explanation of a plan, each as text and as JSON.
#ifndef SHARDPLAN_RUNTIME_CLI_EXPLANATION_HPP
#define SHARDPLAN_RUNTIME_CLI_EXPLANATION_HPP

#include <nlohmann/json.hpp>
#include <shardplan/question.hpp>
#include <string>

#include "runtime/cli/command.hpp"

namespace shardplan::cli {

struct section {
  json document;
  std::string text;
};

/// Both views of the world: axes, degrees, and how far neighbours on an axis are apart.
section explain_meshes(const plan_spec& plan);
/// Which layers every stage holds, and which pp coordinate the stage.
section explain_stages(const model_spec& model, const plan_spec& plan);
/// Which tokens of a row every cp coordinate holds, in order; at most `most` coordinates.
section explain_tokens(const plan_spec& plan, const batch_spec& batch, num most = 16);

/// Where a rank stands: its coordinates, its data index, its groups.
section explain_rank(const model_spec& model, const plan_spec& plan, num rank);
/// The part of every parameter that a rank computes with, and how much of its state it keeps.
section explain_parameters(const model_spec& model, const plan_spec& plan, num rank);

/// What a rank stores between steps, with Adam, by zero stage. Parameters and gradients are of `type`.
section explain_memory(const model_spec& model, const plan_spec& plan, num rank, dtype type);
/// What a rank sends in one step of training, by phase, operation and axes; `q.batch` says how many rows of which
/// length. Experts are taken to be chosen equally often.
section explain_collectives(const question& q, num rank, dtype type);

}  // namespace shardplan::cli
#endif  // SHARDPLAN_RUNTIME_CLI_EXPLANATION_HPP
