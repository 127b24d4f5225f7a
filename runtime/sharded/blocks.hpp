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
#include "runtime/sharded/local_tokens.hpp"

namespace shardplan::runtime {

/// What the blocks of one layer share: weights, and in a backward where gradients go.
template <class T>
struct layer_state {
  num layer;
  const parameters_in_use<T>& weights;
  gradient_store<T>* gradients = nullptr;

  const parameter_part<T>& operator[](parameter_kind kind) const { return weights[kind]; }
  std::span<T> gradient(parameter_kind kind) const { return (*gradients)(layer, kind, weights[kind].values.size()); }
};

template <class Residual, class T>
class norm_block {
 public:
  using stream = hidden<T, Residual>;

  stream forward(const model_config& config, const stream& x, const layer_state<T>& w, parameter_kind kind) {
    x_ = x.data();
    stream y(x, x.width());
    rms_norm<T>(x.data(), w[kind].values, config.rms_norm_eps, y.data());
    return y;
  }
  stream backward(const model_config& config, const stream& dy, const layer_state<T>& w, parameter_kind kind) {
    stream dx(dy, dy.width());
    rms_norm_backward<T>(read_only(x_), w[kind].values, config.rms_norm_eps, dy.data(), dx.data(), w.gradient(kind));
    return dx;
  }

 private:
  buffer<T> x_;
};

template <Layout L, class Residual, class T, class Attention>
class attention_block {
 public:
  using stream = hidden<T, Residual>;
  using rotary_sequence = sequence<shardplan::rotary_table, L, buffer<T>>;

  template <Communicator C>
  stream forward(const rank_view<C>& view, const stream& x, const rotary_sequence& angles,
                 const local_tokens<L, T>& tokens, const layer_state<T>& w) {
    const num D = view.model().head_dim;
    hidden<T, L> every = gather_tokens(view, x);
    x_ = std::move(every.data());  // `every` goes on as a shape
    const auto project = [&](parameter_kind weight, parameter_kind bias) {
      buffer<T> y = linear<T>(x_, w[weight]);
      if (w.weights.has(bias)) add_bias<T>(y, w[bias].values);
      return y;
    };
    attention_inputs<T> in{project(parameter_kind::q_proj, parameter_kind::q_bias),   // (n, heads, D)
                           project(parameter_kind::k_proj, parameter_kind::k_bias),   // (n, kv_heads, D)
                           project(parameter_kind::v_proj, parameter_kind::v_bias)};  // (n, kv_heads, D)
    if (view.model().head_norm) {
      q_ = in.q, k_ = in.k;
      rms_norm<T>(q_, w[parameter_kind::q_norm].values, view.config.rms_norm_eps, in.q);
      rms_norm<T>(k_, w[parameter_kind::k_norm].values, view.config.rms_norm_eps, in.k);
    }
    rotate<T>(in.q, angles.data(), D);
    rotate<T>(in.k, angles.data(), D);
    context_ = attention_.forward(view, std::move(in), tokens.places, attention_window(view.model(), w.layer));

    hidden<T, L> out(every, x.width(), linear<T>(context_, w[parameter_kind::o_proj]));
    stream sum = after_modules<Residual>(view, std::move(out), parameter_kind::o_proj, w.layer);
    if (w.weights.has(parameter_kind::o_bias))
      add_bias<T>(sum.data(), w[parameter_kind::o_bias].values);  // after the sum: once
    return sum;
  }

  template <Communicator C>
  stream backward(const rank_view<C>& view, const stream& dy, const rotary_sequence& angles,
                  const local_tokens<L, T>& tokens, const layer_state<T>& w) {
    const num D = view.model().head_dim;
    if (w.weights.has(parameter_kind::o_bias)) add_bias_backward<T>(dy.data(), w.gradient(parameter_kind::o_bias));
    const auto& every = gather_tokens(view, dy);
    attention_inputs<T> d = attention_.backward(
        view, linear_backward<T>(context_, w[parameter_kind::o_proj], every.data(), w.gradient(parameter_kind::o_proj)),
        tokens.places, attention_window(view.model(), w.layer));
    rotate_backward<T>(d.q, angles.data(), D);
    rotate_backward<T>(d.k, angles.data(), D);
    if (view.model().head_norm) {
      const auto through = [&](buffer<T>& g, const buffer<T>& x, parameter_kind kind) {
        buffer<T> dx(g.size());
        rms_norm_backward<T>(read_only(x), w[kind].values, view.config.rms_norm_eps, g, dx, w.gradient(kind));
        g = std::move(dx);
      };
      through(d.q, q_, parameter_kind::q_norm);
      through(d.k, k_, parameter_kind::k_norm);
    }
    hidden<T, L> dx(every, dy.width());  // where heads are cut, every tp rank owes a part
    const auto project = [&](const buffer<T>& g, parameter_kind weight, parameter_kind bias) {
      if (w.weights.has(bias)) add_bias_backward<T>(read_only(g), w.gradient(bias));
      add<T>(dx.data(), linear_backward<T>(x_, w[weight], g, w.gradient(weight)));
    };
    project(d.q, parameter_kind::q_proj, parameter_kind::q_bias);
    project(d.k, parameter_kind::k_proj, parameter_kind::k_bias);
    project(d.v, parameter_kind::v_proj, parameter_kind::v_bias);
    return after_modules<Residual>(view, std::move(dx), parameter_kind::q_proj, w.layer);
  }

 private:
  buffer<T> x_;        // (n, H)
  buffer<T> q_, k_;    // before their norms
  buffer<T> context_;  // (n, heads, D)
  Attention attention_;
};

/// A dense feed-forward layer.
template <Layout L, class Residual, class T>
class mlp_block {
 public:
  using stream = hidden<T, Residual>;

  template <Communicator C>
  stream forward(const rank_view<C>& view, const stream& x, const layer_state<T>& w) {
    hidden<T, L> every = gather_tokens(view, x);
    x_ = std::move(every.data());  // `every` goes on as a shape
    gate_ = linear<T>(x_, w[parameter_kind::mlp_gate]);
    up_ = linear<T>(x_, w[parameter_kind::mlp_up]);
    hidden<T, L> out(every, x.width(), linear<T>(activation(), w[parameter_kind::mlp_down]));
    return after_modules<Residual>(view, std::move(out), parameter_kind::mlp_down, w.layer);
  }

  /// Uses up what forward left.
  template <Communicator C>
  stream backward(const rank_view<C>& view, const stream& dy, const layer_state<T>& w) {
    const auto& every = gather_tokens(view, dy);
    const buffer<T> dact = linear_backward<T>(activation(), w[parameter_kind::mlp_down], every.data(),
                                              w.gradient(parameter_kind::mlp_down));
    swiglu_backward<T>(gate_, up_, read_only(dact));
    hidden<T, L> dx(every, dy.width());
    add<T>(dx.data(), linear_backward<T>(x_, w[parameter_kind::mlp_gate], gate_, w.gradient(parameter_kind::mlp_gate)));
    add<T>(dx.data(), linear_backward<T>(x_, w[parameter_kind::mlp_up], up_, w.gradient(parameter_kind::mlp_up)));
    return after_modules<Residual>(view, std::move(dx), parameter_kind::mlp_gate, w.layer);
  }

 private:
  buffer<T> activation() const {
    buffer<T> act(gate_.size());
    swiglu<T>(read_only(gate_), read_only(up_), act);
    return act;
  }
  buffer<T> x_, gate_, up_;  // (n, H), (n, I / tp) each
};

/// The experts of a layer: tokens of the residual stream in, tokens of the residual stream out.
template <Layout L, class Residual, class T, class Experts>
class moe_block {
  static constexpr bool split = residual_traits<Residual>::split;

 public:
  using stream = hidden<T, Residual>;

  template <Communicator C>
  stream forward(const rank_view<C>& view, const stream& x, const layer_state<T>& w, const routed_tokens& tokens,
                 balance_statistics<T>* balance) {
    n_ = static_cast<num>(tokens.real.size());
    const dim_range mine = my_rows(view);
    if (view.plan.dispatch == dispatch_kind::all_reduce) {
      const auto& every = gather_tokens(view, x);
      x_ = rows(every, mine);
      choose(view, w, tokens, mine.begin, balance);
      hidden<T, L> sum(every, x.width());  // zeros where other ranks have rows, or experts
      put(experts_.forward(view, read_only(x_), chosen_, w.weights), mine, sum);
      return sum_over_tp<Residual>::of(view, std::move(sum));
    }
    x_ = split ? x.data() : rows(x, mine);
    choose(view, w, tokens, mine.begin, balance);
    return all_rows(view, x, experts_.forward(view, read_only(x_), chosen_, w.weights));
  }

  template <Communicator C>
  stream backward(const rank_view<C>& view, const stream& dy, const layer_state<T>& w,
                  const balance_statistics<T>* balance, T balance_scale) {
    const dim_range mine = my_rows(view);
    const auto through = [&](const buffer<T>& dy_rows) {
      buffer<T> dweights;
      buffer<T> dx =
          experts_.backward(view, read_only(dy_rows), chosen_, w.weights, w.gradient(parameter_kind::experts_gate_up),
                            w.gradient(parameter_kind::experts_down), dweights);
      buffer<T> dscores = route_backward<T>(view.config, chosen_, dweights);
      if (balance != nullptr && counts_rows(view)) balance->add_gradient(dscores, chosen_, counted_, balance_scale);
      add<T>(dx, linear_backward<T>(x_, w[parameter_kind::router], dscores, w.gradient(parameter_kind::router)));
      return dx;
    };
    if (view.plan.dispatch == dispatch_kind::all_reduce) {
      const auto& every = gather_tokens(view, dy);
      hidden<T, L> dx(every, dy.width());
      put(through(rows(every, mine)), mine, dx);
      return sum_over_tp<Residual>::of(view, std::move(dx));
    }
    return all_rows(view, dy, through(split ? dy.data() : rows(dy, mine)));
  }

 private:
  template <Communicator C>
  dim_range my_rows(const rank_view<C>& view) const {
    return routed_rows(view.plan, n_, view.at(axis::tp));
  }
  template <Communicator C>
  void choose(const rank_view<C>& view, const layer_state<T>& w, const routed_tokens& tokens, num first,
              balance_statistics<T>* balance) {
    chosen_ = route<T>(view.config, x_, w[parameter_kind::router], tokens, first);
    if (balance == nullptr) return;
    counted_.assign(tokens.counted.begin() + first,
                    tokens.counted.begin() + first + static_cast<num>(chosen_.experts.size()) / chosen_.per_token);
    if (counts_rows(view)) balance->add_rows(chosen_, tokens, first);
  }
  /// Where ranks route the same rows, one of them counts them.
  template <Communicator C>
  static bool counts_rows(const rank_view<C>& view) {
    return view.plan.dispatch != dispatch_kind::all_reduce || (view.at(axis::ep) == 0 && view.at(axis::etp) == 0);
  }
  template <class L2>
  static buffer<T> rows(const hidden<T, L2>& x, dim_range r) {
    return {x.data().begin() + r.begin * x.width(), x.data().begin() + r.end * x.width()};
  }
  static void put(const buffer<T>& part, dim_range r, hidden<T, L>& whole) {
    std::copy(part.begin(), part.end(), whole.data().begin() + r.begin * whole.width());
  }
  /// From this rank's rows to the tokens of the stream: its own, or those of all tp ranks.
  template <Communicator C>
  stream all_rows(const rank_view<C>& view, const stream& like, buffer<T> part) const {
    stream out(like, like.width());
    if constexpr (split) {
      out.data() = std::move(part);
    } else {
      const auto tp = view.group(axis::tp);
      std::vector<num> counts;
      for (num i = 0; i < tp.size(); ++i) counts.push_back(routed_rows(view.plan, n_, i).size() * like.width());
      view.comm.all_gather(tp, read_only(part), std::span<T>(out.data()), std::span<const num>(counts));
    }
    return out;
  }

  num n_ = 0;
  buffer<T> x_;  // (r, H)
  routing<T> chosen_;
  std::vector<char> counted_;  // (r)
  Experts experts_;
};

/// x += attention(norm(x)); x += mlp or experts(norm(x))
template <Layout L, class Residual, class T, class Attention, class Experts>
class layer_block {
 public:
  using stream = hidden<T, Residual>;
  using rotary_sequence = sequence<shardplan::rotary_table, L, buffer<T>>;

  template <Communicator C>
  void forward(const rank_view<C>& view, stream& x, const rotary_sequence& angles, const local_tokens<L, T>& tokens,
               const routed_tokens& routed, const layer_state<T>& w, balance_statistics<T>* balance) {
    const stream a = input_norm_.forward(view.config, x, w, parameter_kind::input_layernorm);
    add<T>(x.data(), attention_.forward(view, a, angles, tokens, w).data());
    const stream m = post_norm_.forward(view.config, x, w, parameter_kind::post_attention_layernorm);
    add<T>(x.data(),
           (is_moe_layer(view.model(), w.layer) ? moe_.forward(view, m, w, routed, balance) : mlp_.forward(view, m, w))
               .data());
  }

  template <Communicator C>
  void backward(const rank_view<C>& view, stream& dx, const rotary_sequence& angles, const local_tokens<L, T>& tokens,
                const layer_state<T>& w, const balance_statistics<T>* balance, T balance_scale) {
    const stream dm = is_moe_layer(view.model(), w.layer) ? moe_.backward(view, dx, w, balance, balance_scale)
                                                          : mlp_.backward(view, dx, w);
    add<T>(dx.data(), post_norm_.backward(view.config, dm, w, parameter_kind::post_attention_layernorm).data());
    const stream da = attention_.backward(view, dx, angles, tokens, w);
    add<T>(dx.data(), input_norm_.backward(view.config, da, w, parameter_kind::input_layernorm).data());
  }

 private:
  norm_block<Residual, T> input_norm_, post_norm_;
  attention_block<L, Residual, T, Attention> attention_;
  moe_block<L, Residual, T, Experts> moe_;
  mlp_block<L, Residual, T> mlp_;
};

}  // namespace shardplan::runtime
#endif  // SHARDPLAN_RUNTIME_SHARDED_BLOCKS_HPP
