// SPDX-License-Identifier: Apache-2.0
// The life of a run: threads are started, watched, and joined or left behind.
#include <algorithm>  // clamp
#include <thread>     // jthread

#include "runtime/engine/threads/world.hpp"

namespace shardplan::runtime {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using outcome = detail::thread_world::outcome;

/// How long the rank that a timeout is about may still take to come back.
constexpr milliseconds stalled_grace{250};

/// Runs the body; how it failed goes to the world.
void run_body(const std::shared_ptr<detail::thread_world>& world, num rank) {
  const std::string name = "rank " + std::to_string(rank) + ": ";
  try {
    thread_communicator comm(thread_engine(world, rank));
    world->body(comm);
    {
      const std::lock_guard lock(world->mutex);
      world->records[static_cast<std::size_t>(rank)] = std::move(comm.ledger());
    }
    world->status(rank).returned = true;
  } catch (const run_aborted&) {
    if (!world->aborted) world->fail(outcome::engine, name + "run_aborted thrown by the body");
  } catch (const collective_error& e) {
    world->fail(outcome::engine, e.what());
  } catch (const input_error& e) {
    world->fail(outcome::input, name + e.what());
  } catch (const plan_error& e) {
    world->fail(outcome::plan, name + e.what());
  } catch (const std::exception& e) {
    world->fail(outcome::engine, name + e.what());
  } catch (...) {
    world->fail(outcome::engine, name + "an exception that is no std::exception");
  }
}

void run_rank(std::shared_ptr<detail::thread_world> world, num rank) {
  run_body(world, rank);
  {
    const std::lock_guard lock(world->mutex);
    world->status(rank).ended = true;
    ++world->num_ended;
  }
  world->changed.notify_all();
}

}  // namespace

std::vector<recorder> run(num world_size, milliseconds timeout, std::function<void(thread_communicator&)> body) {
  if (world_size < 1) throw input_error("a world of " + std::to_string(world_size) + " ranks: at least 1");
  if (timeout.count() < 1) throw input_error("a timeout of " + std::to_string(timeout.count()) + " ms: at least 1");
  const auto world = std::make_shared<detail::thread_world>(world_size, timeout, std::move(body));

  std::vector<std::jthread> threads;
  try {
    threads.reserve(static_cast<std::size_t>(world_size));
    for (num r = 0; r < world_size; ++r) threads.emplace_back(run_rank, world, r);
  } catch (const std::exception& e) {
    world->fail(outcome::engine, "rank " + std::to_string(threads.size()) + ": no thread: " + e.what());
  }
  const num num_started = static_cast<num>(threads.size());

  // A return or a failure wakes the watch at once; it looks by itself often enough to be punctual about timeouts.
  const milliseconds interval = std::clamp(timeout / 16, milliseconds(1), milliseconds(20));
  std::unique_lock lock(world->mutex);
  while (world->num_ended < num_started && world->how == outcome::good) {
    world->changed.wait_for(lock, interval);
    lock.unlock();
    world->watch();
    lock.lock();
  }
  const auto deadline = steady_clock::now() + (world->how == outcome::stalled ? stalled_grace : timeout);
  world->changed.wait_until(lock, deadline, [&] { return world->num_ended == num_started; });
  for (num r = 0; r < num_started; ++r)
    if (!world->status(r).ended) threads[static_cast<std::size_t>(r)].detach();
  lock.unlock();
  for (std::jthread& t : threads)
    if (t.joinable()) t.join();

  lock.lock();  // ranks left behind may still fail, in vain
  switch (world->how) {
    case outcome::good:
      break;
    case outcome::input:
      throw input_error(world->why);
    case outcome::plan:
      throw plan_error(world->why);
    case outcome::engine:
    case outcome::stalled:
      throw engine_error(world->why);
  }
  lock.unlock();
  const std::string lost = world->lost_messages();
  if (!lost.empty()) throw engine_error(lost);
  return std::move(world->records);
}

}  // namespace shardplan::runtime
