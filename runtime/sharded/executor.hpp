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
  using A = accumulated<T>;
  num number;                                             // of the micro-batch
  A balance_loss;                                         // of the micro-batch, over all ranks and stages
  sequence<logits, L, buffer_on<D, T>> scores;            // (s, b, V')
  sequence<token_losses, L, buffer_on<D, A>> token_loss;  // (s, b)
};

template <Layout L, class Residual, class T, Communicator C, class Methods, Device D = cpu_device>
class executor {
  using A = accumulated<T>;
  using gradients_of_parts = gradient_store<A, D>;
  using batch_here = micro_batch<L, T, D>;
  using methods = methods_on<Methods, T, D>;
  using stream = hidden<T, Residual, D>;  // the residual stream
  using layer = layer_block<L, Residual, T, typename methods::attention, typename methods::experts, D>;
  using head = head_block<L, Residual, T, typename methods::loss, D>;

 public:
  /// `num_items`: real targets of the global batch.
  executor(const rank_view<C, D>& view, const checkpoint& weights, num num_items)
      : executor(view, parts_of<T>(weights, view.on), num_items) {}
  /// The same with weights from elsewhere: see parameter_store.
  template <class Make>
  executor(const rank_view<C, D>& view, const Make& make, num num_items)
      : view_(view),
        layer_plans_(plans_in_layers(view.model(), view.plan)),
        parameters_(view, make),
        num_items_(num_items),
        head_weight_(head_weight(view.model())) {
    rotary_frequencies f =
        make_rotary_frequencies(view.config.rope, view.model().head_dim, view.model().max_position_embeddings);
    rotary_scale_ = f.scale;
    rotary_inverse_ = upload<double>(view.on, read_only(f.inverse));
  }

  /// Runs the micro-batches through this rank's stages. Outputs of each micro-batch, on the last stage; nothing
  /// elsewhere. Nothing that only a backward needs outlives its layer.
  std::vector<local_outputs<L, T, D>> evaluate(const std::vector<batch_here>& batch) {
    std::vector<local_outputs<L, T, D>> outputs;
    for_each_forward(view_.plan, static_cast<num>(batch.size()), view_.at(axis::pp), [&](const pipeline_step& step) {
      const stage_inputs in = inputs_of(batch[static_cast<std::size_t>(step.micro_batch)]);
      flow x = enter(step, in.batch);
      balance_statistics<T, D> balance = no_balance();
      for_each_layer(step.stage, phase::forward, [&](num number, const parameters_in_use<T, D>& w) {
        layer().forward(in_layer(number), x.tokens, in.angles, in.batch.places, in.batch.routed(view_.model(), number),
                        {number, w}, balancing() ? &balance : nullptr);
      });
      add_balance(x, balance);
      if (head last; is_last(step.stage))
        outputs.push_back(score(std::move(last), x, in.batch, step.micro_batch));
      else
        send_to(step, step.stage + 1, std::move(x), phase::forward);
    });
    return outputs;
  }

  /// Forward and backward in the order of the plan's schedule. Gradients, reduced as the plan says, of what this rank
  /// shards: each parameter's shard over fsdp_cp or efsdp, whatever the zero stage.
  std::vector<local_outputs<L, T, D>> train(const std::vector<batch_here>& batch, gradient_shards<A, D>& gradients) {
    std::vector<local_outputs<L, T, D>> outputs;
    std::map<std::pair<num, num>, stage_run> running;  // (stage, micro-batch)
    gradients_of_parts sums(view_.on);
    gradient_reducer<A, C, D> reducer(view_, gradients);
    for_each_step(view_.plan, static_cast<num>(batch.size()), view_.at(axis::pp), [&](const pipeline_step& step) {
      const auto key = std::pair{step.stage, step.micro_batch};
      if (step.kind == step_kind::forward) {
        stage_run& run =
            running.emplace(key, inputs_of(batch[static_cast<std::size_t>(step.micro_batch)])).first->second;
        const batch_here& tokens = run.in.batch;
        flow x = enter(step, tokens);
        balance_statistics<T, D> balance = no_balance();
        for_each_layer(step.stage, phase::forward, [&](num number, const parameters_in_use<T, D>& w) {
          run.layers.emplace_back().forward(in_layer(number), x.tokens, run.in.angles, tokens.places,
                                            tokens.routed(view_.model(), number), {number, w},
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
      backward(step, running.at(key), sums, A{1} / static_cast<A>(batch.size()));
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
  void step(adamw<T, D>& optimizer, const gradient_shards<A, D>& gradients) {
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
    const batch_here& batch;
    sequence<shardplan::rotary_table, L, buffer_on<D, A>> angles;
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

  stage_inputs inputs_of(const batch_here& batch) const {
    const num width = view_.model().head_dim;
    auto angles = allocate<A>(view_.on, static_cast<std::size_t>(batch.at.tokens() * width));
    rotary_table<A>(view_.on, rotary_inverse_, rotary_scale_, batch.at.data(), angles);
    return {batch, {batch.at, width, std::move(angles)}};
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
  /// f(layer, its parameters), first layer first; in a backward last layer first. While f computes, the parameters of
  /// the layer after are on their way, where they are sharded.
  template <class F>
  void for_each_layer(num stage, phase why, F&& f) const {
    const layer_range layers = stage_layers(view_.model(), view_.plan, stage);
    const num count = layers.end - layers.begin;
    const auto nth = [&](num i) { return why == phase::backward ? layers.end - 1 - i : layers.begin + i; };
    if (count == 0) return;
    auto next = parameters_.begin_layer(nth(0));
    for (num i = 0; i < count; ++i) {
      const parameters_in_use<T, D> w = next.arrive();
      next = i + 1 < count ? parameters_.begin_layer(nth(i + 1)) : decltype(next)();
      view_.comm.label(why, nth(i));
      f(nth(i), w);
    }
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
                          std::span<A>(mine.values()), reduce_op::sum);
    add<A>(view_.on, x.balance.values(), mine.values());
  }

  /// What a stage works on: embeddings, or what the stage before holds of the same tokens.
  flow enter(const pipeline_step& step, const batch_here& tokens) {
    if (step.stage > 0) return receive_from(step, step.stage - 1, tokens, phase::forward);
    const auto first = [&](const parameters_in_use<T, D>& w) {
      return flow{embed<L, Residual>(view_, tokens, layer_state<T, D>{parameter::no_layer, w}), no_balance()};
    };
    return tokens.ids ? first(use_beside_layers({parameter_kind::embed_tokens}, phase::forward)) : first({});
  }

  /// `last` is a head, or one that nobody needs any more.
  template <class Head>
  local_outputs<L, T, D> score(Head&& last, const flow& x, const batch_here& tokens, num number) {
    const parameters_in_use<T, D> w = use_beside_layers({parameter_kind::final_norm, head_weight_}, phase::loss);
    auto loss = last.forward(view_, x.tokens, tokens, {parameter::no_layer, w}, head_weight_, num_items_);
    return {number, balancing() ? x.balance.loss(view_.on) : A{0}, std::forward<Head>(last).scores(view_.on),
            std::move(loss)};
  }

  /// `share` of the micro-batch in the mean of load-balancing losses.
  void backward(const pipeline_step& step, stage_run& run, gradients_of_parts& sums, A share) {
    const batch_here& tokens = run.in.batch;
    flow d = [&] {
      if (!is_last(step.stage)) return receive_from(step, step.stage + 1, tokens, phase::backward);
      const parameters_in_use<T, D> w = use_beside_layers({parameter_kind::final_norm, head_weight_}, phase::backward);
      return flow{run.last.backward(view_, tokens, {parameter::no_layer, w, &sums}, head_weight_, num_items_),
                  std::move(run.balance)};
    }();
    // Without any target there is no loss, and the routers have no share in it.
    const A balance_scale = num_items_ > 0 ? static_cast<A>(view_.config.router_aux_loss_coef) * share : A{0};
    for_each_layer(step.stage, phase::backward, [&](num number, const parameters_in_use<T, D>& w) {
      run.layers.back().backward(in_layer(number), d.tokens, run.in.angles, tokens.places, {number, w, &sums},
                                 balancing() ? &d.balance : nullptr, balance_scale);
      run.layers.pop_back();
    });
    if (step.stage > 0) {
      send_to(step, step.stage - 1, std::move(d), phase::backward);
    } else if (tokens.ids) {
      const parameters_in_use<T, D> w = use_beside_layers({parameter_kind::embed_tokens}, phase::backward);
      embed_backward<L, Residual>(view_, d.tokens, tokens, layer_state<T, D>{parameter::no_layer, w, &sums});
    }
  }

  // Neighbouring stages are on neighbouring ranks, or on this one.
  flow receive_from(const pipeline_step& step, num other, const batch_here& tokens, phase why) {
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
    if (balancing()) view_.comm.receive(pp, std::span<A>(x.balance.values()), stage_owner(view_.plan, other));
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
  double rotary_scale_ = 1;
  buffer_on<D, double> rotary_inverse_;               // (head_dim / 2)
  std::map<std::tuple<phase, num, num>, flow> here_;  // (direction, to stage, micro-batch), where this rank holds both
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_EXECUTOR_HPP
