// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/rank.hpp"

#include <algorithm>  // copy
#include <system_error>
#include <thread>  // jthread

#include "runtime/engine/nccl/remote_error.hpp"

namespace shardplan::runtime::detail {

namespace {

/// NCCL may notice that another rank has failed before that rank has said so.
constexpr std::chrono::milliseconds failure_grace{500};

std::size_t at(num i) { return static_cast<std::size_t>(i); }

std::string to_text(const communicator_id& id) { return {id.data(), id.size()}; }

communicator_id to_id(const letter& l, num from) {
  communicator_id id{};
  if (l.text.size() != id.size())
    throw collective_error("rank " + std::to_string(from) + " calls " + describe(l.call) +
                           " and hands over no id of a communicator");
  std::copy(l.text.begin(), l.text.end(), id.begin());
  return id;
}

std::vector<num> without(const std::vector<num>& ranks, num index) {
  std::vector<num> others = ranks;
  others.erase(others.begin() + index);
  return others;
}

}  // namespace

nccl_rank::nccl_rank(const process_place& place, std::chrono::milliseconds timeout,
                     std::shared_ptr<device_library> library)
    : mail_(place, timeout), library_(std::move(library)) {
  mail_.on_progress([this] { go_on(); });
}

template <class F>
void nccl_rank::or_abort(const nccl_membership& m, const request& r, F&& f) {
  try {
    mail_.check();
    go_on();
    f();
  } catch (const collective_error&) {
    abort();
    throw;
  } catch (const engine_error& e) {  // of NCCL or CUDA: who and where is known here alone
    abort();
    if (dynamic_cast<const remote_error*>(&e) != nullptr && mail_.hears_of_failure(failure_grace)) throw run_aborted{};
    throw collective_error("rank " + std::to_string(mail_.rank()) + " calls " + describe(r) + " with " +
                           describe_ranks(m.ranks) + ": " + e.what());
  } catch (...) {
    abort();
    throw;
  }
}

void nccl_rank::begin(const nccl_membership& m, const request& r) {
  or_abort(m, r, [&] {
    if (r.what == operation::send || r.what == operation::receive) {
      require_peer(r, static_cast<num>(m.ranks.size()), mail_.rank());
      return r.what == operation::send ? send(m, r) : receive(m, r);
    }
    return m.ranks.size() == 1 ? collect_alone(r) : collect(m, r);
  });
}

void nccl_rank::finish(const nccl_membership& m, const request& r) {
  device_communicator* const line = line_of(m, r);
  if (line == nullptr) return;
  const std::vector<num> others =
      r.what == operation::receive ? std::vector<num>{m.ranks[at(r.peer)]} : without(m.ranks, m.index);
  or_abort(m, r, [&] { wait_until_done(*line, r, others); });
}

device_communicator* nccl_rank::line_of(const nccl_membership& m, const request& r) {
  if (r.what == operation::send) return nullptr;  // a copy is on its way
  if (r.what != operation::receive) {
    const auto found = lines_.find(m.ranks);
    return found == lines_.end() ? nullptr : found->second.get();
  }
  const auto found = incoming_.find({address_of_messages(m.ranks, r), m.ranks[at(r.peer)]});
  return found == incoming_.end() ? nullptr : found->second.line.get();
}

void nccl_rank::collect_alone(const request& r) {
  const request* const call = &r;
  const num rank = mail_.rank();
  if (const std::string wrong = disagreement(std::span(&call, 1), std::span(&rank, 1)); !wrong.empty())
    throw collective_error(wrong);
  if (r.out_size > 0 && r.in != r.out) library_->copy(r.in, r.out_bytes(), r.out);
}

void nccl_rank::collect(const nccl_membership& m, const request& r) {
  const std::vector<num> others = without(m.ranks, m.index);
  const letter_address address = address_of_calls(m.ranks);
  std::unique_ptr<device_communicator>& line = lines_[m.ranks];
  const bool makes = line == nullptr && r.what != operation::barrier;  // the same on all members
  communicator_id id{};
  if (makes && m.index == 0) id = library_->make_id();
  mail_.send(others, letter(address, r, makes && m.index == 0 ? to_text(id) : ""));
  const std::vector<letter> letters = mail_.take(address, others, r);
  std::vector<const request*> calls;
  for (const letter& l : letters) calls.push_back(&l.call);
  calls.insert(calls.begin() + m.index, &r);
  if (const std::string wrong = disagreement(calls, m.ranks); !wrong.empty()) throw collective_error(wrong);
  if (makes) {
    if (m.index != 0) id = to_id(letters[0], m.ranks[0]);
    line = library_->connect(id, static_cast<num>(m.ranks.size()), m.index);
  }
  if (const auto steps = nccl_steps_of(r, m.index, static_cast<num>(m.ranks.size())); !steps.empty())
    start(*line, r, steps, others);
}

void nccl_rank::send(const nccl_membership& m, const request& r) {
  const num to = m.ranks[at(r.peer)];
  const letter_address address = address_of_messages(m.ranks, r);
  channel& c = outgoing_[{address, to}];
  if (r.in_size > 0 || to == mail_.rank())  // of nothing the letter is all
    c.waiting.push_back({without_buffers(r), library_->keep(r.in, r.in_bytes())});
  if (to == mail_.rank()) return;
  std::string new_id;
  if (c.line == nullptr) {
    const communicator_id id = library_->make_id();
    c.line = library_->connect(id, 2, 0);
    new_id = to_text(id);
  }
  mail_.send(to, letter(address, r, new_id));
  go_on();
}

void nccl_rank::receive(const nccl_membership& m, const request& r) {
  const num from = m.ranks[at(r.peer)], me = mail_.rank();
  const letter_address address = address_of_messages(m.ranks, r);
  if (from == me) {
    std::deque<channel::parcel>& sent = outgoing_[{address, me}].waiting;
    if (sent.empty())
      throw collective_error("rank " + std::to_string(me) + " calls " + describe(r) + ": it has sent itself nothing");
    const channel::parcel first = std::move(sent.front());
    sent.pop_front();
    require_same_message(first.call, me, r, me);
    return library_->copy(first.data.get(), r.out_bytes(), r.out);
  }
  const std::vector<num> others{from};
  const letter l = std::move(mail_.take(address, others, r).front());
  require_same_message(l.call, from, r, me);
  channel& c = incoming_[{address, from}];
  if (c.line == nullptr) c.line = library_->connect(to_id(l, from), 2, 1);
  if (r.out_size == 0) return;
  wait_until_ready(*c.line, r, others);
  mail_.send(from, letter(address_of_fetches(address), r, ""));
  start(*c.line, r, {{nccl_function::receive, -1, 0, r.out_size, 0}}, others);
}

void nccl_rank::wait_until_ready(device_communicator& line, const request& r, const std::vector<num>& others) {
  mail_.wait([&] { return line.ready(); }, [&] { return others; }, false, r);
}

void nccl_rank::wait_until_done(device_communicator& line, const request& r, const std::vector<num>& others) {
  mail_.wait([&] { return line.done(); }, [&] { return others; }, false, r);
}

/// When it returns, this rank's part is on the stream: what the others have there does not wait for what this rank does
/// next, and calls are on the streams of all ranks in the order that was agreed upon.
void nccl_rank::start(device_communicator& line, const request& r, const std::vector<nccl_step>& steps,
                      const std::vector<num>& others) {
  const device_call call{r.type, r.reduce, r.in, r.in_size, r.out, r.out_size};
  wait_until_ready(line, r, others);
  if (line.stages(call)) wait_until_done(line, r, others);
  line.start(call, steps);
  wait_until_ready(line, r, others);
}

/// Sends what has been fetched, and frees what has been sent. Called in all waits. What nobody has come to receive
/// stays off the GPU: a send would occupy a part of it, and communicators made meanwhile might wait for the whole.
void nccl_rank::go_on() {
  for (auto& [key, c] : outgoing_) {
    if (c.line == nullptr) continue;
    if (!c.under_way.empty() && c.line->done()) c.under_way.clear();
    while (mail_.take_if_there(address_of_fetches(key.first), key.second)) ++c.fetched;
    for (; c.fetched > 0 && !c.waiting.empty() && c.line->ready(); c.waiting.pop_front(), --c.fetched) {
      channel::parcel& p = c.waiting.front();
      const num size = p.call.in_size;
      c.line->start({p.call.type, p.call.reduce, p.data.get(), size, nullptr, 0},
                    {{nccl_function::send, 0, -1, size, 1}});
      c.under_way.push_back(std::move(p.data));
    }
  }
}

void nccl_rank::flush(const nccl_membership& m, const request& r) {
  const letter_address address = address_of_messages(m.ranks, r);
  const auto waiting = [&] {
    std::vector<num> ranks;
    for (const auto& [key, c] : outgoing_)
      if (key.first == address && c.line != nullptr && (!c.waiting.empty() || !c.line->ready()))
        ranks.push_back(key.second);
    return ranks;
  };
  or_abort(m, r, [&] { mail_.wait([&] { return go_on(), waiting().empty(); }, waiting, true, r); });
}

void nccl_rank::finish_sending(const request& call) {
  const auto unsent = [&] {
    std::vector<num> ranks;
    for (const auto& [key, c] : outgoing_)
      if (c.line != nullptr && !(c.waiting.empty() && c.under_way.empty())) ranks.push_back(key.second);
    return ranks;
  };
  mail_.wait([&] { return go_on(), unsent().empty(); }, unsent, false, call);
  for (const auto& [key, c] : outgoing_)
    if (c.line == nullptr && !c.waiting.empty())
      throw collective_error("rank " + std::to_string(mail_.rank()) +
                             " never received what it sent itself: " + describe(c.waiting.front().call));
}

void nccl_rank::abort() noexcept {
  std::vector<std::jthread> all;  // at once, because each may take its time
  const auto end = [&](device_communicator* line) {
    if (line == nullptr) return;
    try {
      all.emplace_back([line] { line->abort(); });
    } catch (const std::system_error&) {  // no thread to be had
      line->abort();
    }
  };
  for (const auto& [ranks, line] : lines_) end(line.get());
  for (const auto* channels : {&outgoing_, &incoming_})
    for (const auto& [key, c] : *channels) end(c.line.get());
  all.clear();
  lines_.clear();
  outgoing_.clear();
  incoming_.clear();
}

}  // namespace shardplan::runtime::detail
