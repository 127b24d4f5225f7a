// SPDX-License-Identifier: Apache-2.0
// The life of a process under MPI: its beginning, how it tells the others that it ends, its end.
#include <cstdlib>  // _Exit

#include "runtime/engine/mpi/mail.hpp"
#include "runtime/engine/mpi/mpi.hpp"
#include "runtime/engine/mpi/signals.hpp"

namespace shardplan::runtime {

using namespace detail;

namespace {

constexpr std::chrono::milliseconds abort_grace{2000};

/// A communicator of our own, so that nothing of others meets our messages. Not MPI_Comm_dup, which waits for good.
MPI_Comm duplicate_world(int rank) {
  MPI_Comm own = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  require_success(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), rank, "MPI_Comm_set_errhandler");
  require_success(MPI_Comm_idup(MPI_COMM_WORLD, &own, &request), rank, "MPI_Comm_idup");
  require_success(MPI_Wait(&request, MPI_STATUS_IGNORE), rank, "MPI_Wait");
  require_success(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), rank, "MPI_Comm_set_errhandler");
  return own;
}

}  // namespace

mpi_communicator::mpi_communicator(std::shared_ptr<mpi_mail> mail)
    : basic_communicator(mpi_engine(mail)), mail_(std::move(mail)) {}

std::vector<num> mpi_communicator::others() const {
  std::vector<num> out;
  for (num r = 0; r < world_size(); ++r)
    if (r != rank()) out.push_back(r);
  return out;
}

std::chrono::milliseconds mpi_communicator::timeout() const { return mail_->timeout(); }
std::optional<verdict> mpi_communicator::verdict_of(num rank) const { return mail_->verdict_of(rank); }
std::string mpi_communicator::present_wait() const { return mail_->present_wait(); }
bool mpi_communicator::told_to_end() const { return detail::told_to_end(); }

void mpi_communicator::tell(const verdict& mine, std::chrono::milliseconds patience) {
  mail_->send(others(), pack(mine));
  mail_->go_on_until([&] { return mail_->all_sent(); }, patience);
}

void mpi_communicator::wait_for_verdicts(std::chrono::milliseconds patience) {
  mail_->go_on_until(
      [&] {
        if (told_to_end()) return true;
        for (num r : others())
          if (!mail_->verdict_of(r)) return false;
        return true;
      },
      patience);
}

void mpi_communicator::tell_last(last_word word, std::chrono::milliseconds patience) {
  mail_->send(others(), pack(word));
  mail_->go_on_until([&] { return mail_->all_sent(); }, patience);
}

std::optional<last_word> mpi_communicator::wait_for_last(std::chrono::milliseconds patience) {
  mail_->go_on_until([&] { return mail_->last().has_value() || told_to_end(); }, patience);
  return mail_->last();
}

void mpi_communicator::require_all_received() {
  rank_group all;
  all.index = rank();
  all.steps.push_back({world_size(), 1});
  label(phase::check);
  barrier(group(all, {}));  // a rank's messages come before what it tells in the barrier
  if (const std::string lost = mail_->lost_message(); !lost.empty()) throw collective_error(lost);
}

mpi_process::mpi_process(const mpi_options& options) : options_(options) {
  const time_limit limit(
      options.timeout, {"shardplan: not all ranks have come to MPI_Init within the timeout\n", engine_error::exit_code},
      {"shardplan: told to end by a signal while ranks wait for each other in MPI_Init\n", engine_error::exit_code});
  // From here on: Open MPI's launcher can hang for good when a process ends while it makes itself known to it.
  note_requests_to_end();
  int given = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &given);  // ends the process when it fails
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  world_ = std::make_unique<mpi_communicator>(std::make_shared<mpi_mail>(duplicate_world(rank), options));
}

void mpi_process::finish(int exit_code) {
  // All is said: a launcher that ends the others as soon as one has returned a status which is not 0 is no failure.
  const time_limit limit(
      options_.timeout,
      {"shardplan: not all ranks have come to MPI_Finalize within the timeout\n", engine_error::exit_code},
      {nullptr, exit_code});
  MPI_Finalize();
}

void mpi_process::abort(int exit_code) {
  const limit_end silent{nullptr, exit_code};
  const time_limit limit(abort_grace, silent, silent);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace shardplan::runtime
