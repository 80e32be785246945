// One SLP session with its memory: the pieces that its transfers move, the windows that the
// peer may reach, and the greeting. What comes is kept until the owner asks for it, but for
// messages. Knows no session of ours.
#ifndef SLUICE_L2_CONNECTION_H_
#define SLUICE_L2_CONNECTION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sluice/base/clock.h>
#include <sluice/l2/carrier/frames.h>
#include <sluice/l2/cipher.h>
#include <sluice/l2/counted.h>
#include <sluice/l2/machines.h>
#include <sluice/runtime/secret.h>
#include <sluice/l2/timers.h>
#include <sluice/l2/work_pool.h>
#include <sluice/proto/direct_connection.h>
#include <sluice/runtime/peer_account.h>
#include <sluice/spi/eager.h>

struct slp_base;
struct slp_config;
struct slp_frame;
struct slp_hello;
struct slp_node;
struct slp_session;
struct slp_tx;

namespace sluice::l2 {

class Connection;
class Port;

// Where the frames of a batch are made; one for all connections of a context. Large: what a
// single message does not use of it is not touched.
class SendingRoom {
 public:
  // `batch`: frames of one call, at most kBatch.
  explicit SendingRoom(size_t batch);
  ~SendingRoom();
  slp_tx& tx(size_t i);
  size_t batch() const { return batch_; }
  std::array<FrameOut, kBatch> frames;
  // Room for sealed frames, which are copied.
  void reserve(size_t frame_bytes) {
    if (frame_bytes <= slot_bytes_) return;
    slot_bytes_ = frame_bytes;
    memory_ = std::make_unique_for_overwrite<uint8_t[]>(kBatch * slot_bytes_);
  }
  uint8_t* slot(size_t i) { return memory_.get() + i * slot_bytes_; }

 private:
  std::unique_ptr<slp_tx[]> tx_;
  std::unique_ptr<uint8_t[]> memory_;
  size_t slot_bytes_ = 0;
  size_t batch_;
};

// The owner of the connections of a context.
class ConnectionHost {
 public:
  // The connection may have frames to send. May be called again before they are.
  virtual void activate(Connection& connection) noexcept = 0;
  // The same, from a call of the program's, which may not come back soon: they leave at once.
  virtual void posted(Connection& connection) noexcept = 0;
  // From a connection's beginning to its end.
  virtual void remember(Connection& connection) = 0;
  virtual void forget(Connection& connection) noexcept = 0;
  virtual slp_node& node() = 0;
  // What the connections with that peer share.
  virtual std::shared_ptr<Machine> machine_at(const PeerAddress& peer) = 0;
  virtual SendingRoom& sending_room() = 0;
  virtual WorkPool& work() = 0;
  // Largest frame of this side, at least kLeastFrame.
  virtual uint16_t most_frame_bytes() const = 0;

 protected:
  ~ConnectionHost() = default;
};

// Windows at once, and transfers at once: SLP's own limits.
inline constexpr size_t kWindows = 64;
inline constexpr size_t kMoves = 32;
// A control message with its payload.
inline constexpr uint32_t kLargestMessage = kEagerBytes + wire::kMaxHeaderBytes;

class Connection final : public proto::DirectConnection {
 public:
  enum class State : uint8_t { kConnecting, kGreeting, kReady, kEnded };
  struct Place {
    Port* port;
    PeerAddress peer;
    uint16_t peer_port;
    std::shared_ptr<const Secret> secret = nullptr;  // null: nothing is sealed
  };

  // Says HELLO; progress comes by frames and timers. Errors: kTryAgain (too many of the port).
  static Result<std::unique_ptr<Connection>> connect(ConnectionHost& host, const Place& place,
                                                     const wire::Hello& ours);
  // Answers a HELLO that the listener let pass. Errors: kUnsupported, kCorrupt, kTryAgain.
  static Result<std::unique_ptr<Connection>> accept(ConnectionHost& host, const Place& place,
                                                    const slp_hello& hello,
                                                    const wire::Hello& ours);
  ~Connection() override;

  State state() const { return state_; }
  void fail(Status why) override;
  const wire::Hello& ours() const { return ours_; }
  const wire::Hello& peer() const { return peer_; }
  const Place& place() const { return place_; }
  Machine& machine() const { return *machine_; }
  // Counts this connection to its peer's account as one of these, and no more as what it was
  // before. Errors: kTryAgain (the peer has too many; it stays what it was).
  Status charge(PeerResource resource);
  // Instead of what it was charged as before.
  void hold(PeerCharge charge) { charge_ = std::move(charge); }
  Path path() const;
  Path bulk_path() const override { return path(); }
  uint64_t peer_nonce() const { return peer_nonce_; }
  // The peer has answered a HELLO, though it may not have heard the next one yet.
  bool was_heard() const;
  // Connecting: what refusals said that prove nothing; else ok.
  Status hint() const;
  // Its HELLO was not an old one. Says so once.
  bool became_confirmed();
  std::string local_name() const override;
  std::string peer_name() const override;

  // From the port. False: not of this session.
  bool on_frame(const slp_frame& frame, const slp_base& base, Instant now);
  void restarted();
  void on_timer(Instant now);
  // The carrier takes no larger frames any more.
  void limit_frames(uint16_t mtu);
  Instant next_timeout() const;
  // Sends what there is, up to a bound; true if there is more.
  bool pump(Instant now);

  void set_client(proto::DirectClient* client) override;
  size_t turn(Instant now) override;
  // What is likely to come next: more of the pull whose front the last frame was.
  Expected expected();
  uint64_t uncopied_in(uint64_t bytes) override;
  bool has_news() const override { return !events_.empty() || !early_.empty() || held_back_; }

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
  bool drained() const override;
  void stop() override;
  bool stopped() const { return stopped_; }

  Timer timer{.owner = this};  // the host's

 private:
  struct Ops;
  static Status status_of(int status, Scope scope = Scope::kEndpoint);
  struct Event {
    enum class Kind : uint8_t { kNone, kMoved, kRefused, kWindowClosed, kNotice } kind;
    uint32_t notice = 0;
    uint64_t cookie = 0, length = 0;
    int refused = 0;  // a slp_status: why a move was
  };
  struct Window {
    std::byte* data = nullptr;
    uint64_t length = 0, cookie = 0;
    uint32_t handle = 0;  // 0: free
  };
  struct Move {
    std::array<MutableBytes, kMaxPlaces> pieces;
    size_t count = 0;  // 0: free
    uint64_t length = 0, cookie = 0;
    bool waiting = false;  // a push with a notice: until the others of its cookie are over
    uint32_t handle = 0, notice = 0;
    uint64_t offset = 0;
    uint64_t front = 0;  // of a pull: nothing beyond has come
  };
  Connection(ConnectionHost& host, const Place& place, const wire::Hello& ours, bool active);
  Status configure(slp_config& config);
  void send_hello();
  void send_bye(Code why);
  bool take_message(ConstBytes message);
  void take_hello(ConstBytes message);
  void on_ended(uint64_t cookie, int status);
  void on_state(bool up, int why);
  size_t find_pieces(uint64_t cookie, uint64_t offset, uint64_t bytes, std::span<MutableBytes> out);
  void note_front(size_t slot, uint64_t end, const slp_frame& frame, uint32_t at);
  void gather(const slp_tx& tx, FrameOut& frame);
  bool seal(const slp_tx& tx, FrameOut& frame, uint8_t* room);
  size_t start_move(bool pull, const wire::Segment& peer, uint64_t cookie);
  bool last_of_its_cookie(const Move& push) const;
  void push_waiting();
  void posted(size_t slot, int status);
  void over(const Move& move, int status);
  void note_ended(Status why);

  ConnectionHost& host_;
  Place place_;
  wire::Hello ours_, peer_;
  std::shared_ptr<Machine> machine_;
  PeerCharge charge_;
  std::unique_ptr<uint64_t[]> memory_;
  WorkPool::Block work_;  // lent to the session; null: it is idle
  std::unique_ptr<Cipher> cipher_;
  slp_session* session_ = nullptr;
  proto::DirectClient* client_ = nullptr;
  uint64_t peer_nonce_ = 0;
  uint32_t number_ = 0;
  State state_ = State::kConnecting;
  const bool active_;
  bool stopped_ = false, leaving_ = false, confirmed_ = false;
  bool want_room_ = false, want_window_ = false, want_pull_ = false, want_push_ = false;
  Instant now_;
  SessionCounts counts_;
  std::vector<Window> windows_;  // as many as were open at once
  std::vector<Move> moves_;      // none before the first, then kMoves
  Expected next_;                // as far as the last frame told
  size_t next_move_ = kMoves;
  uint64_t copied_in_ = 0;  // from frames to memory, and in no receipt yet
  std::vector<Event> events_;
  // Messages that came before there was a client.
  std::vector<std::vector<std::byte>> early_;
  size_t early_bytes_ = 0;
  bool held_back_ = false;  // the client takes no messages for now
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_CONNECTION_H_
