// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_gpu/rings.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>  // min
#include <cstring>    // memcpy
#include <stdexcept>
#include <utility>  // pair

namespace simulated {

rings::rings(const std::string& name, int n, int me, const std::string& gpu)
    : n_(n), me_(me), size_(sizeof(header) + static_cast<std::size_t>(n) * static_cast<std::size_t>(n) * sizeof(ring)) {
  const std::string file = "/shardplan-simulated-nccl-" + name;
  const int fd = shm_open(file.c_str(), O_CREAT | O_RDWR, 0600);
  if (fd < 0) throw std::runtime_error("no shared memory");
  struct stat there {};
  // Of members with another n one may want more: never cut off what another uses.
  const bool large = fstat(fd, &there) == 0 && static_cast<std::size_t>(there.st_size) >= size_;
  void* const at = large || ftruncate(fd, static_cast<off_t>(size_)) == 0
                       ? mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                       : MAP_FAILED;
  close(fd);
  if (at == MAP_FAILED) throw std::runtime_error("no shared memory");
  header_ = static_cast<header*>(at);
  rings_ = reinterpret_cast<ring*>(static_cast<char*>(at) + sizeof(header));
  int none = 0;
  member& mine = header_->members[me];
  int absent = 0;
  const bool same = header_->n.compare_exchange_strong(none, n) || none == n;
  if (!same || !mine.there.compare_exchange_strong(absent, 1)) {
    munmap(at, size_);
    throw std::runtime_error(same ? "a rank that is there already" : "ranks that know another number of ranks");
  }
  std::strncpy(mine.gpu, gpu.c_str(), sizeof mine.gpu - 1);
  mine.there = 2;
  if (header_->num_there.fetch_add(1) + 1 == n) shm_unlink(file.c_str());  // all have opened it
}

rings::~rings() { munmap(header_, size_); }

bool rings::all_there() const { return header_->num_there == n_; }

std::pair<int, int> rings::duplicate() const {
  for (int i = 0; i < n_; ++i)
    for (int j = 0; j < i; ++j)
      if (std::strcmp(header_->members[i].gpu, header_->members[j].gpu) == 0) return {j, i};
  return {-1, -1};
}

std::size_t rings::write(int to, const std::byte* from, std::size_t bytes) {
  ring& r = from_to(me_, to);
  const std::uint64_t begin = r.written;
  const std::size_t count = std::min<std::size_t>(bytes, capacity - (begin - r.taken));
  for (std::size_t done = 0; done < count;) {
    const std::size_t at = (begin + done) % capacity, piece = std::min(count - done, capacity - at);
    std::memcpy(r.data + at, from + done, piece);
    done += piece;
  }
  r.written = begin + count;
  return count;
}

std::size_t rings::read(int from, std::byte* to, std::size_t bytes) {
  ring& r = from_to(from, me_);
  const std::uint64_t begin = r.taken;
  const std::size_t count = std::min<std::size_t>(bytes, r.written - begin);
  for (std::size_t done = 0; done < count;) {
    const std::size_t at = (begin + done) % capacity, piece = std::min(count - done, capacity - at);
    std::memcpy(to + done, r.data + at, piece);
    done += piece;
  }
  r.taken = begin + count;
  return count;
}

std::uint64_t rings::written(int to) const { return from_to(me_, to).written; }
std::uint64_t rings::taken(int to) const { return from_to(me_, to).taken; }

}  // namespace simulated
