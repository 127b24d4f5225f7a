// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/mpi/signals.hpp"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>

namespace shardplan::runtime::detail {

namespace {

constexpr std::chrono::milliseconds request_grace{500};

volatile sig_atomic_t requested = 0;
volatile sig_atomic_t limited = 0;  // while a time_limit lives
volatile sig_atomic_t expired_status = 0, request_status = 0;
const char* volatile expired_text = nullptr;
const char* volatile request_text = nullptr;

void set_alarm(std::chrono::milliseconds in) {
  itimerval when{};
  when.it_value.tv_sec = in.count() / 1000;
  when.it_value.tv_usec = in.count() % 1000 * 1000;
  ::setitimer(ITIMER_REAL, &when, nullptr);  // no more than a call of the system, so that handlers may call it
}

void on_request(int) {
  requested = 1;
  if (limited == 0) return;
  expired_text = request_text;
  expired_status = request_status;
  set_alarm(request_grace);
}

void on_expired(int) {
  if (limited == 0) return;  // set by a request that another thread handled as the limit went
  if (expired_text != nullptr) {
    const ssize_t ignored = ::write(STDERR_FILENO, expired_text, std::strlen(expired_text));
    static_cast<void>(ignored);
  }
  ::_exit(static_cast<int>(expired_status));
}

void handle(int number, void (*by)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = by;
  action.sa_flags = flags;
  ::sigaction(number, &action, nullptr);
}

}  // namespace

void note_requests_to_end() { handle(SIGTERM, on_request, static_cast<int>(SA_RESETHAND | SA_RESTART)); }

bool told_to_end() { return requested != 0; }

time_limit::time_limit(std::chrono::milliseconds limit, const limit_end& at_limit, const limit_end& at_request) {
  expired_text = at_limit.text;
  expired_status = at_limit.status;
  request_text = at_request.text;
  request_status = at_request.status;
  handle(SIGALRM, on_expired, SA_RESTART);
  limited = 1;
  set_alarm(limit);
}

time_limit::~time_limit() {
  limited = 0;
  set_alarm(std::chrono::milliseconds(0));
}

}  // namespace shardplan::runtime::detail
