// SPDX-License-Identifier: Apache-2.0
// Connections of TCP that never wait by themselves: whoever uses them waits, as long as it likes.
#ifndef SHARDPLAN_RUNTIME_ENGINE_NCCL_SOCKET_HPP
#define SHARDPLAN_RUNTIME_ENGINE_NCCL_SOCKET_HPP

#include <shardplan/meta.hpp>
#include <string>
#include <string_view>
#include <utility>  // exchange
#include <vector>

namespace shardplan::runtime::detail {

/// A descriptor, closed at the end.
class descriptor {
 public:
  explicit descriptor(int fd = -1) : fd_(fd) {}
  ~descriptor();
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_;
};

/// Listens on the port on every address of this machine, IPv6 and IPv4. engine_error naming the port.
std::vector<descriptor> listen_on(num port);
/// The next connection that waits; not open when there is none.
descriptor accept_one(const descriptor& listener);
/// One attempt; not open when it fails, with the reason. engine_error when the name is unknown.
descriptor connect_to(const std::string& address, num port, int wait_ms, std::string& reason);

/// One connection: what is sent is kept until the other end takes it.
class connection {
 public:
  explicit connection(descriptor fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  bool open() const { return fd_.open(); }
  void close() { fd_ = descriptor(); }
  void send(std::string_view bytes) { out_ += bytes; }
  bool has_to_send() const { return out_begin_ < out_.size(); }
  /// Sends and receives what goes at once; closes when the other end has.
  void move();
  /// What has come and was not taken yet.
  std::string_view received() const { return std::string_view(in_).substr(in_begin_); }
  void take(std::size_t size);

 private:
  descriptor fd_;
  std::string in_, out_;
  std::size_t in_begin_ = 0, out_begin_ = 0;
};

}  // namespace shardplan::runtime::detail
#endif  // SHARDPLAN_RUNTIME_ENGINE_NCCL_SOCKET_HPP
