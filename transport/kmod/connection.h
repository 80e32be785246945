// One connection over the kernel module: a socket of its own that is connected to one of the
// peer's, the windows that the peer may reach, and the moves under way. The session lives in the
// kernel; here is what the calls on it mean. Knows no session of ours.
//
// The module has no accept(). A caller says HELLO to the listener's socket, which opens a
// new socket towards the caller; that one answers, and the caller connects to it. A listener
// that answers from its own socket (l2://, by packet sockets) is as good.
#ifndef SLUICE_KMOD_CONNECTION_H_
#define SLUICE_KMOD_CONNECTION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sluice/kmod/socket.h>
#include <sluice/proto/direct_connection.h>
#include <sluice/runtime/context_core.h>
#include <sluice/runtime/peer_account.h>
#include <sluice/spi/eager.h>
#include <sluice/wire/messages.h>

namespace sluice::kmod {

class KmodConnection;

// The owner of the connections of a context.
class KmodHost {
 public:
  // Something has come for it, or is about to. May be called again before it is looked at.
  virtual void activate(KmodConnection& connection) noexcept = 0;
  virtual void forget(KmodConnection& connection) noexcept = 0;

 protected:
  ~KmodHost() = default;
};

// The mark in wire::Hello::rendezvous of who takes an answer from another socket; `token` then
// says which call the answer is for.
bool takes_other_socket(const wire::Hello& hello);
void mark_for_other_socket(wire::Hello& hello);
// One message that has to be HELLO. Errors: kCorrupt.
Result<wire::Hello> read_hello(ConstBytes message);

class KmodConnection final : public proto::DirectConnection, private EventHandler {
 public:
  enum class State : uint8_t { kMeeting, kReady, kEnded };
  // SLP's own: windows of a session, and transfers each way. A region is pinned for each window and
  // each piece.
  static constexpr size_t kWindows = 64;
  static constexpr size_t kMoves = 32;
  // A control message with its payload.
  static constexpr uint32_t kLargestMessage = kEagerBytes + wire::kMaxHeaderBytes;

  // Calls a listener. Errors: kNoMemory, kUnreachable.
  static Result<std::unique_ptr<KmodConnection>> call(ContextCore& context, KmodHost& host,
                                                      KmodSocket socket, const KmodPlace& listener,
                                                      wire::Hello ours);
  // Answers a caller by a socket that is not used yet.
  static Result<std::unique_ptr<KmodConnection>> answer(ContextCore& context, KmodHost& host,
                                                        KmodSocket socket, const KmodPlace& caller,
                                                        const wire::Hello& theirs,
                                                        wire::Hello ours);
  ~KmodConnection() override;

  State state() const { return state_; }
  void fail(Status why) override;
  const wire::Hello& ours() const { return ours_; }
  const wire::Hello& theirs() const { return theirs_; }
  const KmodPlace& peer() const { return peer_; }
  const KmodDoor& door() const { return socket_.door(); }
  Path bulk_path() const override { return Path::kModule; }
  uint64_t uncopied_out(uint64_t bytes) override;
  std::string local_name() const override { return socket_.text_of(socket_.own()); }
  std::string peer_name() const override { return socket_.text_of(peer_); }

  void set_client(proto::DirectClient* client) override;
  // Goes on with the greeting, too.
  size_t turn(Instant now) override;
  // One that answers asks the kernel whether its caller has been heard, though nothing was told of.
  // True: it has, now ready.
  bool look();
  bool wants_turn() const { return readable_ || looks_ > 0 || has_news(); }
  bool has_news() const override {
    return readable_ || freed_ || !events_.empty() || socket_.has_completions();
  }
  // Its end, or that there is room, which the link has yet to hear.
  bool has_untold() const { return !stopped_ && (failed_ || (wants_room_ && found_room_)); }

  bool send(ConstBytes header, std::span<const ConstBytes> payload) override;
  Result<bool> read(const wire::Segment& peer, std::span<const MutableBytes> into,
                    uint64_t cookie) override;
  Result<bool> write(std::span<const ConstBytes> from, const wire::Segment& peer, uint64_t cookie,
                     const uint32_t* notice) override;
  bool became_writable() override;
  void cancel_moves(uint64_t cookie) override;
  Result<WindowId> open_window(std::byte* data, uint64_t length, Right rights, uint64_t cookie,
                               wire::Segment& out) override;
  void close_window(WindowId window, bool tell) override;
  void leave() override;
  bool drained() const override { return true; }  // what was sent is the kernel's
  void stop() override;
  bool stopped() const { return stopped_; }

  // While it is half open.
  void hold(PeerCharge charge) { charge_ = std::move(charge); }

  // The host's: so few are awake that the kernel is asked for a while without having told of
  // anything.
  bool hot = false;

 private:
  struct Event {
    enum class Kind : uint8_t { kNone, kMoved, kRefused, kWindowClosed, kNotice } kind;
    uint32_t notice = 0;
    uint32_t refused = 0;  // a slp_status, or SLUICE_MEMORY_GONE
    uint64_t cookie = 0, length = 0;
  };
  struct Window {
    uint64_t cookie = 0;
    uint32_t handle = 0;  // 0: free
    uint32_t region = 0;
  };
  struct Part {
    uint64_t length = 0;
    uint32_t region = 0;
    bool under_way = false;
  };
  // Pieces that follow each other at the peer, each a transfer of the kernel's.
  struct Move {
    std::array<Part, kMaxPlaces> parts;
    size_t count = 0;  // 0: free
    size_t posted = 0, over = 0;
    uint64_t length = 0, cookie = 0, offset = 0;
    uint32_t handle = 0, notice = 0;
    uint32_t generation = 0;
    bool noticed = false;
  };
  KmodConnection(ContextCore& context, KmodHost& host, KmodSocket socket, const wire::Hello& ours);
  Status watch(uint32_t events);
  void unwatch();  // what comes waits in the kernel
  int send_hello(const KmodPlace* to);
  void on_event(uint32_t epoll_events) noexcept override;
  size_t meet();
  void take_answer(ConstBytes message, const KmodPlace& from);
  size_t receive(Instant now);
  size_t deliver(Instant now);
  Result<bool> move(bool pull, std::span<const MutableBytes> pieces, const wire::Segment& peer,
                    uint64_t cookie, const uint32_t* notice);
  void take_completion(const KmodCompletion& entry);
  void part_over(size_t slot, size_t part, uint32_t status);
  void post_parts(size_t slot);
  void post_waiting();
  bool last_of_its_cookie(const Move& push) const;
  void end_move(Move& move);
  Status not_pinned(int error, uint64_t length) const;
  Status ended(int error) const;
  void note_call_error(int error);

  ContextCore& context_;
  PeerCharge charge_;
  KmodHost& host_;
  KmodSocket socket_;
  KmodPlace peer_;
  wire::Hello ours_, theirs_;
  proto::DirectClient* client_ = nullptr;
  State state_ = State::kMeeting;
  bool calling_ = false, stopped_ = false, watching_ = false;
  bool readable_ = false, wants_room_ = false, found_room_ = false;
  // A transfer is over or was called back, which no event may tell: the parts of moves that found
  // no room are to be posted again.
  bool freed_ = false;
  int looks_ = 0;
  uint64_t copied_seen_ = 0,
           copied_unclaimed_ = 0;  // of what the kernel counts: known here, and in no receipt yet
  // A transfer ended as only a session's end makes it; the socket says why.
  bool broken_ = false;
  uint32_t broken_status_ = 0;
  // Of a call that told the session's end, before which there may be something to read; 0: none.
  int call_error_ = 0;
  std::array<Window, kWindows> windows_;
  std::array<Move, kMoves> moves_;
  std::vector<Event> events_;
};

}  // namespace sluice::kmod

#endif  // SLUICE_KMOD_CONNECTION_H_
