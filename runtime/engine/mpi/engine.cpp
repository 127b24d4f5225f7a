// SPDX-License-Identifier: Apache-2.0
// The collectives. A member tells all others what it calls, with its input where that is little, and hears the same of
// them; then everybody knows whether they agree, and sends what is large to those who need it.
#include <cstring>  // memcpy

#include "runtime/engine/mpi/mail.hpp"
#include "runtime/engine/mpi/mpi.hpp"
#include "runtime/engine/reduce.hpp"

namespace shardplan::runtime {

namespace detail {

/// How this rank knows a group.
struct mpi_membership {
  rank_group asked;
  axis_set axes;
  num index = 0;
  std::vector<num> ranks;
  std::uint64_t number = 0;  ///< group_number(ranks)
};

}  // namespace detail

using namespace detail;

namespace {

std::size_t at(num i) { return static_cast<std::size_t>(i); }

void copy(const std::byte* from, num size, std::byte* to) {
  if (size > 0) std::memcpy(to, from, at(size));
}

/// Elements of one member's input. With `slices_`, everybody reduces a slice of an all_reduce, and hands on the result.
struct part {
  num begin = 0, size = 0;
  friend bool operator==(const part&, const part&) = default;
};

letter make_letter(letter_kind kind, const mpi_membership& m, const request& r, const std::byte* data, num size) {
  letter l;
  l.kind = kind;
  l.group = m.number;
  l.call = r;
  l.data = data;
  l.data_size = size;
  return l;
}

/// One collective of a group of more than one.
class collective {
 public:
  collective(mpi_mail& mail, const mpi_membership& m, const request& r)
      : mail_(mail), m_(m), r_(r), n_(static_cast<num>(m.ranks.size())), unit_(size_of(r.type)) {}

  void perform() {
    exchange_calls();
    if (r_.what == operation::barrier) return;
    exchange_pieces();
    if (r_.what != operation::all_reduce && r_.what != operation::reduce_scatter) return put_in_order();
    const part mine = needed_of(m_.index, m_.index);
    reduce(r_.type, r_.reduce, inputs_, 0, mine.size, r_.out + (slices_ ? mine.begin * unit_ : 0));
    if (slices_) exchange_slices(mine);
  }

 private:
  part slice(num i) const {
    const num begin = slice_begin(r_.in_size, i, n_);
    return {begin, slice_begin(r_.in_size, i + 1, n_) - begin};
  }

  /// What member `to` needs of the input of member `from`.
  part needed_of(num from, num to) const {
    const request& r = *calls_[at(from)];
    switch (r.what) {
      case operation::all_reduce:
        return slices_ ? slice(to) : part{0, r.in_size};
      case operation::reduce_scatter:
      case operation::all_to_all:
        return {part_offset(r, to, n_), part_size(r, to, n_)};
      case operation::all_gather:
        return {0, r.in_size};
      case operation::gather:
        return {0, r.peer == to ? r.in_size : 0};
      case operation::broadcast:
        return {0, r.peer == from ? r.in_size : 0};
      case operation::send:
      case operation::receive:
      case operation::barrier:
        break;
    }
    return {};
  }

  std::vector<num> others() const {
    std::vector<num> out = m_.ranks;
    out.erase(out.begin() + m_.index);
    return out;
  }

  mpi_mail::key key_of(letter_kind kind, num member) const { return {kind, m_.number, m_.ranks[at(member)], 0, {}}; }

  template <class Wanted>
  std::vector<mpi_mail::key> keys(letter_kind kind, Wanted&& wanted) const {
    std::vector<mpi_mail::key> out;
    for (num j = 0; j < n_; ++j)
      if (j != m_.index && wanted(j)) out.push_back(key_of(kind, j));
    return out;
  }

  void exchange_calls() {
    const bool little = r_.in_bytes() <= most_inside;
    mail_.send(others(), make_letter(letter_kind::call, m_, r_, r_.in, little ? r_.in_bytes() : 0));
    letters_ = mail_.take(keys(letter_kind::call, [](num) { return true; }), r_);
    auto next = letters_.begin();
    for (num j = 0; j < n_; ++j) calls_.push_back(j == m_.index ? &r_ : &(next++)->call);
    const std::string wrong = disagreement(calls_, m_.ranks);
    if (!wrong.empty()) throw collective_error(wrong);
    slices_ = r_.what == operation::all_reduce && !little;
  }

  bool in_letter(num j) const { return calls_[at(j)]->in_bytes() <= most_inside; }

  void send_piece(std::span<const num> to, const part& p, const std::byte* from) {
    if (p.size == 0 || to.empty()) return;
    mail_.send(to, make_letter(letter_kind::piece, m_, without_buffers(r_), from + p.begin * unit_, p.size * unit_));
  }

  /// One copy for neighbours that need the same.
  void send_pieces() {
    std::vector<num> to;
    part piece;
    for (num j = 0; j < n_; ++j) {
      if (j == m_.index) continue;
      const part p = needed_of(m_.index, j);
      if (p != piece) {
        send_piece(to, piece, r_.in);
        to.clear();
        piece = p;
      }
      to.push_back(m_.ranks[at(j)]);
    }
    send_piece(to, piece, r_.in);
  }

  /// inputs_: what this member needs of each.
  void exchange_pieces() {
    if (!in_letter(m_.index)) send_pieces();
    const auto comes_apart = [&](num j) { return !in_letter(j) && needed_of(j, m_.index).size > 0; };
    pieces_ = mail_.take(keys(letter_kind::piece, comes_apart), r_);
    auto piece = pieces_.begin();
    auto call = letters_.begin();
    for (num j = 0; j < n_; ++j) {
      const part p = needed_of(j, m_.index);
      if (j == m_.index)
        inputs_.push_back(r_.in + p.begin * unit_);
      else if (const letter& l = *call++; in_letter(j))
        inputs_.push_back(l.data + p.begin * unit_);
      else
        inputs_.push_back(p.size > 0 ? (piece++)->data : nullptr);
    }
  }

  void put_in_order() {
    std::byte* to = r_.out;
    for (num j = 0; j < n_; ++j) {
      const num size = needed_of(j, m_.index).size * unit_;
      if (inputs_[at(j)] != to) copy(inputs_[at(j)], size, to);
      to += size;
    }
  }

  /// The reduced slices of an all_reduce, from each to all.
  void exchange_slices(const part& mine) {
    const auto has_any = [&](num j) { return slice(j).size > 0; };
    send_piece(others(), mine, r_.out);
    const std::vector<letter> slices = mail_.take(keys(letter_kind::piece, has_any), r_);
    auto next = slices.begin();
    for (num j = 0; j < n_; ++j)
      if (j != m_.index && has_any(j)) {
        copy(next->data, next->data_size, r_.out + slice(j).begin * unit_);
        ++next;
      }
  }

  mpi_mail& mail_;
  const mpi_membership& m_;
  const request& r_;
  const num n_, unit_;
  bool slices_ = false;
  std::vector<letter> letters_, pieces_;  // of the others, in member order
  std::vector<const request*> calls_;     // of all
  std::vector<const std::byte*> inputs_;  // of all, from what is needed on
};

}  // namespace

num mpi_group::size() const { return static_cast<num>(membership_->ranks.size()); }
num mpi_group::index() const { return membership_->index; }
num mpi_group::member(num i) const { return membership_->ranks.at(at(i)); }
axis_set mpi_group::axes() const { return membership_->axes; }

mpi_engine::mpi_engine(std::shared_ptr<mpi_mail> mail) : mail_(std::move(mail)) {}
mpi_engine::mpi_engine(mpi_engine&&) noexcept = default;
mpi_engine::~mpi_engine() = default;

num mpi_engine::rank() const { return mail_->rank(); }
num mpi_engine::world_size() const { return mail_->world_size(); }
void mpi_engine::check_abort() const { mail_->check(); }

mpi_group mpi_engine::group(const rank_group& ranks, axis_set axes) {
  for (const auto& known : groups_)
    if (known->axes == axes && known->asked == ranks) return mpi_group(known.get());
  std::vector<num> members = require_members(ranks, axes, rank(), world_size());
  const std::uint64_t number = group_number(members);
  groups_.push_back(
      std::make_unique<mpi_membership>(mpi_membership{ranks, axes, ranks.index, std::move(members), number}));
  return mpi_group(groups_.back().get());
}

void mpi_engine::perform(const mpi_group& g, const request& r) {
  check_abort();
  const mpi_membership& m = *g.membership_;
  if (r.what == operation::send || r.what == operation::receive) {
    require_peer(r, g.size(), rank());
    if (r.what == operation::send)
      return mail_->send(m.ranks[at(r.peer)], make_letter(letter_kind::message, m, r, r.in, r.in_bytes()));
    const mpi_mail::key key{letter_kind::message, m.number, m.ranks[at(r.peer)], m.axes.bits, r.why};
    const letter l = std::move(mail_->take(std::span(&key, 1), r).front());
    require_same_message(l.call, l.from, r, rank());
    return copy(l.data, r.out_bytes(), r.out);
  }
  if (g.size() == 1) return collect_alone(r, rank());
  collective(*mail_, m, r).perform();
}

}  // namespace shardplan::runtime
