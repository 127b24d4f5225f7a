// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/nccl/socket.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>  // strerror
#include <memory>

#include "runtime/error.hpp"

namespace shardplan::runtime::detail {

namespace {

void prepare(int fd) {
  const int on = 1;
  static_cast<void>(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  static_cast<void>(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
  static_cast<void>(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
}

bool try_later() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

/// A port that nobody listens on may be the one the system gave to this very connection.
bool connects_itself(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof here, there_size = sizeof there;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) == 0 && here_size == there_size &&
         std::memcmp(&here, &there, here_size) == 0;
}

using address_list = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

int look_up(const char* name, num port, int flags, addrinfo*& found) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  return getaddrinfo(name, std::to_string(port).c_str(), &hints, &found);
}

}  // namespace

descriptor::~descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

std::vector<descriptor> listen_on(num port) {
  addrinfo* found = nullptr;
  if (const int code = look_up(nullptr, port, AI_PASSIVE, found); code != 0)
    throw engine_error("listening on port " + std::to_string(port) + ": " + gai_strerror(code));
  const address_list list(found, freeaddrinfo);
  std::vector<descriptor> out;
  std::string reason = "this machine has no address";
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    descriptor fd(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    const int on = 1;
    if (!fd.open()) continue;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd.get(), a->ai_addr, a->ai_addrlen) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
      reason = std::strerror(errno);
      if (errno == EADDRINUSE) {
        out.clear();
        break;
      }
      continue;
    }
    prepare(fd.get());
    out.push_back(std::move(fd));
  }
  if (out.empty())
    throw engine_error("rank 0 cannot listen on port " + std::to_string(port) + ": " + reason +
                       "; where a launcher itself uses MASTER_PORT, set SHARDPLAN_MASTER_PORT to a free one");
  return out;
}

descriptor accept_one(const descriptor& listener) {
  descriptor fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (fd.open()) prepare(fd.get());
  return fd;
}

descriptor connect_to(const std::string& address, num port, int wait_ms, std::string& reason) {
  addrinfo* found = nullptr;
  if (const int code = look_up(address.c_str(), port, 0, found); code != 0) {
    reason = gai_strerror(code);
    if (code == EAI_AGAIN) return descriptor();
    throw engine_error("MASTER_ADDR: '" + address + "': " + reason);
  }
  const address_list list(found, freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    descriptor fd(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (!fd.open()) continue;
    prepare(fd.get());
    int error = ::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd wait{fd.get(), POLLOUT, 0};
      socklen_t size = sizeof error;
      if (::poll(&wait, 1, wait_ms) <= 0)
        error = ETIMEDOUT;
      else
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0 && !connects_itself(fd.get())) return fd;
    reason = std::strerror(error);
  }
  return descriptor();
}

void connection::move() {
  while (open() && has_to_send()) {
    const ssize_t sent = ::send(fd(), out_.data() + out_begin_, out_.size() - out_begin_, MSG_NOSIGNAL);
    if (sent < 0) {
      if (!try_later()) out_begin_ = out_.size();  // what has come may still be read
      break;
    }
    out_begin_ += static_cast<std::size_t>(sent);
  }
  if (!has_to_send()) out_.clear(), out_begin_ = 0;
  std::array<char, 16384> chunk;
  while (open()) {
    const ssize_t got = ::recv(fd(), chunk.data(), chunk.size(), 0);
    if (got > 0) {
      in_.append(chunk.data(), static_cast<std::size_t>(got));
    } else {
      if (got == 0 || !try_later()) close();
      break;
    }
  }
}

void connection::take(std::size_t size) {
  in_begin_ += size;
  if (in_begin_ < in_.size() && in_begin_ < 65536) return;
  in_.erase(0, in_begin_);
  in_begin_ = 0;
}

}  // namespace shardplan::runtime::detail
