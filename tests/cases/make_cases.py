#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes cases.hpp and static_verdicts.cpp beside itself from a list of small cases, one JSON object per line.

Each case is a bug that was reported publicly for some other system, reduced to at most 8 ranks: `id`, where it was
reported (`repo`, `number`), families of rules (`rules`), `verdict_class`, and the dims and degrees of `minimal_case`.
Only these go into the table. Usage: make_cases.py CASES.jsonl
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent

# What the small case alone does not say.
CHANGES = {
    "PB099": {"dp": 2, "dp_replicate": 2},  # hybrid sharding: two replicas of two shards
    "PB110": {"seq": 5},                    # padded to 8
}

# PAD: the length that padded() reports, or the flag without which the plan is refused.
PADDED = {"PB015": 8, "PB017": 16, "PB018": 8, "PB020": 8, "PB021": 16, "PB023": 10, "PB024": 8, "PB110": 8}
OPTIONS = {"PB057": "expert_pad", "PB079": "vocab_pad", "PB080": "vocab_pad", "PB082": "vocab_pad",
           "PB083": "vocab_pad"}

METHODS = {"zigzag": "/ring/zigzag", "contig": "/ring", "ulysses": "/ulysses"}
DEFAULT_MODEL = {"q_heads": 4, "kv_heads": 2, "layers": 2, "vocab": 16, "experts": 4, "moe_ffn": 8, "tied": 0}


def plan_of(c):
    """The plan's text."""
    axes = []
    if c["pp"] > 1 or c.get("stage_layers"):
        text = f"pp={c['pp']}"
        schedule = f"interleaved{c['vp']}" if c["vp"] > 1 else c.get("sched")
        text += f"/{schedule}" if schedule else ""
        if c.get("stage_layers"):
            text += "/layers:" + "+".join(map(str, c["stage_layers"]))
        axes.append(text)
    if c.get("dp_replicate", 1) > 1:
        axes.append(f"dp_replicate={c['dp_replicate']}")
    if c["dp"] > 1:
        axes.append(f"fsdp={c['dp']}")
    if c["cp"] > 1:
        method = METHODS[c["cp_kind"]]
        axes.append(f"cp={c['cp']}{method}" + ("_documents" if c.get("docs") and c["cp_kind"] == "zigzag" else ""))
    if c["tp"] > 1:
        axes.append(f"tp={c['tp']}" + ("/sp" if c["sp"] else ""))
    axes += [f"{name}={c[name]}" for name in ("ep", "etp") if c[name] > 1]
    if c.get("kv_repl"):
        axes.append("kv_replicate")
    return ",".join(axes) or "tp=1"


def model_of(c):
    """The changes to the model that most cases share."""
    assert (c["hidden"], c["head_dim"]) == (16, 8) and c["topk"] == (2 if c["experts"] else 0)
    changes = [f".{name}={c[name]}" for name in DEFAULT_MODEL
               if c.get(name, 0) != DEFAULT_MODEL[name] and not (name == "moe_ffn" and c["experts"] == 0)]
    return f"small({{{', '.join(changes)}}})" if changes else "small({})"


def batch_of(c):
    rows = c["mbs"] * c["micro"] * c["dp"] * c.get("dp_replicate", 1)
    documents = c.get("docs_real") or c.get("docs") or []
    length = sum(documents) or c["seq"]
    return f"batch({length}, {rows}, {c['micro']}" + "".join(f", {d}" for d in documents) + ")"


HEADER = """// SPDX-License-Identifier: Apache-2.0
// Bugs that were reported publicly for other systems, as small cases: what a correct planner says of each. Written by
// make_cases.py.
#ifndef SHARDPLAN_TESTS_CASES_CASES_HPP
#define SHARDPLAN_TESTS_CASES_CASES_HPP

#include <cstddef>  // size_t
#include <shardplan/shardplan.hpp>
#include <string_view>  // string_view

namespace shardplan::cases {

using namespace literals;

enum class verdict {
  illegal,  ///< refused
  legal,    ///< accepted
  pad,      ///< accepted, and padding reported; or refused, and the option named that pads
  trap      ///< accepted; whoever carries it out is easily wrong without a word
};

/// Families of rules, by code: W mesh, H heads and widths, S sequence and padding (S3 layout, S4 shifted labels, S5
/// packed documents), P pipeline, V vocabulary, E experts, G gradients and loss, C checkpoints, M the rules themselves.
struct public_case {
  std::string_view id, source;  ///< `source` is repository#number
  std::string_view families;
  verdict says;
  model_spec model;
  batch_spec batch;
  plan_spec plan;
  num world;
  num padded;               ///< length of a padded row; 0: no padding
  std::string_view option;  ///< the flag of the plan that pads; empty: none is needed

  /// The question that the case asks.
  constexpr question ask() const {
    question q;
    q.model = model, q.plan = plan, q.batch = batch, q.world = world;
    return q;
  }
  /// The plan with the option that pads.
  constexpr plan_spec padded_plan() const {
    plan_spec p = plan;
    p.vocab_pad = p.vocab_pad || option == "vocab_pad";
    p.expert_pad = p.expert_pad || option == "expert_pad";
    return p;
  }
};

struct model_changes {
  num q_heads = 4, kv_heads = 2, layers = 2, vocab = 16, experts = 4, moe_ffn = 8, tied = 0;
};
constexpr model_spec small(const model_changes& c) {
  model_spec m;
  m.num_hidden_layers = c.layers, m.hidden_size = 16, m.vocab_size = c.vocab;
  m.num_attention_heads = c.q_heads, m.num_key_value_heads = c.kv_heads, m.head_dim = 8;
  m.intermediate_size = 24, m.moe_intermediate_size = c.moe_ffn;
  m.num_experts = c.experts, m.num_experts_per_tok = c.experts > 0 ? 2 : 0;
  m.max_position_embeddings = 256, m.tie_word_embeddings = c.tied != 0;
  return m;
}

template <class... Documents>
constexpr batch_spec batch(num length, num rows, num micro_batches, Documents... documents) {
  batch_spec b;
  b.length = length, b.rows = rows, b.micro_batches = micro_batches;
  (b.documents.push_back(documents), ...);
  return b;
}

// clang-format off
inline constexpr public_case all[] = {
%s
};
// clang-format on
inline constexpr std::size_t num_cases = sizeof(all) / sizeof(all[0]);

/// Place of a case in the table; past its end when there is none.
constexpr std::size_t index_of(std::string_view id) {
  std::size_t i = 0;
  while (i < num_cases && all[i].id != id) ++i;
  return i;
}

// The same as types.
template <std::size_t Index>
struct model_at {
  static constexpr model_spec spec = all[Index].model;
};
template <std::size_t Index>
struct batch_at {
  static constexpr batch_spec spec = all[Index].batch;
};
template <std::size_t Index>
struct plan_at {
  static constexpr plan_spec spec = all[Index].plan;
};
template <std::size_t Index>
struct padded_plan_at {
  static constexpr plan_spec spec = all[Index].padded_plan();
};

}  // namespace shardplan::cases
#endif  // SHARDPLAN_TESTS_CASES_CASES_HPP
"""

VERDICTS = """// SPDX-License-Identifier: Apache-2.0
// The verdict of every case, asked of types: compiling this file is the test. Written by make_cases.py.
#include "cases.hpp"

namespace shardplan::cases {
namespace {

template <std::size_t Index, class Plan = plan_at<Index>>
concept accepted = LegalPlan<Plan, model_at<Index>, batch_at<Index>, on_ranks<all[Index].world>>;

/// Does not compile when a rule is broken.
template <std::size_t Index, class Plan = padded_plan_at<Index>>
inline constexpr num ranks_of = checked<Plan, model_at<Index>, batch_at<Index>, on_ranks<all[Index].world>>::world_size;

%s

}  // namespace
}  // namespace shardplan::cases
"""


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    rows, asserts = [], []
    for index, line in enumerate(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()):
        case = json.loads(line)
        c = {**case["minimal_case"], **CHANGES.get(case["id"], {})}
        name, verdict = case["id"], case["verdict_class"].lower()
        option = OPTIONS.get(name, "")
        rows.append(f'    {{"{name}", "{case["repo"]}#{case["number"]}", "{" ".join(case["rules"])}", verdict::{verdict},\n'
                    f'     {model_of(c)}, {batch_of(c)}, "{plan_of(c)}"_plan, {c["world"]}, {PADDED.get(name, 0)},'
                    f' "{option}"}},')
        if verdict == "illegal" or option:
            asserts.append(f'static_assert(!accepted<{index}>, "{name} must be refused");')
        if verdict != "illegal":
            asserts.append(f'static_assert(ranks_of<{index}> == {c["world"]}, "{name} must be accepted");')
    (HERE / "cases.hpp").write_text(HEADER % "\n".join(rows), encoding="utf-8")
    (HERE / "static_verdicts.cpp").write_text(VERDICTS % "\n".join(asserts), encoding="utf-8")
    print(f"{len(rows)} cases")


if __name__ == "__main__":
    main()
