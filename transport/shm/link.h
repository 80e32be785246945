// One shared-memory connection: a ring of control messages each way, and the peer's
// arena mapped read-only. Knows nothing of what the messages mean.
#ifndef SLUICE_SHM_LINK_H_
#define SLUICE_SHM_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/base/descriptor.h>
#include <sluice/proto/turn_budget.h>
#include <sluice/runtime/context_core.h>
#include <sluice/shm/connection_account.h>
#include <sluice/shm/mapper.h>
#include <sluice/shm/ring.h>
#include <sluice/shm/socket.h>
#include <sluice/spi/link.h>

namespace sluice::shm {

// What is left of a closed connection whose peer may still read what we lent it, or whose memory
// views of ours still show.
struct Remains {
  std::shared_ptr<Socket> socket;
  std::vector<StorageRef> loans;
  bool end_due = false;  // the packet that ends our side had no room yet
  std::shared_ptr<ConnectionAccount> account;
};

class ShmLink;

// What a link asks of its provider.
class LoanKeeper {
 public:
  // The link has something to do that poll() does, or may have: it was not being polled.
  virtual void poll_again(ShmLink& link) = 0;
  // When the peer ends its direction (EPOLLRDHUP) or the socket hangs up, it has released
  // everything. The account is settled once nothing of the peer is mapped either.
  virtual void keep(Remains remains) = 0;
  // Settles what has come to its end since: before a peer is told that it has too much.
  virtual void settle() = 0;

 protected:
  ~LoanKeeper() = default;
};

// Tells the peer that we send nothing more. kTryAgain: no room now.
Status send_end(int fd);

// What the handshake has produced.
struct LinkParts {
  std::shared_ptr<Socket> socket;  // connected, SOCK_SEQPACKET, nonblocking
  std::unique_ptr<OwnRegion> own;
  std::unique_ptr<PeerRegion> peer;
  uint64_t peer_arena_bytes = 0;
  std::string local_name, peer_name;
  std::shared_ptr<ConnectionAccount> account;
};

// What all connections of a context may do in one turn of progress().
class Turn {
 public:
  // Before each message. False: the rest waits for the next turn.
  bool spend() { return !over_ && !(over_ = !budget_.spend()); }
  bool over() const { return over_; }

 private:
  proto::TurnBudget budget_;
  bool over_ = false;
};

class ShmLink final : public ViewLink, public EventHandler {
 public:
  ShmLink(ContextCore& context, LoanKeeper& keeper, LinkParts parts);
  ~ShmLink() override;

  // Requires: before the first poll(). The client outlives the link's last call.
  void set_client(LinkClient* session, ViewClient* transfer) override {
    client_ = session;
    transfer_ = transfer;
  }
  // Must be called once before the first poll(). Errors: kNoMemory (epoll).
  Status watch();
  bool closed() const { return socket_ == nullptr; }

  // Handles what has arrived, up to a bound; returns how much.
  size_t poll(Instant now, Turn& turn) {
    if (!due()) [[likely]]
      return 0;
    return poll_busy(now, turn);
  }
  // Whether poll() would do anything.
  bool due() const { return reader_.ready() || pending_ != 0; }
  // About to sleep. False: something has arrived.
  bool begin_sleep();
  void end_sleep() { reader_.end_sleep(); }
  // Nothing came for long: from now on the peer rings the doorbell, as for a sleeper, and
  // LoanKeeper::poll_again() follows. False: there is something to do.
  bool rest();
  // How many calls of poll() in a row had nothing to do, and how many sleeps there were meanwhile;
  // for the provider.
  uint32_t idle_polls = 0, idle_sleeps = 0;
  // The ring or the socket to the peer is full: nobody rings when there is room again.
  bool blocked() const { return (pending_ & (kBlocked | kBellDue)) != 0; }

  // Link.
  const LinkTraits& traits() const override { return traits_; }
  bool send(ConstBytes header, std::span<const ConstBytes> payload) override;
  void flush() override {}
  bool prefer_eager() const override;
  Result<bool> export_run(const std::byte* data, size_t length, wire::Segment& out) override;
  Result<ImportedRun> import_run(const wire::Segment& segment) override;
  bool begin_copy(uint64_t withdrawals_seen) override { return gate_.begin_copy(withdrawals_seen); }
  void end_copy() override { gate_.end_copy(); }
  void count_withdrawals(uint64_t total) override { gate_.count_withdrawals(total); }
  bool peer_is_copying() override { return gate_.peer_is_copying(); }
  void quarantine(StorageRef loan) override { loans_.push_back(std::move(loan)); }
  void close() override;
  std::string local_name() const override { return local_name_; }
  std::string peer_name() const override { return peer_name_; }

  // EventHandler: doorbells, extents, the end of the peer.
  void on_event(uint32_t epoll_events) noexcept override;

 private:
  friend class RingPayload;
  // What poll() has to do without a message.
  enum Pending : uint8_t {
    kBlocked = 1,  // something had no room
    kBellDue = 2,  // the peer sleeps, and its bell had no room
    kEnding = 4,   // the peer has ended; what it wrote before is read, then link_down()
  };
  size_t poll_busy(Instant now, Turn& turn);
  size_t drain_ring(Instant now, Turn& turn);
  bool may_drain() const;
  bool nothing_left() const;
  Status handle_front(Instant now);
  Status follow_growth();
  bool grow();
  Result<bool> read_socket(int most, uint32_t wanted);
  Status take_extent(ConstBytes bytes, Descriptor memory);
  Status announce(const ExtentInfo& extent);
  void wake_peer();
  void ring(uint64_t sleep);
  void begin_ending();
  // poll() has to do that, and so has to be called.
  void need_poll(Pending what);
  void wake();
  void fail(const Status& why);

  ContextCore& context_;
  LoanKeeper& keeper_;
  LinkTraits traits_;
  LinkClient* client_ = nullptr;
  ViewClient* transfer_ = nullptr;
  std::shared_ptr<Socket> socket_;  // null: closed
  std::unique_ptr<OwnRegion> own_;
  std::unique_ptr<PeerRegion> peer_;
  RingWriter<std::atomic> writer_;
  RingReader<std::atomic> reader_;
  CopyGate<std::atomic> gate_;
  std::shared_ptr<ConnectionAccount> account_;
  PeerArena* peer_arena_;
  std::vector<bool> announced_;  // extents of ours the peer has, by id
  std::vector<StorageRef> loans_;
  uint64_t last_position_ = 0;   // ending: where what the peer can have written before ends
  uint32_t mapped_in_turn_ = 0;  // extents
  uint8_t pending_ = 0;
  bool imported_ = false;  // a tensor, in this poll(): what came behind it waits for the next one
  bool hung_up_ = false;   // the peer has released everything
  bool ended_ = false;     // the peer sends nothing more
  bool corrupt_ = false;
  bool rests_ = false;
  std::string local_name_, peer_name_;
};

}  // namespace sluice::shm

#endif  // SLUICE_SHM_LINK_H_
