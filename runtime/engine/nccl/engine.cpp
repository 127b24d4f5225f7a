// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/nccl.hpp"
#include "runtime/engine/nccl/rank.hpp"

namespace shardplan::runtime {

using namespace detail;

num nccl_group::size() const { return static_cast<num>(membership_->ranks.size()); }
num nccl_group::index() const { return membership_->index; }
num nccl_group::member(num i) const { return membership_->ranks.at(static_cast<std::size_t>(i)); }
axis_set nccl_group::axes() const { return membership_->axes; }

nccl_engine::nccl_engine(std::shared_ptr<nccl_rank> state) : state_(std::move(state)) {}
nccl_engine::nccl_engine(nccl_engine&&) noexcept = default;
nccl_engine::~nccl_engine() = default;

num nccl_engine::rank() const { return state_->mail().rank(); }
num nccl_engine::world_size() const { return state_->mail().world_size(); }
void nccl_engine::check_abort() const { state_->mail().check(); }

nccl_group nccl_engine::group(const rank_group& ranks, axis_set axes) {
  for (const auto& known : groups_)
    if (known->axes == axes && known->asked == ranks) return nccl_group(known.get());
  groups_.push_back(std::make_unique<nccl_membership>(
      nccl_membership{ranks, axes, ranks.index, require_members(ranks, axes, rank(), world_size())}));
  return nccl_group(groups_.back().get());
}

void nccl_engine::begin(const nccl_group& g, const request& r) { state_->begin(*g.membership_, r); }
void nccl_engine::finish(const nccl_group& g, const request& r) { state_->finish(*g.membership_, r); }
void nccl_engine::flush(const nccl_group& g, const request& r) { state_->flush(*g.membership_, r); }
void nccl_engine::give_up() noexcept { state_->abort(); }

// ---- what processes tell each other

nccl_communicator::nccl_communicator(const process_place& place, std::chrono::milliseconds timeout,
                                     std::shared_ptr<device_library> library)
    : nccl_communicator(std::make_shared<nccl_rank>(place, timeout, std::move(library))) {}

nccl_communicator::nccl_communicator(std::shared_ptr<nccl_rank> state)
    : basic_communicator(nccl_engine(state)), state_(std::move(state)) {}

std::chrono::milliseconds nccl_communicator::timeout() const { return state_->mail().timeout(); }
std::optional<verdict> nccl_communicator::verdict_of(num rank) const { return state_->mail().verdict_of(rank); }
std::string nccl_communicator::present_wait() const { return state_->mail().present_wait(); }

void nccl_communicator::tell(const verdict& mine, std::chrono::milliseconds patience) {
  state_->mail().send(everybody, to_letter(mine));
  state_->mail().flush(patience);
}

void nccl_communicator::wait_for_verdicts(std::chrono::milliseconds patience) {
  const auto all_known = [&] {
    for (num r = 0; r < world_size(); ++r)
      if (r != rank() && !verdict_of(r) && !state_->mail().is_lost(r)) return false;
    return true;
  };
  state_->mail().go_on_until(all_known, patience);
}

void nccl_communicator::tell_last(last_word word, std::chrono::milliseconds patience) {
  state_->mail().send(everybody, to_letter(word));
  state_->mail().flush(patience);
}

std::optional<last_word> nccl_communicator::wait_for_last(std::chrono::milliseconds patience) {
  state_->mail().go_on_until([&] { return state_->mail().last() || state_->mail().is_lost(0); }, patience);
  return state_->mail().last();
}

void nccl_communicator::leave() { state_->mail().close(); }

void nccl_communicator::require_all_received() {
  rank_group all;
  all.index = rank();
  all.steps.push_back({world_size(), 1});
  label(phase::check);
  barrier(group(all, {}));  // a rank's messages come before what it tells in the barrier
  if (const std::string lost = state_->mail().lost_message(); !lost.empty()) throw collective_error(lost);
  request end;
  end.what = operation::barrier;
  end.why = phase::check;
  state_->finish_sending(end);
}

}  // namespace shardplan::runtime
