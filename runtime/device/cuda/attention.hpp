// SPDX-License-Identifier: Apache-2.0
// Attention as in runtime/device/attention.hpp, by kernels. Pointers are to memory of the device, aligned to 16 bytes.
// What is summed, log sums included, is of type accumulated<T>.
#ifndef SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_HPP
#define SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_HPP

#include <cmath>        // sqrt
#include <cstdint>      // uintptr_t
#include <limits>       // infinity
#include <stdexcept>    // invalid_argument
#include <string>       // to_string
#include <type_traits>  // conditional_t, integral_constant

#include "runtime/device/cuda/attention_backward_bf16.hpp"
#include "runtime/device/cuda/attention_forward_bf16.hpp"
#include "runtime/device/cuda/elementwise.hpp"

namespace shardplan::runtime::cuda {

/// Throws invalid_argument unless head_dim is a multiple of 8 up to 256, and tensors are aligned.
template <class... P>
void check_tensors(num head_dim, const P*... pointers) {
  if (head_dim <= 0 || head_dim % 8 != 0 || head_dim > 256)
    throw std::invalid_argument("head_dim " + std::to_string(head_dim) + " must be a multiple of 8, at most 256");
  if (((reinterpret_cast<std::uintptr_t>(pointers) % 16 != 0) || ...))
    throw std::invalid_argument("tensors of attention must be aligned to 16 bytes");
}

/// Calls f(integral_constant<int, Width>) with the least width of a tile that holds head_dim.
template <class F>
void with_width(num head_dim, F&& f) {
  if (head_dim <= 64) return f(std::integral_constant<int, 64>{});
  if (head_dim <= 128) return f(std::integral_constant<int, 128>{});
  return f(std::integral_constant<int, 256>{});
}

/// All that is given must outlive this object.
template <class T, Launcher L>
class online_attention {
 public:
  using A = accumulated<T>;

  /// `queries` (tokens, rows, heads, head_dim), with places of each row.
  online_attention(L& on, const T* queries, const uploaded_places<L>& places, num heads, num head_dim, num window)
      : on_(on),
        queries_(queries),
        places_(places.view()),
        heads_(heads),
        head_dim_(head_dim),
        window_(window),
        size_(places_.rows * heads * places_.tokens),
        largest_(on.template allocate<A>(size_)),
        sum_(on.template allocate<A>(size_)),
        weighted_(on.template allocate<A>(size_ * head_dim)) {
    check_tensors(head_dim, queries);
    for_each_element(on, size_, fill_body<A>{largest_.data(), -std::numeric_limits<A>::infinity()});
    for_each_element(on, size_, fill_body<A>{sum_.data(), A{0}});
    for_each_element(on, size_ * head_dim, fill_body<A>{weighted_.data(), A{0}});
  }

  /// Sees the keys and values (key_tokens, rows, kv_heads, head_dim); head h reads key/value head h * kv_heads / heads.
  void attend(const T* keys, const T* values, const uploaded_places<L>& places, num kv_heads) {
    check_tensors(head_dim_, keys, values);
    with_width(head_dim_, [&](auto width) {
      constexpr int most = decltype(width)::value;
      using kernel = std::conditional_t<std::is_same_v<T, bf16>, attend_bf16_kernel<most>, attend_kernel<T, most>>;
      visible_tiles<L> visible(on_, places_, places.view(), window_, kernel::side, false);
      on_.template launch<kernel>(
          places_.rows * heads_ * places_.tiles(kernel::side),
          {queries_, keys, values, places_, places.view(), visible.view(),
           attention_sizes{places_.rows, heads_, kv_heads, head_dim_, window_},
           1 / std::sqrt(static_cast<A>(head_dim_)), largest_.data(), sum_.data(), weighted_.data()});
    });
  }

  /// out (tokens, rows, heads, head_dim) and log_sum (rows, heads, tokens); 0 where nothing was seen.
  void finish(T* out, A* log_sum) {
    using kernel = finish_kernel<T>;
    on_.template launch<kernel>(kernel::blocks(size_), {largest_.data(), sum_.data(), weighted_.data(), out, log_sum,
                                                        places_.tokens, places_.rows, heads_, head_dim_});
  }

 private:
  L& on_;
  const T* queries_;
  places_view places_;
  num heads_, head_dim_, window_, size_;
  memory_of<L, A> largest_, sum_;  // (rows, heads, tokens)
  memory_of<L, A> weighted_;       // (rows, heads, tokens, head_dim)
};

/// The gradients of attention, one block of keys after another, scores recomputed from their log sums.
template <class T, Launcher L>
class attention_gradient {
 public:
  using A = accumulated<T>;

  /// `queries`, `out` and `dout` (tokens, rows, heads, head_dim), `log_sum` as finish() left it; all but `out` must
  /// outlive this object.
  attention_gradient(L& on, const T* queries, const T* out, const T* dout, const A* log_sum,
                     const uploaded_places<L>& places, num heads, num head_dim, num window)
      : on_(on),
        queries_(queries),
        dout_(dout),
        log_sum_(log_sum),
        places_(places.view()),
        heads_(heads),
        head_dim_(head_dim),
        window_(window),
        size_(places_.rows * heads * places_.tokens),
        along_(on.template allocate<A>(size_)),
        dqueries_(on.template allocate<A>(size_ * head_dim)) {
    check_tensors(head_dim, queries, dout);
    using sum = along_kernel<T>;
    on.template launch<sum>(sum::blocks(size_),
                            {out, dout, along_.data(), places_.tokens, places_.rows, heads, head_dim});
    for_each_element(on, size_ * head_dim, fill_body<A>{dqueries_.data(), A{0}});
  }

  /// Adds to dkeys and dvalues (key_tokens, rows, kv_heads, head_dim), stored as G, what these queries owe these keys.
  template <class G>
  void attend(const T* keys, const T* values, const uploaded_places<L>& places, num kv_heads, G* dkeys, G* dvalues) {
    check_tensors(head_dim_, keys, values, dkeys, dvalues);
    with_width(head_dim_, [&](auto width) {
      constexpr int most = decltype(width)::value;
      constexpr bool by_warps = std::is_same_v<T, bf16>;
      using of_queries = std::conditional_t<by_warps, query_gradient_bf16_kernel<most>, query_gradient_kernel<T, most>>;
      using of_keys = std::conditional_t<by_warps, key_gradient_bf16_kernel<G, most>, key_gradient_kernel<T, G, most>>;
      constexpr int side = of_keys::side;
      gradient_inputs<T> in{queries_,
                            dout_,
                            keys,
                            values,
                            log_sum_,
                            along_.data(),
                            places_,
                            places.view(),
                            {},
                            attention_sizes{places_.rows, heads_, kv_heads, head_dim_, window_},
                            1 / std::sqrt(static_cast<A>(head_dim_))};
      visible_tiles<L> by_queries(on_, places_, places.view(), window_, side, false);
      in.visible = by_queries.view();
      on_.template launch<of_queries>(places_.rows * heads_ * places_.tiles(side), {in, dqueries_.data()});
      visible_tiles<L> by_keys(on_, places_, places.view(), window_, side, true);
      in.visible = by_keys.view();
      on_.template launch<of_keys>(places_.rows * kv_heads * places.view().tiles(side), {in, dkeys, dvalues});
    });
  }

  /// The gradient of the queries (tokens, rows, heads, head_dim), once all keys were seen.
  void finish(T* dqueries) { for_each_element(on_, size_ * head_dim_, convert_body<T, A>{dqueries_.data(), dqueries}); }

 private:
  L& on_;
  const T *queries_, *dout_;
  const A* log_sum_;
  places_view places_;
  num heads_, head_dim_, window_, size_;
  memory_of<L, A> along_;     // (rows, heads, tokens)
  memory_of<L, A> dqueries_;  // (tokens, rows, heads, head_dim)
};

}  // namespace shardplan::runtime::cuda
#endif  // SHARDPLAN_RUNTIME_DEVICE_CUDA_ATTENTION_HPP
