// SPDX-License-Identifier: Apache-2.0
// Everything of the library that needs nothing but light standard headers.
#ifndef SHARDPLAN_SHARDPLAN_HPP
#define SHARDPLAN_SHARDPLAN_HPP

// vocabulary
#include <shardplan/axes.hpp>
#include <shardplan/batch.hpp>
#include <shardplan/facts.hpp>
#include <shardplan/layout.hpp>
#include <shardplan/ledger.hpp>
#include <shardplan/meta.hpp>
#include <shardplan/methods.hpp>
#include <shardplan/model.hpp>
#include <shardplan/models.hpp>
#include <shardplan/region.hpp>
#include <shardplan/sequence.hpp>
#include <shardplan/version.hpp>

// algebra
#include <shardplan/collectives.hpp>
#include <shardplan/layer_collectives.hpp>
#include <shardplan/mesh.hpp>
#include <shardplan/mesh_algebra.hpp>
#include <shardplan/mesh_view.hpp>
#include <shardplan/module_plan.hpp>
#include <shardplan/ownership.hpp>
#include <shardplan/parameters.hpp>
#include <shardplan/pipeline.hpp>
#include <shardplan/plan.hpp>
#include <shardplan/plan_parse.hpp>
#include <shardplan/plan_text.hpp>
#include <shardplan/policies.hpp>
#include <shardplan/reduction.hpp>
#include <shardplan/run_shape.hpp>

// rules
#include <shardplan/check.hpp>
#include <shardplan/nearest.hpp>
#include <shardplan/question.hpp>
#include <shardplan/rules.hpp>

#endif  // SHARDPLAN_SHARDPLAN_HPP
