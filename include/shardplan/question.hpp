// SPDX-License-Identifier: Apache-2.0
// What is asked of the rules: a model, a plan, a batch, and on what. Below it the operands that rules name, each with
// the one expression that computes it.
#ifndef SHARDPLAN_QUESTION_HPP
#define SHARDPLAN_QUESTION_HPP

#include <shardplan/facts.hpp>
#include <shardplan/plan.hpp>
#include <shardplan/plan_parse.hpp>

namespace shardplan {

enum class engine_kind : unsigned char { none, threads, mpi, nccl };

constexpr text_view name_of(engine_kind e) {
  constexpr text_view names[] = {"none", "threads", "mpi", "nccl"};
  return names[static_cast<std::size_t>(e)];
}

/// Is this plan legal for this model? What is not said (0, none) is not asked about.
struct question {
  model_spec model{};
  plan_spec plan{};
  batch_spec batch{};
  num world = 0;                           ///< ranks that there are; 0: as many as the plan needs
  engine_kind engine = engine_kind::none;  ///< none: what every engine can do
  num gpus_per_node = 0;                   ///< 0: not said

  friend constexpr bool operator==(const question&, const question&) = default;
};

/// Whether any layer holds experts, and whether any is dense: asked of every candidate plan, so they stop early.
constexpr bool has_moe_layers(const model_spec& m) {
  for (num layer = 0; layer < m.num_hidden_layers; ++layer)
    if (is_moe_layer(m, layer)) return true;
  return false;
}
constexpr bool has_dense_layers(const model_spec& m) {
  if (m.num_experts > 0 && m.decoder_sparse_step == 1 && m.mlp_only_layers == layer_set{}) return false;
  for (num layer = 0; layer < m.num_hidden_layers; ++layer)
    if (!is_moe_layer(m, layer)) return true;
  return false;
}

/// A row's real tokens: the documents' when they are listed; -1 when one of these is not a length, so that the sum of
/// what no row can hold is not formed.
constexpr num real_length(const batch_spec& b) {
  if (b.documents.empty()) return b.length;
  num sum = 0;
  for (num length : b.documents) {
    if (length < 0 || length > max_degree) return -1;
    sum += length;
  }
  return sum;
}

/// The longest run of positions: of the longest document, or the row.
constexpr num longest_document(const batch_spec& b) {
  num longest = b.documents.empty() ? b.length : 0;
  for (num length : b.documents) longest = length > longest ? length : longest;
  return longest;
}

constexpr num shortest_document(const batch_spec& b) {
  if (b.documents.empty()) return b.length;
  num shortest = b.documents[0];
  for (num length : b.documents) shortest = length < shortest ? length : shortest;
  return shortest;
}

/// Fewest layers of a listed stage that is neither the first nor the last; 1 when there is none.
constexpr num emptiest_inner_stage(const plan_spec& p) {
  num fewest = p.stages.size() < 3 ? 1 : p.stages[1];
  for (std::size_t s = 1; s + 1 < p.stages.size(); ++s) fewest = p.stages[s] < fewest ? p.stages[s] : fewest;
  return fewest;
}

/// Sum of the layers of explicit stages; -1 when one of them is not a possible number.
constexpr num sum_of_stages(const plan_spec& p) {
  num sum = 0;
  for (num layers : p.stages) {
    if (layers < 0 || layers > max_degree) return -1;
    sum += layers;
  }
  return sum;
}

/// Layers of `stages` stages as even as possible, the deeper ones shorter; empty when they do not fit a plan's list.
/// post: the result adds up to `layers`, and its counts differ by 1 at most
constexpr stage_layer_counts nearest_even_stages(num layers, num stages) {
  stage_layer_counts out;
  if (stages < 1 || stages > static_cast<num>(stage_layer_counts::capacity())) return out;
  for (num s = 0; s < stages; ++s) out.push_back(layers / stages + (s < layers % stages ? 1 : 0));
  return out;
}

// What is asked about modules, whose styles a plan may override layer by layer.

/// Over how many ranks the heads of a layer are cut.
struct attention_cut {
  num tensor = 1, ulysses = 1;
};
constexpr attention_cut attention_cut_of(const plan_spec& p, num layer) {
  return {tensor_degree(p, parameter_kind::q_proj, layer), ulysses_degree(p, method_in_layer(p, layer))};
}
/// Can `heads` be given whole to so many ranks, equally many each, or `copies` of a head to several?
constexpr bool divides_heads(num heads, num ranks, bool copies) {
  return heads >= 1 && ranks >= 1 && (heads % ranks == 0 || (copies && ranks % heads == 0));
}
/// Which heads a rule is about.
enum class cut_heads : unsigned char { queries, key_values, traded_key_values };
constexpr bool divides_heads(const question& q, attention_cut cut, cut_heads what) {
  const num both = checked_product(cut.tensor, cut.ulysses);
  if (what == cut_heads::queries) return divides_heads(q.model.num_attention_heads, both, false);
  return divides_heads(q.model.num_key_value_heads, what == cut_heads::key_values ? cut.tensor : both,
                       q.plan.kv_replicate);
}
/// The cut of the first layer that cannot cut its heads so; of the first layer when all can.
constexpr attention_cut strictest_cut(const question& q, cut_heads what) {
  const attention_cut first = attention_cut_of(q.plan, 0);
  if (q.plan.modules.empty()) return first;
  for (num layer = 0; layer < q.model.num_hidden_layers && layer < layer_set::capacity; ++layer)
    if (const attention_cut cut = attention_cut_of(q.plan, layer); !divides_heads(q, cut, what)) return cut;
  return first;
}
/// Of all layers: ranks that pass or gather keys and values.
constexpr num largest_ring_degree(const question& q) {
  if (q.plan.modules.empty()) return ring_degree(q.plan);
  num largest = 0;
  for (num layer = 0; layer < q.model.num_hidden_layers && layer < layer_set::capacity; ++layer) {
    const num ring = ring_degree(q.plan, method_in_layer(q.plan, layer));
    largest = ring > largest ? ring : largest;
  }
  return largest;
}
/// Is there a layer, with experts or dense as asked, whose feed-forward modules are cut?
constexpr bool any_feed_forward_is_cut(const question& q, bool experts) {
  if (q.plan.modules.empty()) return true;
  const parameter_kind kind = experts ? parameter_kind::experts_gate_up : parameter_kind::mlp_gate;
  for (num layer = 0; layer < q.model.num_hidden_layers && layer < layer_set::capacity; ++layer)
    if (is_moe_layer(q.model, layer) == experts && is_cut(q.plan, kind, layer)) return true;
  return false;
}
constexpr bool any_vocabulary_is_cut(const question& q) {
  return is_cut(q.plan, parameter_kind::embed_tokens) || is_cut(q.plan, head_weight(q.model));
}
/// Overrides that name nothing which the model has.
constexpr num overrides_of_nothing(const question& q) {
  num count = 0;
  for (const module_override& o : q.plan.modules) {
    bool found = o.names(bit_of(parameter_kind::embed_tokens) | bit_of(head_weight(q.model)), o.layer);
    for (num layer = 0; layer < q.model.num_hidden_layers && layer < layer_set::capacity; ++layer)
      found = found || o.names(detail::attention_bits | self_attn_bit |
                                   (is_moe_layer(q.model, layer) ? detail::expert_bits : detail::mlp_bits),
                               layer);
    count += found ? 0 : 1;
  }
  return count;
}
/// Blocks (attention, feed-forward, experts of a layer) of which some modules are cut and others are whole.
constexpr num blocks_cut_in_part(const question& q) {
  if (q.plan.modules.empty()) return 0;
  num count = 0;
  const auto mixed = [&](module_set block, num layer) {
    num cut = 0, whole = 0;
    detail::for_each_kind(block, [&](parameter_kind k) { ++(is_cut(q.plan, k, layer) ? cut : whole); });
    return cut > 0 && whole > 0;
  };
  for (num layer = 0; layer < q.model.num_hidden_layers && layer < layer_set::capacity; ++layer) {
    count += mixed(detail::attention_bits, layer) ? 1 : 0;
    count += mixed(is_moe_layer(q.model, layer) ? detail::expert_bits : detail::mlp_bits, layer) ? 1 : 0;
  }
  return count;
}

/// Facts: the types that a compiler prints, and the operands that compute them.
namespace fact {

// model
SHARDPLAN_OPERAND(num_layers, q.model.num_hidden_layers);
SHARDPLAN_OPERAND(num_moe_layers, ::shardplan::num_moe_layers(q.model));
SHARDPLAN_OPERAND(hidden_size, q.model.hidden_size);
SHARDPLAN_OPERAND(num_heads, q.model.num_attention_heads);
SHARDPLAN_OPERAND(num_kv_heads, q.model.num_key_value_heads);
SHARDPLAN_OPERAND(head_dim, q.model.head_dim);
SHARDPLAN_OPERAND(intermediate_size, q.model.intermediate_size);
SHARDPLAN_OPERAND(moe_intermediate_size, q.model.moe_intermediate_size);
SHARDPLAN_OPERAND(num_experts, q.model.num_experts);
SHARDPLAN_OPERAND(num_experts_per_token, q.model.num_experts_per_tok);
SHARDPLAN_OPERAND(vocab_size, q.model.vocab_size);
SHARDPLAN_OPERAND(max_positions, q.model.max_position_embeddings);
SHARDPLAN_OPERAND(sparse_step, q.model.decoder_sparse_step);
SHARDPLAN_OPERAND(sliding_window, q.model.sliding_window);

// degrees
SHARDPLAN_OPERAND(pipeline_degree, q.plan.pp);
SHARDPLAN_OPERAND(replicate_degree, q.plan.dp_replicate);
SHARDPLAN_OPERAND(shard_degree, q.plan.fsdp);
SHARDPLAN_OPERAND(context_degree, q.plan.cp);
SHARDPLAN_OPERAND(tensor_degree, q.plan.tp);
SHARDPLAN_OPERAND(expert_degree, q.plan.ep);
SHARDPLAN_OPERAND(expert_tensor_degree, q.plan.etp);
SHARDPLAN_OPERAND(ulysses_degree, ::shardplan::ulysses_degree(q.plan));
SHARDPLAN_OPERAND(ring_degree, ::shardplan::ring_degree(q.plan));

// degrees over which modules are cut, 1 where overrides leave them whole
namespace of_queries {
SHARDPLAN_OPERAND(tensor_degree, strictest_cut(q, cut_heads::queries).tensor);
SHARDPLAN_OPERAND(ulysses_degree, strictest_cut(q, cut_heads::queries).ulysses);
}  // namespace of_queries
namespace of_key_values {
SHARDPLAN_OPERAND(tensor_degree, strictest_cut(q, cut_heads::key_values).tensor);
}  // namespace of_key_values
namespace of_traded_key_values {
SHARDPLAN_OPERAND(tensor_degree, strictest_cut(q, cut_heads::traded_key_values).tensor);
SHARDPLAN_OPERAND(ulysses_degree, strictest_cut(q, cut_heads::traded_key_values).ulysses);
}  // namespace of_traded_key_values
namespace of_attention {
SHARDPLAN_OPERAND(ring_degree, largest_ring_degree(q));
}  // namespace of_attention
namespace of_dense {
SHARDPLAN_OPERAND(tensor_degree, any_feed_forward_is_cut(q, false) ? q.plan.tp : 1);
}  // namespace of_dense
namespace of_vocabulary {
SHARDPLAN_OPERAND(tensor_degree, any_vocabulary_is_cut(q) ? q.plan.tp : 1);
}  // namespace of_vocabulary
namespace of_experts {
SHARDPLAN_OPERAND(expert_degree, any_feed_forward_is_cut(q, true) ? q.plan.ep : 1);
SHARDPLAN_OPERAND(expert_tensor_degree, any_feed_forward_is_cut(q, true) ? q.plan.etp : 1);
}  // namespace of_experts

// options
SHARDPLAN_OPERAND(overrides_of_nothing, ::shardplan::overrides_of_nothing(q));
SHARDPLAN_OPERAND(blocks_cut_in_part, ::shardplan::blocks_cut_in_part(q));
SHARDPLAN_OPERAND(kv_replicate, q.plan.kv_replicate ? 1 : 0);
SHARDPLAN_OPERAND(vocab_pad, q.plan.vocab_pad ? 1 : 0);
SHARDPLAN_OPERAND(expert_pad, q.plan.expert_pad ? 1 : 0);
SHARDPLAN_OPERAND(virtual_stages, q.plan.virtual_stages);
SHARDPLAN_OPERAND(interleaved, q.plan.schedule == schedule_kind::interleaved ? 1 : 0);
SHARDPLAN_OPERAND(listed_stages, static_cast<num>(q.plan.stages.size()));
SHARDPLAN_OPERAND(emptiest_inner_stage, ::shardplan::emptiest_inner_stage(q.plan));
SHARDPLAN_OPERAND(listed_layers, sum_of_stages(q.plan));

// batch and world
SHARDPLAN_OPERAND(length, q.batch.length);
SHARDPLAN_OPERAND(document_tokens, real_length(q.batch));
SHARDPLAN_OPERAND(longest_document, ::shardplan::longest_document(q.batch));
SHARDPLAN_OPERAND(shortest_document, ::shardplan::shortest_document(q.batch));
SHARDPLAN_OPERAND(rows, q.batch.rows);
SHARDPLAN_OPERAND(given_micro_batches, q.batch.micro_batches);
SHARDPLAN_OPERAND(num_micro_batches, ::shardplan::micro_batches(q.plan, q.batch));
SHARDPLAN_OPERAND(world, q.world);
SHARDPLAN_OPERAND(plan_world, world_size(q.plan));
SHARDPLAN_OPERAND(gpus_per_node, q.gpus_per_node);

}  // namespace fact
}  // namespace shardplan
#endif  // SHARDPLAN_QUESTION_HPP
