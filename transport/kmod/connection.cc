#include <sluice/kmod/connection.h>

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sluice/base/counters.h>
#include <sluice/base/fault_point.h>
#include <sluice/runtime/identity.h>

#include "kernel_compat/slp/slp.h"
#include "kernel_compat/uapi/sluice.h"

namespace sluice::kmod {
namespace {

constexpr const char* kOrigin = "kmod/connection";
constexpr char kMark[17] = "sluice kmod call";
// Transfers each way and notices of every window at once: an honest peer never finds it full.
constexpr uint32_t kRingEntries = 128;
static_assert(KmodConnection::kLargestMessage <= SLUICE_MAX_MESSAGE &&
              2 * KmodConnection::kWindows <= SLUICE_MAX_REGIONS);
constexpr size_t kMessagesPerTurn = 64;
// Looks without a find, some 0.2 us each, before the kernel has to say that something has come:
// several round trips of a small message.
constexpr int kHotLooks = 500;

Counter connects("kmod.connects");
Counter accepts("kmod.accepts");
Counter strangers("kmod.messages_of_strangers");

Status refusal(uint32_t status) {
  if (status == SLUICE_MEMORY_GONE) {
    return Status(Code::kInvalidArgument, Scope::kOperation, kOrigin,
                  "memory of the operation was unmapped before it had ended; keep it until then");
  }
  return Status(Code::kAccessDenied, Scope::kOperation, kOrigin,
                std::string("the peer refused an access: ") +
                    slp_status_text(static_cast<slp_status>(status)));
}

Status failed_as(Code code, std::string why, int error = 0) {
  return Status(code, Scope::kEndpoint, kOrigin, std::move(why), error);
}

}  // namespace

bool takes_other_socket(const wire::Hello& hello) {
  return hello.has_rendezvous && std::memcmp(hello.rendezvous.bytes.data(), kMark, 16) == 0;
}

void mark_for_other_socket(wire::Hello& hello) {
  hello.has_rendezvous = true;
  std::memcpy(hello.rendezvous.bytes.data(), kMark, 16);
}

Result<wire::Hello> read_hello(ConstBytes message) {
  wire::Hello hello;
  SLUICE_TRY(wire::Header common, wire::decode_header(message));
  if (common.type != wire::MessageType::kHello || common.header_bytes != message.size())
    return failed_as(Code::kCorrupt, "a message before HELLO");
  SLUICE_RETURN_IF_ERROR(wire::decode(message, hello));
  return hello;
}

KmodConnection::KmodConnection(ContextCore& context, KmodHost& host, KmodSocket socket,
                               const wire::Hello& ours)
    : context_(context), host_(host), socket_(std::move(socket)), ours_(ours) {}

KmodConnection::~KmodConnection() {
  // Regions that are left go with the socket.
  unwatch();
  host_.forget(*this);
}

Result<std::unique_ptr<KmodConnection>> KmodConnection::call(ContextCore& context, KmodHost& host,
                                                             KmodSocket socket,
                                                             const KmodPlace& listener,
                                                             wire::Hello ours) {
  mark_for_other_socket(ours);
  fill_random(ours.token.bytes);
  std::unique_ptr<KmodConnection> made(new KmodConnection(context, host, std::move(socket), ours));
  made->calling_ = true;
  made->peer_ = listener;
  SLUICE_RETURN_IF_ERROR(made->socket_.open_ring(kRingEntries));
  SLUICE_RETURN_IF_ERROR(made->watch(EPOLLIN));
  if (int error = made->send_hello(&listener); error != 0) return made->ended(error);
  fault_point("kmod.hello");
  connects.add();
  return made;
}

Result<std::unique_ptr<KmodConnection>> KmodConnection::answer(ContextCore& context, KmodHost& host,
                                                               KmodSocket socket,
                                                               const KmodPlace& caller,
                                                               const wire::Hello& theirs,
                                                               wire::Hello ours) {
  mark_for_other_socket(ours);
  ours.token = theirs.token;
  std::unique_ptr<KmodConnection> made(new KmodConnection(context, host, std::move(socket), ours));
  made->peer_ = caller;
  made->theirs_ = theirs;
  SLUICE_RETURN_IF_ERROR(made->socket_.open_ring(kRingEntries));
  int error = made->socket_.connect(caller);
  if (error == 0) error = made->send_hello(nullptr);
  if (error != 0) return made->ended(error);
  fault_point("kmod.answered");
  // When there is room, the caller has been heard.
  SLUICE_RETURN_IF_ERROR(made->watch(EPOLLIN | EPOLLOUT));
  accepts.add();
  return made;
}

Status KmodConnection::watch(uint32_t events) {
  Status status = watching_ ? context_.rewatch(socket_.fd(), events, this)
                            : context_.watch(socket_.fd(), events, this);
  watching_ = watching_ || status.ok();
  return status;
}

void KmodConnection::unwatch() {
  if (std::exchange(watching_, false)) context_.unwatch(socket_.fd(), this);
}

int KmodConnection::send_hello(const KmodPlace* to) {
  std::byte header[wire::kMaxHeaderBytes];
  iovec piece{header, wire::encode(ours_, header)};
  return socket_.send({&piece, 1}, to);
}

// What the kernel said of the session's end.
Status KmodConnection::ended(int error) const {
  std::string name = peer_name();
  switch (error) {
    case 0:
    case EPIPE:
    case ECONNRESET:
      return failed_as(Code::kUnreachable,
                       name + " has ended the connection, or its process did; connect again",
                       error);
    case ECONNREFUSED:
      return failed_as(Code::kUnreachable,
                       "nobody listens at " + name + "; start the listener first", error);
    case ETIMEDOUT:
      return failed_as(
          Code::kUnreachable,
          name + " does not answer: its machine stopped or the network is cut; connect again",
          error);
    case ENODEV:
      return failed_as(Code::kUnreachable, "the interface " + socket_.interface() + " is gone",
                       error);
    case ECONNABORTED:
      return failed_as(Code::kUnreachable,
                       "the interface " + socket_.interface() + " has another address now", error);
    case EPROTO: return failed_as(Code::kCorrupt, name + " broke the protocol", error);
    case EMSGSIZE:
      return failed_as(Code::kCorrupt, name + " sent a message that is longer than any", error);
    case EPROTONOSUPPORT:
      return failed_as(Code::kUnsupported, name + " speaks another version of SLP", error);
    case ENOBUFS:
      return failed_as(Code::kNoMemory,
                       "the kernel module has no room for another session; see max_sessions and "
                       "max_sessions_per_user in /sys/module/sluice/parameters",
                       error);
    case ENOMEM: return failed_as(Code::kNoMemory, "the kernel has no memory for a message", error);
    default: return failed_as(Code::kUnreachable, "the connection to " + name + " failed", error);
  }
}

void KmodConnection::fail(Status why) {
  if (failed_) return;
  failed_ = true;
  failure_ = std::move(why);
  if (state_ != State::kReady) state_ = State::kEnded;
  host_.activate(*this);
}

void KmodConnection::note_call_error(int error) {
  call_error_ = error;
  readable_ = true;
  host_.activate(*this);
}

void KmodConnection::on_event(uint32_t events) noexcept {
  readable_ = readable_ || (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
  if ((events & EPOLLOUT) != 0) found_room_ = true;
  // Otherwise it would be told of again until somebody sends.
  if ((events & EPOLLOUT) != 0 && state_ == State::kReady) (void)watch(EPOLLIN);
  host_.activate(*this);
}

// ---- the greeting

size_t KmodConnection::meet() {
  if (!calling_) {
    bool up = std::exchange(found_room_, false) && !readable_;
    if (!up && readable_) {  // a caller says nothing before it has its answer's
      up = socket_.up();
      if (!up) fail(ended(socket_.error()));
    }
    if (!up) return failed_ ? 1 : 0;
    state_ = State::kReady;
    unwatch();
    return 1;
  }
  std::array<std::byte, kLargestMessage> room;
  size_t work = 0;
  for (; work < kMessagesPerTurn && state_ == State::kMeeting; ++work) {
    KmodPlace from;
    ssize_t bytes = socket_.receive(room, from);
    if (bytes == -EAGAIN) break;
    if (bytes <= 0) {
      fail(ended(static_cast<int>(-bytes)));
    } else {
      take_answer({room.data(), static_cast<size_t>(bytes)}, from);
    }
  }
  readable_ = false;
  return work;
}

bool KmodConnection::look() {
  if (state_ != State::kMeeting || calling_ || !socket_.up()) return false;
  state_ = State::kReady;
  unwatch();
  return true;
}

// From the listener itself, or from a socket of its machine that knows our token.
void KmodConnection::take_answer(ConstBytes message, const KmodPlace& from) {
  Result<wire::Hello> hello = read_hello(message);
  bool same_machine = from.mac == peer_.mac;
  bool known = hello.ok() && takes_other_socket(*hello) && hello->token == ours_.token;
  if (!same_machine || (!known && from != peer_)) return strangers.add();
  if (!hello.ok()) return fail(hello.status());
  if (Status status = wire::negotiate(ours_, *hello).status(); !status.ok())
    return fail(std::move(status));
  theirs_ = *hello;
  peer_ = from;
  // From here on nobody else is heard.
  if (int error = socket_.connect(from); error != 0) return fail(ended(error));
  state_ = State::kReady;
  unwatch();
}

// ---- what comes

void KmodConnection::set_client(proto::DirectClient* client) {
  client_ = client;
  readable_ = true;
  if (Status watched = watch(EPOLLIN); !watched.ok()) fail(std::move(watched));
  host_.activate(*this);
}

size_t KmodConnection::turn(Instant now) {
  if (state_ == State::kMeeting) return meet();
  if (client_ == nullptr || failed_ || stopped_) {
    readable_ = freed_ = false;
    looks_ = 0;
    return 0;
  }
  size_t work = deliver(now);
  if (client_ != nullptr && (readable_ || (hot && looks_ > 0))) {
    size_t messages = receive(now);
    looks_ = messages > 0 ? kHotLooks : looks_ - 1;
    work += messages;
  }
  if (!hot) looks_ = 0;
  if (work > 0) looks_ = hot ? kHotLooks : 0;
  // What the peer said before is heard first.
  if (failed_ || readable_) return work;
  if (call_error_ != 0) fail(ended(call_error_));
  if (broken_) {
    fail(
        failed_as(Code::kUnreachable, std::string("a transfer ended with the connection: ") +
                                          slp_status_text(static_cast<slp_status>(broken_status_)) +
                                          "; connect again"));
  }
  return work;
}

size_t KmodConnection::receive(Instant now) {
  std::array<std::byte, kLargestMessage> room;
  size_t work = 0;
  readable_ = false;
  while (client_ != nullptr && !stopped_ && !failed_) {
    if (work == kMessagesPerTurn) {
      readable_ = true;
      break;
    }
    KmodPlace from;
    ssize_t bytes = socket_.receive(room, from);
    if (bytes == -EAGAIN) break;
    ++work;
    // A notice that was sent before this message is in the ring.
    work += deliver(now);
    if (bytes <= 0) {
      fail(ended(bytes < 0 ? static_cast<int>(-bytes) : call_error_));
    } else if (from != peer_) {
      strangers.add();
    } else if (client_ != nullptr && !stopped_) {
      client_->on_message({room.data(), static_cast<size_t>(bytes)}, now);
    }
  }
  return work;
}

size_t KmodConnection::deliver(Instant now) {
  while (auto entry = socket_.take()) {
    freed_ = true;
    take_completion(*entry);
  }
  // The client may do what adds to them.
  size_t i = 0;
  for (; client_ != nullptr && i < events_.size(); ++i) {
    Event event = events_[i];
    switch (event.kind) {
      case Event::Kind::kNone: break;
      case Event::Kind::kMoved: client_->on_moved(event.cookie, event.length, now); break;
      case Event::Kind::kRefused:
        client_->on_refused(event.cookie, event.length, refusal(event.refused), now);
        break;
      case Event::Kind::kWindowClosed: client_->on_window_closed(event.cookie, now); break;
      case Event::Kind::kNotice: client_->on_notice(event.notice, now); break;
    }
  }
  events_.clear();
  if (std::exchange(freed_, false)) post_waiting();
  return i;
}

// ---- what the client posts

bool KmodConnection::send(ConstBytes header, std::span<const ConstBytes> payload) {
  if (failed_ || stopped_) return true;  // and it is told next
  std::array<iovec, 1 + 2 * kMaxPlaces + wire::kMaxSegments> pieces;
  size_t count = 0;
  pieces[count++] = {const_cast<std::byte*>(header.data()), header.size()};
  for (const ConstBytes& piece : payload) {
    if (!piece.empty() && count < pieces.size())
      pieces[count++] = {const_cast<std::byte*>(piece.data()), piece.size()};
  }
  int error = socket_.send({pieces.data(), count});
  if (error == EAGAIN) {
    wants_room_ = true;
    (void)watch(EPOLLIN | EPOLLOUT);
    return false;
  }
  if (error != 0) note_call_error(error);
  looks_ = kHotLooks;  // for the answer
  host_.activate(*this);
  return true;
}

bool KmodConnection::became_writable() {
  if (failed_ || stopped_ || !wants_room_ || !found_room_) return false;
  wants_room_ = found_room_ = false;
  return true;
}

void KmodConnection::stop() {
  if (std::exchange(stopped_, true)) return;
  unwatch();
  (void)socket_.disconnect();
  fault_point("kmod.stopped");
  for (Move& move : moves_) end_move(move);
  for (Window& window : windows_) {
    if (window.handle != 0) socket_.unregister_memory(window.region);
    window.handle = 0;
  }
  freed_ = false;
}

void KmodConnection::leave() {
  client_ = nullptr;
  events_.clear();
  if (stopped_) return;
  for (Window& window : windows_) {
    if (window.handle != 0) close_window(window.handle, false);
  }
  for (Move& move : moves_) {
    if (move.count > 0) cancel_moves(move.cookie);
  }
}

}  // namespace sluice::kmod
