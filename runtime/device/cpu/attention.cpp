// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/attention.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/device/gemm.hpp"
#include "runtime/device/visibility.hpp"

namespace shardplan::runtime {
namespace {

// Scores exist for one block of queries and some of keys at a time, so that they stay in a core's cache. Who sees whom
// is decided by key blocks; neighbouring ones that everybody sees are taken together, because larger products are
// faster.
constexpr num query_block = 128, key_block = 128, most_keys = 4 * key_block;

token_place place_of(const token_places& p, num token) {
  const auto at = static_cast<std::size_t>(token);
  return {p.offset[at], p.document[at], p.key[at] != 0};
}

extent extent_of(const token_places& p, num begin, num end) {
  extent e = extent::of(place_of(p, begin));
  for (num i = begin + 1; i < end; ++i) e.add(extent::of(place_of(p, i)));
  return e;
}

/// One block of queries against one of keys, in one row: sizes, and who sees whom where not everybody does.
struct block {
  num row, q0, nq, k0, nk;
  bool masked;
  std::vector<char>& mask;  // (nq, nk), meaningful when masked
};

/// Calls `f(block)` for each pair of blocks in which somebody sees somebody.
template <class F>
void for_each_visible_block(std::span<const token_places> queries, std::span<const token_places> keys, num window,
                            F&& f) {
  std::vector<char> mask(static_cast<std::size_t>(query_block * key_block));
  for (std::size_t row = 0; row < queries.size(); ++row) {
    const token_places &qp = queries[row], &kp = keys[row];
    const num tokens = static_cast<num>(qp.offset.size()), key_tokens = static_cast<num>(kp.offset.size());
    std::vector<extent> key_extents;
    for (num k0 = 0; k0 < key_tokens; k0 += key_block)
      key_extents.push_back(extent_of(kp, k0, std::min(k0 + key_block, key_tokens)));
    for (num q0 = 0; q0 < tokens; q0 += query_block) {
      const num nq = std::min(query_block, tokens - q0);
      const extent q_extent = extent_of(qp, q0, q0 + nq);
      const auto visible = [&](num k0) {
        return seen(q_extent, key_extents[static_cast<std::size_t>(k0 / key_block)], window);
      };
      for (num k0 = 0, nk = 0; k0 < key_tokens; k0 += nk) {
        nk = std::min(key_block, key_tokens - k0);
        const visibility here = visible(k0);
        if (here == visibility::none) continue;
        if (here == visibility::all)
          while (nk < most_keys && k0 + nk < key_tokens && visible(k0 + nk) == visibility::all)
            nk = std::min(nk + key_block, key_tokens - k0);
        if (here == visibility::some)
          for (num i = 0; i < nq; ++i)
            for (num j = 0; j < nk; ++j)
              mask[static_cast<std::size_t>(i * nk + j)] = sees(place_of(qp, q0 + i), place_of(kp, k0 + j), window);
        f(block{static_cast<num>(row), q0, nq, k0, nk, here == visibility::some, mask});
      }
    }
  }
}

/// The tokens [first, first + n) of one row and head of x (tokens, rows, heads, head_dim), as a matrix.
template <class T>
matrix_view<T> of_head(T* x, num first, num n, num row, num rows, num head, num heads, num head_dim) {
  const num stride = rows * heads * head_dim;  // token to token
  return {x + first * stride + (row * heads + head) * head_dim, n, head_dim, stride};
}

}  // namespace

template <class T>
online_attention<T>::online_attention(std::span<const T> queries, std::span<const token_places> places, num heads,
                                      num head_dim, num window)
    : queries_(queries),
      places_(places),
      rows_(static_cast<num>(places.size())),
      tokens_(rows_ == 0 ? 0 : static_cast<num>(places[0].offset.size())),
      heads_(heads),
      head_dim_(head_dim),
      window_(window),
      largest_(static_cast<std::size_t>(rows_ * heads * tokens_), -std::numeric_limits<T>::infinity()),
      sum_(largest_.size(), T{0}),
      weighted_(largest_.size() * static_cast<std::size_t>(head_dim), T{0}) {}

template <class T>
void online_attention<T>::attend(std::span<const T> keys, std::span<const T> values,
                                 std::span<const token_places> places, num kv_heads) {
  using line = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
  const T scale = 1 / std::sqrt(static_cast<T>(head_dim_));
  buffer<T> scores(static_cast<std::size_t>(query_block * most_keys));

  for_each_visible_block(places_, places, window_, [&](const block& b) {
    for (num head = 0; head < heads_; ++head) {
      const num kv = head * kv_heads / heads_;
      const auto q = of_head(queries_.data(), b.q0, b.nq, b.row, rows_, head, heads_, head_dim_);
      const auto k = of_head(keys.data(), b.k0, b.nk, b.row, rows_, kv, kv_heads, head_dim_);
      const auto v = of_head(values.data(), b.k0, b.nk, b.row, rows_, kv, kv_heads, head_dim_);
      const matrix_view<T> s(scores.data(), b.nq, b.nk);
      gemm_nt(q, k, s, scale);

      const num state = (b.row * heads_ + head) * tokens_ + b.q0;
      for (num i = 0; i < b.nq; ++i) {
        line x(scores.data() + i * b.nk, b.nk);
        if (b.masked)
          for (num j = 0; j < b.nk; ++j)
            if (!b.mask[static_cast<std::size_t>(i * b.nk + j)]) x[j] = -std::numeric_limits<T>::infinity();
        T& largest = largest_[static_cast<std::size_t>(state + i)];
        T& sum = sum_[static_cast<std::size_t>(state + i)];
        const T now = std::max(largest, x.maxCoeff());
        // Nothing seen yet: -inf - -inf would be NaN. But a score that is NaN, which is no maximum, must not get lost.
        if (now == -std::numeric_limits<T>::infinity() && !x.isNaN().any()) {
          x.setZero();
          continue;
        }
        const T fade = std::exp(largest - now);
        x = (x - now).exp();
        sum = sum * fade + x.sum();
        if (fade != 1) line(weighted_.data() + (state + i) * head_dim_, head_dim_) *= fade;
        largest = now;
      }
      gemm_nn(s, v, matrix_view<T>(weighted_.data() + state * head_dim_, b.nq, head_dim_), T{1}, T{1});
    }
  });
}

template <class T>
void online_attention<T>::finish(std::span<T> out, std::span<T> log_sum) const {
  using line_of = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;
  using line_to = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
  for (num row = 0; row < rows_; ++row)
    for (num head = 0; head < heads_; ++head)
      for (num i = 0; i < tokens_; ++i) {
        const num at = (row * heads_ + head) * tokens_ + i;
        const T sum = sum_[static_cast<std::size_t>(at)];
        line_to(out.data() + ((i * rows_ + row) * heads_ + head) * head_dim_, head_dim_) =
            line_of(weighted_.data() + at * head_dim_, head_dim_) * (sum != 0 ? 1 / sum : T{0});
        log_sum[static_cast<std::size_t>(at)] =
            sum != 0 ? std::log(sum) + largest_[static_cast<std::size_t>(at)] : T{0};
      }
}

template <class T>
attention_gradient<T>::attention_gradient(std::span<const T> queries, std::span<const T> out, std::span<const T> dout,
                                          std::span<const T> log_sum, std::span<const token_places> places, num heads,
                                          num head_dim, num window)
    : queries_(queries),
      dout_(dout),
      log_sum_(log_sum),
      places_(places),
      rows_(static_cast<num>(places.size())),
      tokens_(rows_ == 0 ? 0 : static_cast<num>(places[0].offset.size())),
      heads_(heads),
      head_dim_(head_dim),
      window_(window),
      along_(log_sum.size()),
      dqueries_(queries.size(), T{0}) {
  using line_of = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;
  for (num row = 0; row < rows_; ++row)
    for (num head = 0; head < heads_; ++head)
      for (num i = 0; i < tokens_; ++i) {
        const num at = ((i * rows_ + row) * heads_ + head) * head_dim_;
        along_[static_cast<std::size_t>((row * heads_ + head) * tokens_ + i)] =
            (line_of(out.data() + at, head_dim_) * line_of(dout.data() + at, head_dim_)).sum();
      }
}

template <class T>
void attention_gradient<T>::attend(std::span<const T> keys, std::span<const T> values,
                                   std::span<const token_places> places, num kv_heads, std::span<T> dkeys,
                                   std::span<T> dvalues) {
  using line = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
  const T scale = 1 / std::sqrt(static_cast<T>(head_dim_));
  buffer<T> scores(static_cast<std::size_t>(query_block * most_keys)), dscores(scores.size());

  for_each_visible_block(places_, places, window_, [&](const block& b) {
    for (num head = 0; head < heads_; ++head) {
      const num kv = head * kv_heads / heads_;
      const auto q = of_head(queries_.data(), b.q0, b.nq, b.row, rows_, head, heads_, head_dim_);
      const auto dout = of_head(dout_.data(), b.q0, b.nq, b.row, rows_, head, heads_, head_dim_);
      const auto dq = of_head(dqueries_.data(), b.q0, b.nq, b.row, rows_, head, heads_, head_dim_);
      const auto k = of_head(keys.data(), b.k0, b.nk, b.row, rows_, kv, kv_heads, head_dim_);
      const auto v = of_head(values.data(), b.k0, b.nk, b.row, rows_, kv, kv_heads, head_dim_);
      const auto dk = of_head(dkeys.data(), b.k0, b.nk, b.row, rows_, kv, kv_heads, head_dim_);
      const auto dv = of_head(dvalues.data(), b.k0, b.nk, b.row, rows_, kv, kv_heads, head_dim_);
      const matrix_view<T> p(scores.data(), b.nq, b.nk), ds(dscores.data(), b.nq, b.nk);
      gemm_nt(q, k, p, scale);
      gemm_nt(dout, v, ds);

      const num state = (b.row * heads_ + head) * tokens_ + b.q0;
      for (num i = 0; i < b.nq; ++i) {
        line x(scores.data() + i * b.nk, b.nk), dx(dscores.data() + i * b.nk, b.nk);
        x = (x - log_sum_[static_cast<std::size_t>(state + i)]).exp();
        if (b.masked)
          for (num j = 0; j < b.nk; ++j)
            if (!b.mask[static_cast<std::size_t>(i * b.nk + j)]) x[j] = 0;
        dx = x * (dx - along_[static_cast<std::size_t>(state + i)]) * scale;
      }
      gemm_tn(p, dout, dv, T{1}, T{1});
      gemm_nn(ds, k, dq, T{1}, T{1});
      gemm_tn(ds, q, dk, T{1}, T{1});
    }
  });
}

template class online_attention<float>;
template class online_attention<double>;
template class attention_gradient<float>;
template class attention_gradient<double>;

}  // namespace shardplan::runtime
