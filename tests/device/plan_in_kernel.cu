// SPDX-License-Identifier: Apache-2.0
// What a plan says of a rank, used in device code: data, so that no function of the library is called from a kernel.
#include <shardplan/shardplan.hpp>

using namespace shardplan;

struct qwen3 final {
  static constexpr model_spec spec = models::qwen3_30b_a3b;
};
struct mine final : plan<fully_sharded<2>, context_parallel<2, ring, zigzag>, tensor_parallel<4>, expert_parallel<8>> {
};
using result = checked<mine, qwen3>;

/// One block per head of this rank; sums what the threads were given.
template <class Result>
__global__ void sum_heads(const float* values, float* sums, int length) {
  static_assert(Result::heads_per_rank % Result::kv_heads_per_rank == 0);
  __shared__ float kept[Result::model.head_dim];  // (head_dim)
  kept[threadIdx.x] = 0;
  for (int i = 0; i < length; ++i)
    kept[threadIdx.x] += values[(i * Result::heads_per_rank + blockIdx.x) * Result::model.head_dim + threadIdx.x];
  sums[blockIdx.x * Result::model.head_dim + threadIdx.x] = kept[threadIdx.x] / Result::world_size;
}

/// The place on tp of the rank that each thread asks about: of a view, degrees and strides are data too.
template <class View>
__global__ void place_on_tp(const int* ranks, int* places) {
  static_assert(View::size == 16);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  places[i] = ranks[i] / View::template stride<axis::tp> % View::template degree<axis::tp>;
}
constexpr auto dense = dense_mesh<mine>();
constexpr auto shards = select<axis::fsdp_cp>(flatten<axis::fsdp_cp, axis::fsdp, axis::cp>(dense));
constexpr auto both = compose(select<axis::tp>(dense), shards);
static_assert(unflatten<axis::fsdp_cp, axis_of<axis::fsdp, 2>, axis_of<axis::cp, 2>>(root_mesh<mine>()) == dense);
static_assert(group<axis::ep, axis::etp>(expert_mesh<mine>(), 9).first == 8 && coordinates(both, 5)[1] == 1);

void launch(const int* ranks, int* places) {
  place_on_tp<std::remove_const_t<decltype(both)>><<<1, 16>>>(ranks, places);
}

void launch(const float* values, float* sums, int length) {
  sum_heads<result><<<result::heads_per_rank, result::model.head_dim>>>(values, sums, length);
}

static_assert(!LegalPlan<plan<tensor_parallel<3>>, qwen3>);
static_assert(literals::operator""_plan<"tp=2,cp=2/ring">().cp == 2);
