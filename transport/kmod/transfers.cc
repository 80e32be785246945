// The memory of a connection over the kernel module: pinned for as long as a window is open or a
// piece is under way, and named to the kernel by region and offset.
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/kmod/connection.h>
#include <sluice/runtime/identity.h>

#include "kernel_compat/slp/slp.h"
#include "kernel_compat/uapi/sluice.h"

namespace sluice::kmod {
namespace {

constexpr const char* kOrigin = "kmod/transfers";
// As over packet sockets (transfers.cc): no key of this path is all zeros.
constexpr uint64_t kAddressBase = uint64_t{1} << 32;

Counter refused_to_peer("kmod.access_refused");
Counter windows_gone("kmod.windows_unmapped");
Counter not_pinned_count("kmod.memory_not_pinned");

uint64_t offset_of(const wire::Segment& peer) {
  return peer.offset >= kAddressBase ? peer.offset - kAddressBase : UINT64_MAX - peer.length;
}

// The names of parts in completions: those of moves that were called back name nothing.
uint64_t name_of(size_t slot, size_t part, uint32_t generation) {
  return slot | part << 8 | uint64_t{generation} << 32;
}

}  // namespace

Status KmodConnection::not_pinned(int error, uint64_t length) const {
  not_pinned_count.add();
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  std::string bytes = std::to_string(length) + " bytes";
  if (error == EFAULT) {
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                  "the kernel module pins memory for writing, and these " + bytes +
                      " can only be read; copy them into context.allocate()d memory",
                  error);
  }
  if (error == EOPNOTSUPP) {
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                  "the kernel module pins anonymous, shared (memfd, /dev/shm) and huge memory "
                  "only, and some of these " +
                      bytes +
                      " are a mapped file's; map it MAP_PRIVATE, or copy them into "
                      "context.allocate()d memory",
                  error);
  }
  std::string allowed =
      limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur >> 10) + " KiB";
  return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                bytes + " of memory could not be pinned; locked memory (ulimit -l) is limited to " +
                    allowed + " here: raise it, or move less at once",
                error);
}

// The kernel counts by socket, not by operation: what it copied goes to those that end first, and
// what it sent again goes to them, too.
uint64_t KmodConnection::uncopied_out(uint64_t bytes) {
  uint64_t now = stopped_ ? UINT64_MAX : socket_.copied_out();
  if (now == UINT64_MAX) return 0;
  copied_unclaimed_ += now - copied_seen_;
  copied_seen_ = now;
  uint64_t copied = std::min(bytes, copied_unclaimed_);
  copied_unclaimed_ -= copied;
  return bytes - copied;
}

Result<WindowId> KmodConnection::open_window(std::byte* data, uint64_t length, Right rights,
                                             uint64_t cookie, wire::Segment& out) {
  if (failed_ || stopped_)
    return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the connection has ended");
  auto window =
      std::find_if(windows_.begin(), windows_.end(), [](const Window& w) { return w.handle == 0; });
  uint32_t handle = 0, region = 0;
  // With the 16 random bits of the handle's number it is what a peer has to guess.
  uint64_t base = 0;
  fill_random(std::as_writable_bytes(std::span(&base, 1)));
  base &= SLUICE_MAX_BASE;
  int error = window == windows_.end() ? ENOBUFS : socket_.register_memory(data, length, region);
  if (error != 0 && error != ENOBUFS) return not_pinned(error, length);
  if (error == 0 && (error = socket_.open_handle(region, length, rights, base, handle)) != 0)
    socket_.unregister_memory(region);
  if (error == ENOBUFS) {
    wants_room_ = true;
    return Status(Code::kTryAgain, Scope::kOperation, kOrigin,
                  "64 windows are open to this peer over the kernel module: wait until some "
                  "operations have ended, or revoke grants");
  }
  if (error != 0) return ended(error);
  fault_point("kmod.window_open");
  *window = {.cookie = cookie, .handle = handle, .region = region};
  out = {.extent = handle, .offset = kAddressBase + base, .length = length};
  return handle;
}

void KmodConnection::close_window(WindowId id, bool tell) {
  auto window = std::find_if(windows_.begin(), windows_.end(),
                             [&](const Window& w) { return w.handle == id; });
  if (id == 0 || window == windows_.end()) return;
  window->handle = 0;
  found_room_ = true;
  if (!stopped_) {
    socket_.close_handle(id);
    socket_.unregister_memory(window->region);
  }
  fault_point("kmod.window_close");
  if (tell && !stopped_)
    events_.push_back({.kind = Event::Kind::kWindowClosed, .cookie = window->cookie});
  host_.activate(*this);
}

Result<bool> KmodConnection::read(const wire::Segment& peer, std::span<const MutableBytes> into,
                                  uint64_t cookie) {
  return move(true, into, peer, cookie, nullptr);
}

Result<bool> KmodConnection::write(std::span<const ConstBytes> from, const wire::Segment& peer,
                                   uint64_t cookie, const uint32_t* notice) {
  std::array<MutableBytes, kMaxPlaces> pieces;
  for (size_t i = 0; i < from.size(); ++i)
    pieces[i] = {const_cast<std::byte*>(from[i].data()), from[i].size()};
  return move(false, {pieces.data(), from.size()}, peer, cookie, notice);
}

Result<bool> KmodConnection::move(bool pull, std::span<const MutableBytes> pieces,
                                  const wire::Segment& peer, uint64_t cookie,
                                  const uint32_t* notice) {
  if (failed_ || stopped_) return true;  // and it is told next
  auto first = moves_.begin() + (pull ? 0 : kMoves / 2);
  auto free = std::find_if(first, first + kMoves / 2, [](const Move& m) { return m.count == 0; });
  if (free == first + kMoves / 2) {
    wants_room_ = true;
    return false;
  }
  Move& move = *free;
  uint32_t generation = move.generation + 1;
  move = {.length = peer.length,
          .cookie = cookie,
          .offset = offset_of(peer),
          .handle = peer.extent,
          .generation = generation,
          .noticed = notice != nullptr};
  if (notice != nullptr) move.notice = *notice;
  for (const MutableBytes& piece : pieces) {
    if (piece.empty()) continue;
    Part& part = move.parts[move.count];
    part.length = piece.size();
    int error = socket_.register_memory(piece.data(), piece.size(), part.region);
    if (error == 0) {
      ++move.count;
      continue;
    }
    end_move(move);
    if (error != ENOBUFS) return not_pinned(error, piece.size());
    wants_room_ = true;
    return false;
  }
  fault_point(pull ? "kmod.pull" : "kmod.push");
  post_parts(static_cast<size_t>(free - moves_.begin()));
  looks_ = std::max(looks_, 1);
  host_.activate(*this);
  return true;
}

// What the kernel takes now; the rest when something is over.
void KmodConnection::post_parts(size_t slot) {
  Move& move = moves_[slot];
  while (move.posted < move.count && !failed_) {
    Part& part = move.parts[move.posted];
    bool notices = move.noticed && move.posted + 1 == move.count;
    // Pushes overtake each other, and a notice says that all bytes of its operation are there.
    if (notices && (move.over < move.posted || !last_of_its_cookie(move))) return;
    KmodTransfer request;
    request.user_data = name_of(slot, move.posted, move.generation);
    request.length = part.length;
    request.peer_offset = move.offset;
    request.region = part.region;
    request.handle = move.handle;
    request.kind = slot < kMoves / 2 ? KmodMove::kPull
                   : notices         ? KmodMove::kPushWithNotice
                                     : KmodMove::kPush;
    request.notice = move.notice;
    int error = socket_.transfer(request);
    if (error == EAGAIN) return;
    if (error == EINVAL) {  // reaches beyond 2^64: no handle does
      part_over(slot, move.posted, SLP_BAD_RANGE);
      return;
    }
    if (error != 0) return note_call_error(error);
    part.under_way = true;
    move.offset += part.length;
    ++move.posted;
  }
}

void KmodConnection::post_waiting() {
  for (size_t slot = 0; slot < kMoves && !stopped_; ++slot) {
    if (moves_[slot].posted < moves_[slot].count) post_parts(slot);
  }
}

bool KmodConnection::last_of_its_cookie(const Move& push) const {
  return std::none_of(moves_.begin() + kMoves / 2, moves_.end(), [&](const Move& m) {
    return &m != &push && m.count > 0 && m.cookie == push.cookie;
  });
}

void KmodConnection::take_completion(const KmodCompletion& entry) {
  if (stopped_) return;
  if (entry.noticed) {
    events_.push_back({.kind = Event::Kind::kNotice, .notice = entry.notice});
    return;
  }
  // The peer is refused from here on, and told so; the grant is still to be revoked.
  if (entry.window_gone) return windows_gone.add();
  size_t slot = entry.user_data & 0xff, part = entry.user_data >> 8 & 0xff;
  if (slot >= kMoves || part >= moves_[slot].count ||
      moves_[slot].generation != entry.user_data >> 32 || !moves_[slot].parts[part].under_way)
    return;
  part_over(slot, part, entry.status);
}

void KmodConnection::part_over(size_t slot, size_t index, uint32_t status) {
  Move& move = moves_[slot];
  move.parts[index].under_way = false;
  ++move.over;
  bool refused = status == SLUICE_MEMORY_GONE || status == SLP_BAD_HANDLE ||
                 status == SLP_BAD_RANGE || status == SLP_NO_RIGHT;
  if (!refused && status != SLP_OK) {
    // Otherwise the session has ended: the socket says so next.
    broken_ = true;
    broken_status_ = status;
    readable_ = true;
    return;
  }
  if (refused && status != SLUICE_MEMORY_GONE) refused_to_peer.add();
  if (!refused && move.over < move.count) {
    // The region is nobody's from here on, but its number is looked up once, at the end.
    return;
  }
  events_.push_back({.kind = refused ? Event::Kind::kRefused : Event::Kind::kMoved,
                     .refused = status,
                     .cookie = move.cookie,
                     .length = move.length});
  end_move(move);
}

// Nothing of it touches our memory when this returns.
void KmodConnection::end_move(Move& move) {
  auto slot = static_cast<size_t>(&move - moves_.data());
  for (size_t i = 0; i < move.count; ++i) {
    if (move.parts[i].under_way && !stopped_)
      (void)socket_.cancel(name_of(slot, i, move.generation));
    move.parts[i].under_way = false;
    socket_.unregister_memory(move.parts[i].region);
  }
  move.count = move.posted = move.over = 0;
  found_room_ = freed_ = true;
}

void KmodConnection::cancel_moves(uint64_t cookie) {
  for (Move& move : moves_) {
    if (move.count > 0 && move.cookie == cookie) end_move(move);
  }
  // They may be being delivered: their places stay.
  for (Event& event : events_) {
    bool of_it = (event.kind == Event::Kind::kMoved || event.kind == Event::Kind::kRefused) &&
                 event.cookie == cookie;
    if (of_it) event.kind = Event::Kind::kNone;
  }
  host_.activate(*this);
}

}  // namespace sluice::kmod
