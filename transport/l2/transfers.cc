// What a connection's transfers move and the windows that the peer may reach: where SLP's
// cookies point to.
#include <sluice/l2/connection.h>

#include <algorithm>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/l2/port.h>
#include <sluice/runtime/identity.h>

#include "kernel_compat/slp/slp.h"

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/transfers";
// Addresses of windows begin here: no key of this path is all zeros, and an address before a
// window is outside for the asker. The owner's SLP checks the range of a handle.
constexpr uint64_t kAddressBase = uint64_t{1} << 32;
// Where the owner's count of a window begins is random: with the generation of its handle, 16 bits,
// and 62 of these a peer would have to guess what it was not told. A hit within a window of 2^26
// bytes takes 2^52 guesses.
constexpr uint64_t kRandomBase = (uint64_t{1} << 62) - 1;

Counter refused_to_peer("l2.access_refused");

// Offset in the handle; an address before its beginning becomes one beyond every end.
uint64_t offset_of(const wire::Segment& peer) {
  return peer.offset >= kAddressBase ? peer.offset - kAddressBase : UINT64_MAX;
}

}  // namespace

Status Connection::status_of(int status, Scope scope) {
  std::string text = slp_status_text(static_cast<slp_status>(status));
  auto ended = [&](Code code, std::string why) {
    return Status(code, scope, kOrigin, std::move(why));
  };
  switch (status) {
    case SLP_BAD_HANDLE:
    case SLP_BAD_RANGE:
    case SLP_NO_RIGHT: return ended(Code::kAccessDenied, "the peer refused an access: " + text);
    case SLP_NO_LISTENER:
      return ended(Code::kUnreachable, "nobody listens there over l2; start the listener first");
    case SLP_SILENT:
      return ended(
          Code::kUnreachable,
          text + ": its process ended, its progress stopped, or the network is cut; connect again");
    case SLP_BAD_VERSION: return ended(Code::kUnsupported, text);
    case SLP_NOT_AUTHENTIC:
      return ended(
          Code::kAccessDenied,
          text + "; give both ends the same file, by SLUICE_L2_SECRET_FILE or their options");
    case SLP_NEEDS_KEY:
      return ended(
          Code::kAccessDenied,
          text + "; name the file that the peer uses in SLUICE_L2_SECRET_FILE or the options");
    case SLP_HAS_NO_KEY:
      return ended(Code::kAccessDenied,
                   text + "; set SLUICE_L2_SECRET_FILE there, or unset it here and go unencrypted");
    case SLP_BROKEN: return ended(Code::kCorrupt, text);
    case SLP_LOCAL: return ended(Code::kCancelled, "the session " + text + "; connect again");
    case SLP_CANCELLED: return ended(Code::kUnreachable, "the peer cancelled it; repeat it");
    default: return ended(Code::kUnreachable, text + "; connect again");
  }
}

// Where bytes [offset, offset + bytes) of what a cookie of SLP names are: of a window, or of
// the pieces of a move.
size_t Connection::find_pieces(uint64_t cookie, uint64_t offset, uint64_t bytes,
                               std::span<MutableBytes> out) {
  if (cookie < kWindows) {
    out[0] = {windows_[cookie].data + offset, bytes};
    return 1;
  }
  const Move& move = moves_[cookie - kWindows];
  size_t count = 0;
  for (size_t i = 0; i < move.count && bytes > 0; ++i) {
    MutableBytes piece = move.pieces[i];
    if (offset >= piece.size()) {
      offset -= piece.size();
      continue;
    }
    out[count] = piece.subspan(offset, std::min<uint64_t>(bytes, piece.size() - offset));
    offset = 0;
    bytes -= out[count++].size();
  }
  return count;
}

Result<WindowId> Connection::open_window(std::byte* data, uint64_t length, Right rights,
                                         uint64_t cookie, wire::Segment& out) {
  if (failed_ || stopped_)
    return Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the connection has ended");
  auto window =
      std::find_if(windows_.begin(), windows_.end(), [](const Window& w) { return w.handle == 0; });
  if (window == windows_.end() && windows_.size() < kWindows)
    window = windows_.emplace(windows_.end());
  uint32_t handle = 0, slp_rights = 0;
  if (has_right(rights, Right::kRead)) slp_rights |= SLP_READ;
  if (has_right(rights, Right::kWrite)) slp_rights |= SLP_WRITE;
  auto index = static_cast<uint64_t>(window - windows_.begin());
  uint64_t base = 0;
  fill_random(std::as_writable_bytes(std::span(&base, 1)));
  base &= kRandomBase;
  if (window == windows_.end() ||
      !slp_open_handle_at(session_, index, base, length, slp_rights, &handle)) {
    want_window_ = true;
    return Status(Code::kTryAgain, Scope::kOperation, kOrigin,
                  "64 windows are open to this peer over l2: wait until some operations have "
                  "ended, or revoke grants");
  }
  fault_point("l2.window_open");
  *window = {.data = data, .length = length, .cookie = cookie, .handle = handle};
  out = {.extent = handle, .offset = kAddressBase + base, .length = length};
  return handle;
}

void Connection::close_window(WindowId window, bool tell) {
  auto found = std::find_if(windows_.begin(), windows_.end(),
                            [&](const Window& w) { return w.handle == window; });
  if (found == windows_.end()) return;
  found->handle = 0;
  fault_point("l2.window_close");
  if (!stopped_) slp_close_handle(session_, window);
  if (tell && !stopped_)
    events_.push_back({.kind = Event::Kind::kWindowClosed, .cookie = found->cookie});
  host_.activate(*this);
}

Expected Connection::expected() {
  if (next_move_ == kMoves || moves_[next_move_].count == 0 || failed_ || stopped_) return {};
  const Move& move = moves_[next_move_];
  std::array<MutableBytes, kMaxPlaces> pieces;
  if (move.front >= move.length ||
      find_pieces(kWindows + next_move_, move.front, move.length - move.front, pieces) == 0)
    return {};
  Expected expected = next_;
  expected.to = reinterpret_cast<uint8_t*>(pieces[0].data());
  expected.room = pieces[0].size();
  return expected;
}

// A slot for a transfer, or moves_.size(). As many as SLP has of each kind: pulls, then pushes.
size_t Connection::start_move(bool pull, const wire::Segment& peer, uint64_t cookie) {
  moves_.resize(kMoves);
  auto first = moves_.begin() + (pull ? 0 : kMoves / 2);
  auto free = std::find_if(first, first + kMoves / 2, [](const Move& m) { return m.count == 0; });
  if (free == first + kMoves / 2) {
    (pull ? want_pull_ : want_push_) = true;
    return moves_.size();
  }
  *free = {
      .length = peer.length, .cookie = cookie, .handle = peer.extent, .offset = offset_of(peer)};
  return static_cast<size_t>(free - moves_.begin());
}

// What SLP said to a transfer that was to be of moves_[slot].
void Connection::posted(size_t slot, int status) {
  if (status == SLP_OK) {
    host_.posted(*this);
    return;
  }
  Move& move = moves_[slot];
  move.count = 0;
  if (slp_state_of(session_) == SLP_UP)
    over(move, status);  // else it has ended, which is told next
}

// A transfer that is over on a connection that is not.
void Connection::over(const Move& move, int status) {
  bool refused = status == SLP_BAD_HANDLE || status == SLP_BAD_RANGE || status == SLP_NO_RIGHT;
  if (refused) refused_to_peer.add();
  if (refused || status == SLP_OK) {
    events_.push_back({.kind = refused ? Event::Kind::kRefused : Event::Kind::kMoved,
                       .cookie = move.cookie,
                       .length = move.length,
                       .refused = status});
  } else {
    fail(status_of(status));  // what an honest peer never says
  }
}

Result<bool> Connection::read(const wire::Segment& peer, std::span<const MutableBytes> into,
                              uint64_t cookie) {
  if (failed_ || stopped_) return true;
  size_t slot = start_move(true, peer, cookie);
  if (slot == moves_.size()) return false;
  Move& move = moves_[slot];
  move.count = into.size();
  std::copy(into.begin(), into.end(), move.pieces.begin());
  fault_point("l2.pull");
  posted(slot, slp_pull(session_, move.handle, move.offset, move.length, kWindows + slot));
  return true;
}

Result<bool> Connection::write(std::span<const ConstBytes> from, const wire::Segment& peer,
                               uint64_t cookie, const uint32_t* notice) {
  if (failed_ || stopped_) return true;
  size_t slot = start_move(false, peer, cookie);
  if (slot == moves_.size()) return false;
  Move& move = moves_[slot];
  move.count = from.size();
  for (size_t i = 0; i < from.size(); ++i)
    move.pieces[i] = {const_cast<std::byte*>(from[i].data()), from[i].size()};
  if (notice != nullptr) move.notice = *notice;
  if (notice != nullptr && !last_of_its_cookie(move)) {
    move.waiting = true;
    return true;
  }
  fault_point("l2.push");
  posted(slot, slp_push(session_, move.handle, move.offset, move.length, kWindows + slot, notice));
  return true;
}

bool Connection::last_of_its_cookie(const Move& push) const {
  return std::none_of(moves_.begin() + kMoves / 2, moves_.end(), [&](const Move& m) {
    return &m != &push && m.count > 0 && m.cookie == push.cookie;
  });
}

// SLP's pushes overtake each other, and a notice says that all bytes of its operation are there.
void Connection::push_waiting() {
  for (size_t slot = kMoves / 2; slot < moves_.size(); ++slot) {
    Move& move = moves_[slot];
    if (failed_ || stopped_) return;
    if (move.count == 0 || !move.waiting || !last_of_its_cookie(move)) continue;
    move.waiting = false;
    posted(slot, slp_push(session_, move.handle, move.offset, move.length, kWindows + slot,
                          &move.notice));
  }
}

void Connection::cancel_moves(uint64_t cookie) {
  for (size_t slot = 0; slot < moves_.size(); ++slot) {
    Move& move = moves_[slot];
    if (move.count == 0 || move.cookie != cookie) continue;
    if (!stopped_ && !move.waiting) (void)slp_cancel(session_, kWindows + slot);
    move.count = 0;
    if (next_move_ == slot) next_move_ = kMoves;
  }
  // They may be being delivered: their places stay.
  for (Event& event : events_) {
    bool of_it = (event.kind == Event::Kind::kMoved || event.kind == Event::Kind::kRefused) &&
                 event.cookie == cookie;
    if (of_it) event.kind = Event::Kind::kNone;
  }
  host_.activate(*this);
}

void Connection::on_ended(uint64_t cookie, int status) {
  Move& move = moves_[cookie - kWindows];
  move.count = 0;
  if (next_move_ == cookie - kWindows) next_move_ = kMoves;
  if (stopped_ || failed_) return;
  if (status == SLP_OK) fault_point("l2.moved");
  // Otherwise the session has ended, and says so next.
  if (status == SLP_OK || slp_state_of(session_) == SLP_UP) over(move, status);
}

bool Connection::became_writable() {
  if (failed_ || stopped_ || !(want_room_ || want_window_ || want_pull_ || want_push_))
    return false;
  auto free_from = [&](size_t first) {
    return std::any_of(moves_.begin() + first, moves_.begin() + first + kMoves / 2,
                       [](const Move& m) { return m.count == 0; });
  };
  // A move that still lacks room asks for it again.
  bool any = (want_room_ && slp_can_send(session_, kLargestMessage)) ||
             (want_window_ && std::any_of(windows_.begin(), windows_.end(),
                                          [](const Window& w) { return w.handle == 0; })) ||
             (want_pull_ && free_from(0)) || (want_push_ && free_from(kMoves / 2));
  if (!any) return false;
  want_room_ = want_window_ = want_pull_ = want_push_ = false;
  return true;
}

}  // namespace sluice::l2
