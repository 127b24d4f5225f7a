// SPDX-License-Identifier: Apache-2.0
// Which calls of NCCL a collective is made of.
#include <doctest/doctest.h>

#include "runtime/engine/nccl/steps.hpp"

namespace {

using namespace shardplan;
using namespace shardplan::runtime;
using steps = std::vector<nccl_step>;
using kind = nccl_function;

request call(operation what, num in, num out, std::span<const num> counts = {}, num peer = -1) {
  request r;
  r.what = what;
  r.in_size = in;
  r.out_size = out;
  r.counts = counts;
  r.peer = peer;
  return r;
}

}  // namespace

TEST_CASE("steps: one call where parts are equal") {
  CHECK(nccl_steps_of(call(operation::all_reduce, 7, 7), 1, 3) == steps{{kind::all_reduce, 0, 0, 7, -1}});
  CHECK(nccl_steps_of(call(operation::all_gather, 5, 15), 2, 3) == steps{{kind::all_gather, 0, 0, 5, -1}});
  CHECK(nccl_steps_of(call(operation::reduce_scatter, 15, 5), 2, 3) == steps{{kind::reduce_scatter, 0, 0, 5, -1}});
  const std::vector<num> equal{5, 5, 5}, none{0, 0, 0};
  CHECK(nccl_steps_of(call(operation::all_gather, 5, 15, equal), 2, 3) == steps{{kind::all_gather, 0, 0, 5, -1}});
  CHECK(nccl_steps_of(call(operation::reduce_scatter, 15, 5, equal), 2, 3) ==
        steps{{kind::reduce_scatter, 0, 0, 5, -1}});
  CHECK(nccl_steps_of(call(operation::all_gather, 0, 0, none), 2, 3) == steps{});
  CHECK(nccl_steps_of(call(operation::broadcast, 4, 4, {}, 1), 1, 3) == steps{{kind::broadcast, 0, 0, 4, 1}});
  CHECK(nccl_steps_of(call(operation::broadcast, 4, 4, {}, 1), 0, 3) == steps{{kind::broadcast, -1, 0, 4, 1}});
}

TEST_CASE("steps: a broadcast from each, or a reduction to each, where parts differ") {
  const std::vector<num> counts{2, 0, 5, 1};
  CHECK(nccl_steps_of(call(operation::all_gather, 5, 8, counts), 2, 4) ==
        steps{{kind::broadcast, -1, 0, 2, 0}, {kind::broadcast, 0, 2, 5, 2}, {kind::broadcast, -1, 7, 1, 3}});
  CHECK(nccl_steps_of(call(operation::reduce_scatter, 8, 5, counts), 2, 4) ==
        steps{{kind::reduce, 0, -1, 2, 0}, {kind::reduce, 2, 0, 5, 2}, {kind::reduce, 7, -1, 1, 3}});
}

TEST_CASE("steps: all_to_all and gather send to whom they must, and copy what stays") {
  const std::vector<num> sent{3, 0, 2}, received{0, 0, 4};
  request r = call(operation::all_to_all, 5, 4, sent);
  r.receive_counts = received;
  CHECK(nccl_steps_of(r, 1, 3) ==
        steps{{kind::send, 0, -1, 3, 0}, {kind::send, 3, -1, 2, 2}, {kind::receive, -1, 0, 4, 2}});
  const std::vector<num> to_me{1, 6, 2}, from{3, 6, 2};
  request stays = call(operation::all_to_all, 11, 9, from);
  stays.receive_counts = to_me;
  CHECK(nccl_steps_of(stays, 1, 3)[2] == nccl_step{kind::copy, 3, 1, 6, 1});

  const std::vector<num> counts{2, 3, 0};
  CHECK(nccl_steps_of(call(operation::gather, 3, 5, counts, 1), 1, 3) ==
        steps{{kind::receive, -1, 0, 2, 0}, {kind::copy, 0, 2, 3, 1}});
  CHECK(nccl_steps_of(call(operation::gather, 2, 0, counts, 1), 0, 3) == steps{{kind::send, 0, -1, 2, 1}});
  CHECK(nccl_steps_of(call(operation::gather, 0, 0, counts, 1), 2, 3) == steps{});
}

TEST_CASE("steps: none without elements") {
  for (operation what : {operation::all_reduce, operation::all_gather, operation::reduce_scatter, operation::broadcast,
                         operation::barrier})
    CHECK(nccl_steps_of(call(what, 0, 0, {}, 0), 0, 2).empty());
}
