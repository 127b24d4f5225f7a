// SPDX-License-Identifier: Apache-2.0
// The blocks of a decoder layer on one rank, forward and backward side by side. A block holds what its backward needs;
// who only evaluates lets it go after the forward.
// L is the layout of the rank's tokens, Residual that of the stream between tensor-parallel regions: L, or L split over
// tp. Letters: s tokens of a row, b rows, n = s * b, H hidden, D head_dim.
#ifndef SHARDPLAN_RUNTIME_SHARDED_BLOCKS_HPP
#define SHARDPLAN_RUNTIME_SHARDED_BLOCKS_HPP

#include "runtime/sharded/attention.hpp"
#include "runtime/sharded/dispatch.hpp"
#include "runtime/sharded/gradient_store.hpp"
#include "runtime/sharded/micro_batch.hpp"

namespace shardplan::runtime {

/// What the blocks of one layer share: weights, and in a backward where gradients go.
template <class T, class D = cpu_device>
struct layer_state {
  num layer;
  const parameters_in_use<T, D>& weights;
  gradient_store<accumulated<T>, D>* gradients = nullptr;

  const parameter_part<T>& operator[](parameter_kind kind) const { return weights[kind]; }
  std::span<accumulated<T>> gradient(parameter_kind kind) const {
    return (*gradients)(layer, kind, weights[kind].values.size());
  }
};

template <class Residual, class T, class D>
class norm_block {
 public:
  using stream = hidden<T, Residual, D>;

  template <Communicator C>
  stream forward(const rank_view<C, D>& view, const stream& x, const layer_state<T, D>& w, parameter_kind kind) {
    x_ = copied<T>(view.on, x.data());
    stream y = unwritten<T>(view.on, x, x.width());
    rms_norm<T>(view.on, x.data(), w[kind].values, view.config.rms_norm_eps, y.data());
    return y;
  }
  template <Communicator C>
  stream backward(const rank_view<C, D>& view, const stream& dy, const layer_state<T, D>& w, parameter_kind kind) {
    stream dx = unwritten<T>(view.on, dy, dy.width());
    rms_norm_backward<T>(view.on, x_, w[kind].values, view.config.rms_norm_eps, dy.data(), dx.data(), w.gradient(kind));
    return dx;
  }

 private:
  buffer_on<D, T> x_;
};

template <Layout L, class Residual, class T, class Attention, class D>
class attention_block {
 public:
  using stream = hidden<T, Residual, D>;
  using rotary_sequence = sequence<shardplan::rotary_table, L, buffer_on<D, accumulated<T>>>;

  template <Communicator C>
  stream forward(const rank_view<C, D>& view, const stream& x, const rotary_sequence& angles,
                 const sequence_places<D>& places, const layer_state<T, D>& w) {
    const num head_dim = view.model().head_dim;
    hidden<T, L, D> every = copy_of_tokens(view, x);
    x_ = std::move(every.data());  // `every` goes on as a shape
    const auto project = [&](parameter_kind weight, parameter_kind bias) {
      buffer_on<D, T> y = linear<T>(view.on, x_, w[weight]);
      if (w.weights.has(bias)) add_bias<T>(view.on, y, w[bias].values);
      return y;
    };
    attention_inputs<T, D> in{project(parameter_kind::q_proj, parameter_kind::q_bias),   // (n, heads, D)
                              project(parameter_kind::k_proj, parameter_kind::k_bias),   // (n, kv_heads, D)
                              project(parameter_kind::v_proj, parameter_kind::v_bias)};  // (n, kv_heads, D)
    if (view.model().head_norm) {
      q_ = copied<T>(view.on, in.q), k_ = copied<T>(view.on, in.k);
      rms_norm<T>(view.on, q_, w[parameter_kind::q_norm].values, view.config.rms_norm_eps, in.q);
      rms_norm<T>(view.on, k_, w[parameter_kind::k_norm].values, view.config.rms_norm_eps, in.k);
    }
    rotate<T>(view.on, in.q, angles.data(), head_dim);
    rotate<T>(view.on, in.k, angles.data(), head_dim);
    context_ = attention_.forward(view, std::move(in), places, attention_window(view.model(), w.layer));

    hidden<T, L, D> out(every, x.width(), linear<T>(view.on, context_, w[parameter_kind::o_proj]));
    stream sum = after_modules<Residual>(view, std::move(out), parameter_kind::o_proj, w.layer);
    if (w.weights.has(parameter_kind::o_bias))
      add_bias<T>(view.on, sum.data(), w[parameter_kind::o_bias].values);  // after the sum: once
    return sum;
  }

  template <Communicator C>
  stream backward(const rank_view<C, D>& view, const stream& dy, const rotary_sequence& angles,
                  const sequence_places<D>& places, const layer_state<T, D>& w) {
    const num head_dim = view.model().head_dim;
    if (w.weights.has(parameter_kind::o_bias))
      add_bias_backward<T>(view.on, dy.data(), w.gradient(parameter_kind::o_bias));
    const auto& every = gather_tokens(view, dy);
    attention_inputs<T, D> d = attention_.backward(view,
                                                   linear_backward<T>(view.on, context_, w[parameter_kind::o_proj],
                                                                      every.data(), w.gradient(parameter_kind::o_proj)),
                                                   places, attention_window(view.model(), w.layer));
    rotate_backward<T>(view.on, d.q, angles.data(), head_dim);
    rotate_backward<T>(view.on, d.k, angles.data(), head_dim);
    if (view.model().head_norm) {
      const auto through = [&](buffer_on<D, T>& g, const buffer_on<D, T>& x, parameter_kind kind) {
        buffer_on<D, T> dx = allocate<T>(view.on, g.size());
        rms_norm_backward<T>(view.on, x, w[kind].values, view.config.rms_norm_eps, g, dx, w.gradient(kind));
        g = std::move(dx);
      };
      through(d.q, q_, parameter_kind::q_norm);
      through(d.k, k_, parameter_kind::k_norm);
    }
    auto dx = zeros<T>(view.on, every, dy.width());  // where heads are cut, every tp rank owes a part
    const auto project = [&](const buffer_on<D, T>& g, parameter_kind weight, parameter_kind bias) {
      if (w.weights.has(bias)) add_bias_backward<T>(view.on, g, w.gradient(bias));
      add<T>(view.on, dx.data(), linear_backward<T>(view.on, x_, w[weight], g, w.gradient(weight)));
    };
    project(d.q, parameter_kind::q_proj, parameter_kind::q_bias);
    project(d.k, parameter_kind::k_proj, parameter_kind::k_bias);
    project(d.v, parameter_kind::v_proj, parameter_kind::v_bias);
    return after_modules<Residual>(view, std::move(dx), parameter_kind::q_proj, w.layer);
  }

 private:
  buffer_on<D, T> x_;        // (n, H)
  buffer_on<D, T> q_, k_;    // before their norms
  buffer_on<D, T> context_;  // (n, heads, D)
  Attention attention_;
};

/// A dense feed-forward layer.
template <Layout L, class Residual, class T, class D>
class mlp_block {
 public:
  using stream = hidden<T, Residual, D>;

  template <Communicator C>
  stream forward(const rank_view<C, D>& view, const stream& x, const layer_state<T, D>& w) {
    hidden<T, L, D> every = copy_of_tokens(view, x);
    x_ = std::move(every.data());  // `every` goes on as a shape
    gate_ = linear<T>(view.on, x_, w[parameter_kind::mlp_gate]);
    up_ = linear<T>(view.on, x_, w[parameter_kind::mlp_up]);
    hidden<T, L, D> out(every, x.width(), linear<T>(view.on, activation(view), w[parameter_kind::mlp_down]));
    return after_modules<Residual>(view, std::move(out), parameter_kind::mlp_down, w.layer);
  }

  /// Uses up what forward left.
  template <Communicator C>
  stream backward(const rank_view<C, D>& view, const stream& dy, const layer_state<T, D>& w) {
    const auto& every = gather_tokens(view, dy);
    const auto dact = linear_backward<T>(view.on, activation(view), w[parameter_kind::mlp_down], every.data(),
                                         w.gradient(parameter_kind::mlp_down));
    swiglu_backward<T>(view.on, gate_, up_, dact);
    auto dx = zeros<T>(view.on, every, dy.width());
    const auto project = [&](const buffer_on<D, T>& g, parameter_kind weight) {
      add<T>(view.on, dx.data(), linear_backward<T>(view.on, x_, w[weight], g, w.gradient(weight)));
    };
    project(gate_, parameter_kind::mlp_gate);
    project(up_, parameter_kind::mlp_up);
    return after_modules<Residual>(view, std::move(dx), parameter_kind::mlp_gate, w.layer);
  }

 private:
  template <Communicator C>
  buffer_on<D, T> activation(const rank_view<C, D>& view) const {
    buffer_on<D, T> act = allocate<T>(view.on, gate_.size());
    swiglu<T>(view.on, gate_, up_, act);
    return act;
  }
  buffer_on<D, T> x_, gate_, up_;  // (n, H), (n, I / tp) each
};

/// The experts of a layer: tokens of the residual stream in, tokens of the residual stream out.
template <Layout L, class Residual, class T, class Experts, class D>
class moe_block {
  static constexpr bool split = residual_traits<Residual>::split;

 public:
  using stream = hidden<T, Residual, D>;

  template <Communicator C>
  stream forward(const rank_view<C, D>& view, const stream& x, const layer_state<T, D>& w,
                 const routed_tokens<D>& tokens, balance_statistics<T, D>* balance) {
    n_ = static_cast<num>(tokens.real.size());
    const dim_range mine = my_rows(view);
    if (view.plan.dispatch == dispatch_kind::all_reduce) {
      const auto& every = gather_tokens(view, x);
      x_ = rows(view, every, mine);
      choose(view, w, tokens, mine.begin, balance);
      auto sum = zeros<T>(view.on, every, x.width());  // zeros where other ranks have rows, or experts
      put(view, experts_.forward(view, read_only(x_), chosen_, w.weights), mine, sum);
      return sum_over_tp<Residual>::of(view, std::move(sum));
    }
    x_ = split ? copied<T>(view.on, x.data()) : rows(view, x, mine);
    choose(view, w, tokens, mine.begin, balance);
    return all_rows(view, x, experts_.forward(view, read_only(x_), chosen_, w.weights));
  }

  template <Communicator C>
  stream backward(const rank_view<C, D>& view, const stream& dy, const layer_state<T, D>& w,
                  const balance_statistics<T, D>* balance, accumulated<T> balance_scale) {
    const dim_range mine = my_rows(view);
    const auto through = [&](std::span<const T> dy_rows) {
      buffer_on<D, accumulated<T>> dweights;
      buffer_on<D, T> dx =
          experts_.backward(view, dy_rows, chosen_, w.weights, w.gradient(parameter_kind::experts_gate_up),
                            w.gradient(parameter_kind::experts_down), dweights);
      buffer_on<D, accumulated<T>> dscores = route_backward<T>(view, chosen_, dweights);
      if (balance != nullptr && counts_rows(view))
        balance->add_gradient(view.on, dscores, chosen_, counted_, balance_scale);
      add<T>(view.on, dx,
             linear_backward<T>(view.on, x_, w[parameter_kind::router], stored<T>(view.on, std::move(dscores)),
                                w.gradient(parameter_kind::router)));
      return dx;
    };
    if (view.plan.dispatch == dispatch_kind::all_reduce) {
      const auto& every = gather_tokens(view, dy);
      auto dx = zeros<T>(view.on, every, dy.width());
      put(view, through(part_of(every, mine)), mine, dx);
      return sum_over_tp<Residual>::of(view, std::move(dx));
    }
    return all_rows(view, dy, through(split ? read_only(dy.data()) : part_of(dy, mine)));
  }

 private:
  template <Communicator C>
  dim_range my_rows(const rank_view<C, D>& view) const {
    return routed_rows(view.plan, n_, view.at(axis::tp));
  }
  template <Communicator C>
  void choose(const rank_view<C, D>& view, const layer_state<T, D>& w, const routed_tokens<D>& tokens, num first,
              balance_statistics<T, D>* balance) {
    chosen_ = route<T>(view, x_, w[parameter_kind::router], tokens, first);
    if (balance == nullptr) return;
    counted_ = tokens.counted.subspan(static_cast<std::size_t>(first),
                                      chosen_.experts.size() / static_cast<std::size_t>(chosen_.per_token));
    if (counts_rows(view)) balance->add_rows(view.on, chosen_, counted_);
  }
  /// Where ranks route the same rows, one of them counts them.
  template <Communicator C>
  static bool counts_rows(const rank_view<C, D>& view) {
    return view.plan.dispatch != dispatch_kind::all_reduce || (view.at(axis::ep) == 0 && view.at(axis::etp) == 0);
  }
  template <class L2>
  static std::span<const T> part_of(const hidden<T, L2, D>& x, dim_range r) {
    return read_only(x.data()).subspan(static_cast<std::size_t>(r.begin * x.width()),
                                       static_cast<std::size_t>(r.size() * x.width()));
  }
  template <Communicator C, class L2>
  static buffer_on<D, T> rows(const rank_view<C, D>& view, const hidden<T, L2, D>& x, dim_range r) {
    return copied<T>(view.on, part_of(x, r));
  }
  template <Communicator C>
  static void put(const rank_view<C, D>& view, const buffer_on<D, T>& part, dim_range r, hidden<T, L, D>& whole) {
    const std::span<T> to(whole.data());
    copy_values<T>(view.on, part, to.subspan(static_cast<std::size_t>(r.begin * whole.width()), part.size()));
  }
  /// From this rank's rows to the tokens of the stream: its own, or those of all tp ranks.
  template <Communicator C>
  stream all_rows(const rank_view<C, D>& view, const stream& like, buffer_on<D, T> part) const {
    if constexpr (split) {
      return {like, like.width(), std::move(part)};
    } else {
      stream out = unwritten<T>(view.on, like, like.width());
      const auto tp = view.group(axis::tp);
      std::vector<num> counts;
      for (num i = 0; i < tp.size(); ++i) counts.push_back(routed_rows(view.plan, n_, i).size() * like.width());
      view.comm.all_gather(tp, read_only(part), std::span<T>(out.data()), std::span<const num>(counts));
      return out;
    }
  }

  num n_ = 0;
  buffer_on<D, T> x_;  // (r, H)
  routing<T, D> chosen_;
  std::span<const char> counted_;  // (r), of the tokens of the micro-batch
  Experts experts_;
};

/// x += attention(norm(x)); x += mlp or experts(norm(x))
template <Layout L, class Residual, class T, class Attention, class Experts, class D>
class layer_block {
 public:
  using stream = hidden<T, Residual, D>;
  using rotary_sequence = sequence<shardplan::rotary_table, L, buffer_on<D, accumulated<T>>>;

  template <Communicator C>
  void forward(const rank_view<C, D>& view, stream& x, const rotary_sequence& angles, const sequence_places<D>& places,
               const routed_tokens<D>& routed, const layer_state<T, D>& w, balance_statistics<T, D>* balance) {
    const stream a = input_norm_.forward(view, x, w, parameter_kind::input_layernorm);
    add<T>(view.on, x.data(), attention_.forward(view, a, angles, places, w).data());
    const stream m = post_norm_.forward(view, x, w, parameter_kind::post_attention_layernorm);
    add<T>(view.on, x.data(),
           (is_moe_layer(view.model(), w.layer) ? moe_.forward(view, m, w, routed, balance) : mlp_.forward(view, m, w))
               .data());
  }

  template <Communicator C>
  void backward(const rank_view<C, D>& view, stream& dx, const rotary_sequence& angles,
                const sequence_places<D>& places, const layer_state<T, D>& w, const balance_statistics<T, D>* balance,
                accumulated<T> balance_scale) {
    const stream dm = is_moe_layer(view.model(), w.layer) ? moe_.backward(view, dx, w, balance, balance_scale)
                                                          : mlp_.backward(view, dx, w);
    add<T>(view.on, dx.data(), post_norm_.backward(view, dm, w, parameter_kind::post_attention_layernorm).data());
    const stream da = attention_.backward(view, dx, angles, places, w);
    add<T>(view.on, dx.data(), input_norm_.backward(view, da, w, parameter_kind::input_layernorm).data());
  }

 private:
  norm_block<Residual, T, D> input_norm_, post_norm_;
  attention_block<L, Residual, T, Attention, D> attention_;
  moe_block<L, Residual, T, Experts, D> moe_;
  mlp_block<L, Residual, T, D> mlp_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_BLOCKS_HPP
