// SPDX-License-Identifier: Apache-2.0
// One rank's way through its stages and micro-batches under any legal plan, written once. The layout of its tokens is a
// type (L), and so is whether the residual stream between tensor-parallel regions holds all of them or this tp rank's
// share (Residual).
// Letters: s tokens of a row on this rank, b rows of a micro-batch, n = s * b, H hidden, V' vocabulary rows on this
// rank.
#ifndef SHARDPLAN_RUNTIME_SHARDED_EXECUTOR_HPP
#define SHARDPLAN_RUNTIME_SHARDED_EXECUTOR_HPP

#include "runtime/sharded/ends.hpp"
#include "runtime/sharded/results.hpp"
#include "runtime/sharded/training_state.hpp"

namespace shardplan::runtime {

/// What a model does that a caller may replace: attention across ranks (see planned_attention), how rows meet experts
/// (see planned_experts) and the loss (see vocabulary_cross_entropy). Methods of a caller's own derive from these and
/// name what is different.
struct planned_methods {
  template <class T, class D = cpu_device>
  using attention = planned_attention<T, D>;
  template <class T, class D = cpu_device>
  using experts = planned_experts<T, D>;
  template <class T, class D = cpu_device>
  using loss = vocabulary_cross_entropy<T, D>;
};

/// The methods on a device. Who writes them for the CPU alone names no device.
template <class Methods, class T, class D>
struct methods_on {
  using attention = typename Methods::template attention<T, D>;
  using experts = typename Methods::template experts<T, D>;
  using loss = typename Methods::template loss<T, D>;
};
template <class Methods, class T>
struct methods_on<Methods, T, cpu_device> {
  using attention = typename Methods::template attention<T>;
  using experts = typename Methods::template experts<T>;
  using loss = typename Methods::template loss<T>;
};

/// What the last stage of one rank holds of one micro-batch.
template <Layout L, class T, class D = cpu_device>
struct local_outputs {
  num micro_batch;
  T balance_loss;                                         // of the micro-batch, over all ranks and stages
  sequence<logits, L, buffer_on<D, T>> scores;            // (s, b, V')
  sequence<token_losses, L, buffer_on<D, T>> token_loss;  // (s, b)
};

/// One micro-batch and, per MoE layer, the experts (n, k) to choose in it; empty: as routers say.
template <Layout L, class T>
struct micro_batch {
  local_tokens<L, T> tokens;
  std::vector<std::vector<num>> forced;
};

template <Layout L, class Residual, class T, Communicator C, class Methods, Device D = cpu_device>
class executor {
  using methods = methods_on<Methods, T, D>;
  using stream = hidden<T, Residual, D>;  // the residual stream
  using layer = layer_block<L, Residual, T, typename methods::attention, typename methods::experts, D>;
  using head = head_block<L, Residual, T, typename methods::loss, D>;

 public:
  /// `num_items`: real targets of the global batch.
  executor(const rank_view<C, D>& view, const checkpoint& weights, num num_items)
      : view_(view),
        layer_plans_(plans_in_layers(view.model(), view.plan)),
        parameters_(weights, view),
        num_items_(num_items),
        head_weight_(head_weight(view.model())),
        rotary_(
            make_rotary_frequencies(view.config.rope, view.model().head_dim, view.model().max_position_embeddings)) {}

  /// Runs the micro-batches through this rank's stages. Outputs of each micro-batch, on the last stage; nothing
  /// elsewhere. Nothing that only a backward needs outlives its layer.
  std::vector<local_outputs<L, T, D>> evaluate(const std::vector<micro_batch<L, T>>& batch) {
    std::vector<local_outputs<L, T, D>> outputs;
    for_each_forward(view_.plan, static_cast<num>(batch.size()), view_.at(axis::pp), [&](const pipeline_step& step) {
      const stage_inputs in = inputs_of(batch[static_cast<std::size_t>(step.micro_batch)]);
      flow x = enter(step, in.batch.tokens);
      balance_statistics<T, D> balance = no_balance();
      for_each_layer(step.stage, [&](num number) {
        const parameters_in_use<T, D> w = use_layer(number, phase::forward);
        layer().forward(in_layer(number), x.tokens, in.angles, in.batch.tokens, in.routed(view_, number), {number, w},
                        balancing() ? &balance : nullptr);
      });
      add_balance(x, balance);
      if (head last; is_last(step.stage))
        outputs.push_back(score(last, x, in.batch.tokens, step.micro_batch));
      else
        send_to(step, step.stage + 1, std::move(x), phase::forward);
    });
    return outputs;
  }

  /// Forward and backward in the order of the plan's schedule. Gradients, reduced as the plan says, of what this rank
  /// shards: each parameter's shard over fsdp_cp or efsdp, whatever the zero stage.
  std::vector<local_outputs<L, T, D>> train(const std::vector<micro_batch<L, T>>& batch,
                                            gradient_shards<T, D>& gradients) {
    std::vector<local_outputs<L, T, D>> outputs;
    std::map<std::pair<num, num>, stage_run> running;  // (stage, micro-batch)
    gradient_store<T, D> sums(view_.on);
    gradient_reducer<T, C, D> reducer(view_, gradients);
    for_each_step(view_.plan, static_cast<num>(batch.size()), view_.at(axis::pp), [&](const pipeline_step& step) {
      const auto key = std::pair{step.stage, step.micro_batch};
      if (step.kind == step_kind::forward) {
        stage_run& run =
            running.emplace(key, inputs_of(batch[static_cast<std::size_t>(step.micro_batch)])).first->second;
        const local_tokens<L, T>& tokens = run.in.batch.tokens;
        flow x = enter(step, tokens);
        balance_statistics<T, D> balance = no_balance();
        for_each_layer(step.stage, [&](num number) {
          const parameters_in_use<T, D> w = use_layer(number, phase::forward);
          run.layers.emplace_back().forward(in_layer(number), x.tokens, run.in.angles, tokens,
                                            run.in.routed(view_, number), {number, w},
                                            balancing() ? &balance : nullptr);
        });
        add_balance(x, balance);
        if (is_last(step.stage)) {
          outputs.push_back(score(run.last, x, tokens, step.micro_batch));
          run.balance = std::move(x.balance);
        } else {
          send_to(step, step.stage + 1, std::move(x), phase::forward);
        }
        return;
      }
      backward(step, running.at(key), sums, T{1} / static_cast<T>(batch.size()));
      running.erase(key);
      // Sharded gradients are reduced micro-batch by micro-batch, so that no rank keeps whole ones; others once.
      if (is_sharded(view_.plan.zero, state_kind::gradient)) reducer.reduce(sums, step.stage);
    });
    if (!is_sharded(view_.plan.zero, state_kind::gradient))
      for (num stage = view_.at(axis::pp); stage < num_stages(view_.plan); stage += view_.plan.pp)
        reducer.reduce(sums, stage);
    reducer.finish();
    return outputs;
  }

  /// One optimizer step with the gradients that train() left.
  void step(adamw<T, D>& optimizer, const gradient_shards<T, D>& gradients) {
    optimizer.next();
    parameters_.for_each_shard([&](const parameter& p, std::span<T> values) {
      optimizer.update({p.layer, p.kind}, values, gradients.at({p.layer, p.kind}));
    });
    parameters_.share_shards();
  }
  /// Replaces parameters and moments by those of the newest state below `root`.
  void resume(const std::filesystem::path& root, adamw<T, D>& optimizer) {
    gradient_shards<T, D> read;
    load_state(view_, root, optimizer, [&](const parameter& p, buffer_on<D, T>&& values) {
      read[{p.layer, p.kind}] = std::move(values);
    });
    parameters_.for_each_shard([&](const parameter& p, std::span<T> values) {
      copy_values<T>(view_.on, read.at({p.layer, p.kind}), values);
    });
    parameters_.share_shards();
  }
  /// This rank's shards of all parameters, as gradient_shards has those of gradients.
  gradient_shards<T, D> parameter_shards() {
    gradient_shards<T, D> shards;
    parameters_.for_each_shard([&](const parameter& p, std::span<T> values) {
      shards[{p.layer, p.kind}] = copied<T>(view_.on, values);
    });
    return shards;
  }

 private:
  /// A micro-batch with what all layers of a stage share.
  struct stage_inputs {
    const micro_batch<L, T>& batch;
    sequence<shardplan::rotary_table, L, buffer_on<D, T>> angles;
    buffer_on<D, char> real, counted;  // (n)

    routed_tokens<D> routed(const rank_view<C, D>& view, num layer_number) const {
      if (!is_moe_layer(view.model(), layer_number)) return {};
      if (batch.forced.empty()) return {read_only(real), read_only(counted), {}};
      num moe_layer = 0;
      for (num before = 0; before < layer_number; ++before) moe_layer += is_moe_layer(view.model(), before) ? 1 : 0;
      return {read_only(real), read_only(counted), batch.forced[static_cast<std::size_t>(moe_layer)]};
    }
  };
  struct stage_run {
    stage_run(stage_inputs&& i) : in(std::move(i)) {}  // NOLINT: made where it is kept
    stage_inputs in;
    std::vector<layer> layers;
    head last;
    balance_statistics<T, D> balance;  // of the whole micro-batch, on the last stage
  };
  /// What goes from stage to stage: tokens of the residual stream, or their gradients, and statistics that grow from
  /// the first stage to the last and come back whole.
  struct flow {
    stream tokens;
    balance_statistics<T, D> balance;
  };

  stage_inputs inputs_of(const micro_batch<L, T>& batch) const {
    const num width = view_.model().head_dim;
    auto angles = allocate<T>(view_.on, static_cast<std::size_t>(batch.tokens.at.tokens() * width));
    rotary_table<T>(view_.on, rotary_, batch.tokens.at.data(), angles);
    std::vector<char> real, counted;
    for (num at : batch.tokens.real.data()) real.push_back(at >= 0);
    const std::vector<token_places>& places = batch.tokens.places[static_cast<std::size_t>(view_.at(axis::cp))];
    for (std::size_t i = 0; i < real.size(); ++i) counted.push_back(places[i % places.size()].key[i / places.size()]);
    return {batch,
            {batch.tokens.at, width, std::move(angles)},
            take(view_.on, std::move(real)),
            take(view_.on, std::move(counted))};
  }

  static std::vector<plan_spec> plans_in_layers(const model_spec& m, const plan_spec& plan) {
    std::vector<plan_spec> plans;
    for (num number = 0; number < m.num_hidden_layers && !plan.modules.empty(); ++number)
      plans.push_back(plan_in_layer(plan, number));
    return plans;
  }
  /// What the blocks of that layer know.
  rank_view<C, D> in_layer(num number) const {
    if (layer_plans_.empty()) return view_;
    return {view_.config, layer_plans_[static_cast<std::size_t>(number)], view_.comm, view_.on};
  }

  bool is_last(num stage) const { return stage == num_stages(view_.plan) - 1; }
  template <class F>
  void for_each_layer(num stage, F&& f) const {
    const layer_range layers = stage_layers(view_.model(), view_.plan, stage);
    for (num number = layers.begin; number < layers.end; ++number) f(number);
  }
  parameters_in_use<T, D> use_layer(num number, phase why) const {
    parameters_in_use<T, D> w = parameters_.layer(number);
    view_.comm.label(why, number);
    return w;
  }
  parameters_in_use<T, D> use_beside_layers(std::initializer_list<parameter_kind> kinds, phase why) const {
    parameters_in_use<T, D> w = parameters_.beside_layers(kinds);
    view_.comm.label(why, parameter::no_layer);
    return w;
  }

  /// Is the load-balancing loss of the routers part of the loss?
  bool balancing() const { return view_.config.output_router_logits && num_moe_layers(view_.model()) > 0; }
  balance_statistics<T, D> no_balance() const { return {view_.on, view_.model().num_experts}; }
  /// Adds this stage's statistics, of all its ranks, to those of the stages before.
  void add_balance(flow& x, balance_statistics<T, D>& mine) {
    if (!balancing()) return;
    view_.comm.label(phase::loss, parameter::no_layer);
    view_.comm.all_reduce(view_.group(axis_set(axis::dp_replicate) | axis::fsdp | axis::cp | axis::tp),
                          std::span<T>(mine.values()), reduce_op::sum);
    add<T>(view_.on, x.balance.values(), mine.values());
  }

  /// What a stage works on: embeddings, or what the stage before holds of the same tokens.
  flow enter(const pipeline_step& step, const local_tokens<L, T>& tokens) {
    if (step.stage > 0) return receive_from(step, step.stage - 1, tokens, phase::forward);
    const auto first = [&](const parameters_in_use<T, D>& w) {
      return flow{embed<L, Residual>(view_, tokens, layer_state<T, D>{parameter::no_layer, w}), no_balance()};
    };
    return tokens.ids ? first(use_beside_layers({parameter_kind::embed_tokens}, phase::forward)) : first({});
  }

  local_outputs<L, T, D> score(head& last, const flow& x, const local_tokens<L, T>& tokens, num micro_batch) {
    const parameters_in_use<T, D> w = use_beside_layers({parameter_kind::final_norm, head_weight_}, phase::loss);
    auto loss = last.forward(view_, x.tokens, tokens, {parameter::no_layer, w}, head_weight_, num_items_);
    return {micro_batch, balancing() ? x.balance.loss(view_.on) : T{0}, last.scores(view_.on), std::move(loss)};
  }

  /// `share` of the micro-batch in the mean of load-balancing losses.
  void backward(const pipeline_step& step, stage_run& run, gradient_store<T, D>& sums, T share) {
    const local_tokens<L, T>& tokens = run.in.batch.tokens;
    flow d = [&] {
      if (!is_last(step.stage)) return receive_from(step, step.stage + 1, tokens, phase::backward);
      const parameters_in_use<T, D> w = use_beside_layers({parameter_kind::final_norm, head_weight_}, phase::backward);
      return flow{run.last.backward(view_, tokens, {parameter::no_layer, w, &sums}, head_weight_, num_items_),
                  std::move(run.balance)};
    }();
    // Without any target there is no loss, and the routers have no share in it.
    const T balance_scale = num_items_ > 0 ? static_cast<T>(view_.config.router_aux_loss_coef) * share : T{0};
    const layer_range layers = stage_layers(view_.model(), view_.plan, step.stage);
    for (num number = layers.end; number-- > layers.begin;) {
      const parameters_in_use<T, D> w = use_layer(number, phase::backward);
      run.layers.back().backward(in_layer(number), d.tokens, run.in.angles, tokens, {number, w, &sums},
                                 balancing() ? &d.balance : nullptr, balance_scale);
      run.layers.pop_back();
    }
    if (step.stage > 0) {
      send_to(step, step.stage - 1, std::move(d), phase::backward);
    } else if (tokens.ids) {
      const parameters_in_use<T, D> w = use_beside_layers({parameter_kind::embed_tokens}, phase::backward);
      embed_backward<L, Residual>(view_, d.tokens, tokens, layer_state<T, D>{parameter::no_layer, w, &sums});
    }
  }

  // Neighbouring stages are on neighbouring ranks, or on this one.
  flow receive_from(const pipeline_step& step, num other, const local_tokens<L, T>& tokens, phase why) {
    const auto pp = view_.group(axis::pp);
    if (stage_owner(view_.plan, other) == pp.index()) {
      auto made = here_.extract({why, step.stage, step.micro_batch});
      return std::move(made.mapped());
    }
    const num split = residual_traits<Residual>::split ? view_.plan.tp : 1;
    flow x{unwritten<T, Residual>(view_.on, tokens.at.length() / split, tokens.at.rows(),  // what the other stage holds
                                  view_.model().hidden_size),
           no_balance()};
    view_.comm.label(why, stage_layers(view_.model(), view_.plan, step.stage).begin);
    view_.comm.receive(pp, std::span<T>(x.tokens.data()), stage_owner(view_.plan, other));
    if (balancing()) view_.comm.receive(pp, std::span<T>(x.balance.values()), stage_owner(view_.plan, other));
    return x;
  }
  void send_to(const pipeline_step& step, num other, flow&& x, phase why) {
    const auto pp = view_.group(axis::pp);
    if (stage_owner(view_.plan, other) == pp.index()) {
      here_.emplace(std::tuple{why, other, step.micro_batch}, std::move(x));
      return;
    }
    view_.comm.label(why, stage_layers(view_.model(), view_.plan, other).begin);
    view_.comm.send(pp, read_only(x.tokens.data()), stage_owner(view_.plan, other));
    if (balancing()) view_.comm.send(pp, read_only(x.balance.values()), stage_owner(view_.plan, other));
  }

  rank_view<C, D> view_;
  std::vector<plan_spec> layer_plans_;  // by layer, where a module's style is overridden
  parameter_store<T, C, D> parameters_;
  num num_items_;
  parameter_kind head_weight_;
  rotary_frequencies rotary_;
  std::map<std::tuple<phase, num, num>, flow> here_;  // (direction, to stage, micro-batch), where this rank holds both
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_EXECUTOR_HPP
