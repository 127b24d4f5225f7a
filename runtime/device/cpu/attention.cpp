// SPDX-License-Identifier: Apache-2.0
#include "runtime/device/attention.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/device/gemm.hpp"

namespace shardplan::runtime {
namespace {

// Scores exist for one block of queries and one of keys at a time; both fit a core's cache with their vectors.
constexpr num query_block = 128, key_block = 128;

/// The extremes of a block's places: enough to tell most blocks that nobody may see, or that everybody may.
struct extent {
  num first = std::numeric_limits<num>::max(), last = std::numeric_limits<num>::min();
  num first_document = first, last_document = last;
  bool every_key = true, any_key = false;

  extent(const token_places& p, num begin, num end) {
    for (num i = begin; i < end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      first = std::min(first, p.offset[at]), last = std::max(last, p.offset[at]);
      first_document = std::min(first_document, p.document[at]);
      last_document = std::max(last_document, p.document[at]);
      every_key = every_key && p.key[at], any_key = any_key || p.key[at];
    }
  }
};

enum class visibility : unsigned char { none, some, all };

visibility seen(const extent& q, const extent& k, num window) {
  const bool overlap = q.first_document <= k.last_document && k.first_document <= q.last_document;
  if (!k.any_key || !overlap || k.first > q.last || (window > 0 && q.first - k.last >= window)) return visibility::none;
  const bool one_document = q.first_document == q.last_document && k.first_document == k.last_document;
  const bool inside = window == 0 || q.last - k.first < window;
  return k.every_key && one_document && k.last <= q.first && inside ? visibility::all : visibility::some;
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
  const num q_stride = rows_ * heads_ * head_dim_, k_stride = rows_ * kv_heads * head_dim_;  // token to token
  std::vector<T> scores(static_cast<std::size_t>(query_block * key_block));
  std::vector<char> mask(scores.size());

  for (num row = 0; row < rows_; ++row) {
    const token_places &qp = places_[static_cast<std::size_t>(row)], &kp = places[static_cast<std::size_t>(row)];
    const num key_tokens = static_cast<num>(kp.offset.size());
    for (num q0 = 0; q0 < tokens_; q0 += query_block) {
      const num nq = std::min(query_block, tokens_ - q0);
      const extent q_extent(qp, q0, q0 + nq);
      for (num k0 = 0; k0 < key_tokens; k0 += key_block) {
        const num nk = std::min(key_block, key_tokens - k0);
        const visibility visible = seen(q_extent, extent(kp, k0, k0 + nk), window_);
        if (visible == visibility::none) continue;
        if (visible == visibility::some)
          for (num i = 0; i < nq; ++i)
            for (num j = 0; j < nk; ++j) {
              const auto q = static_cast<std::size_t>(q0 + i), k = static_cast<std::size_t>(k0 + j);
              const num behind = qp.offset[q] - kp.offset[k];
              mask[static_cast<std::size_t>(i * nk + j)] =
                  kp.key[k] && qp.document[q] == kp.document[k] && behind >= 0 && (window_ == 0 || behind < window_);
            }
        for (num head = 0; head < heads_; ++head) {
          const num kv = head * kv_heads / heads_;
          const matrix_view<const T> q(queries_.data() + q0 * q_stride + (row * heads_ + head) * head_dim_, nq,
                                       head_dim_, q_stride);
          const matrix_view<const T> k(keys.data() + k0 * k_stride + (row * kv_heads + kv) * head_dim_, nk, head_dim_,
                                       k_stride);
          const matrix_view<const T> v(values.data() + k0 * k_stride + (row * kv_heads + kv) * head_dim_, nk, head_dim_,
                                       k_stride);
          const matrix_view<T> s(scores.data(), nq, nk);
          gemm_nt(q, k, s, scale);

          const num state = (row * heads_ + head) * tokens_ + q0;
          for (num i = 0; i < nq; ++i) {
            line x(scores.data() + i * nk, nk);
            if (visible == visibility::some)
              for (num j = 0; j < nk; ++j)
                if (!mask[static_cast<std::size_t>(i * nk + j)]) x[j] = -std::numeric_limits<T>::infinity();
            T& largest = largest_[static_cast<std::size_t>(state + i)];
            T& sum = sum_[static_cast<std::size_t>(state + i)];
            const T now = std::max(largest, x.maxCoeff());
            if (now == -std::numeric_limits<T>::infinity()) {  // nothing seen yet: -inf - -inf would be NaN
              x.setZero();
              continue;
            }
            const T fade = std::exp(largest - now);
            x = (x - now).exp();
            sum = sum * fade + x.sum();
            if (fade != 1) line(weighted_.data() + (state + i) * head_dim_, head_dim_) *= fade;
            largest = now;
          }
          gemm_nn(s, v, matrix_view<T>(weighted_.data() + state * head_dim_, nq, head_dim_), T{1}, T{1});
        }
      }
    }
  }
}

template <class T>
void online_attention<T>::finish(std::span<T> out) const {
  using line_of = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;
  using line_to = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
  for (num row = 0; row < rows_; ++row)
    for (num head = 0; head < heads_; ++head)
      for (num i = 0; i < tokens_; ++i) {
        const num at = (row * heads_ + head) * tokens_ + i;
        const T sum = sum_[static_cast<std::size_t>(at)];
        line_to(out.data() + ((i * rows_ + row) * heads_ + head) * head_dim_, head_dim_) =
            line_of(weighted_.data() + at * head_dim_, head_dim_) * (sum > 0 ? 1 / sum : T{0});
      }
}

template class online_attention<float>;
template class online_attention<double>;

}  // namespace shardplan::runtime
