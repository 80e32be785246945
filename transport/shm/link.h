// One shared-memory connection: a ring of control messages each way, and the peer's
// arena mapped read-only. Knows nothing of what the messages mean.
#ifndef SLUICE_SHM_LINK_H_
#define SLUICE_SHM_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/api/context.h>
#include <sluice/proto/link.h>
#include <sluice/shm/mapper.h>
#include <sluice/shm/ring.h>

namespace sluice::shm {

// Loans of a closed connection whose peer may still read them.
class LoanKeeper {
 public:
  // Takes `fd`. When the peer ends its direction (EPOLLRDHUP) or the socket hangs up, it
  // has let go of everything. `end_due`: the packet that ends our side had no room yet.
  virtual void keep(int fd, std::vector<StorageRef> loans, bool end_due) = 0;

 protected:
  ~LoanKeeper() = default;
};

// Tells the peer that we send nothing more. kTryAgain: no room now.
Status send_end(int fd);

// What the handshake has produced. Closes its socket unless a link took it.
struct LinkParts {
  LinkParts() = default;
  LinkParts(LinkParts&& other) noexcept
      : fd(std::exchange(other.fd, -1)),
        own(std::move(other.own)),
        peer(std::move(other.peer)),
        peer_arena_bytes(other.peer_arena_bytes),
        local_name(std::move(other.local_name)),
        peer_name(std::move(other.peer_name)) {}
  LinkParts& operator=(LinkParts&& other) noexcept {
    std::swap(fd, other.fd);
    own = std::move(other.own);
    peer = std::move(other.peer);
    peer_arena_bytes = other.peer_arena_bytes;
    local_name = std::move(other.local_name);
    peer_name = std::move(other.peer_name);
    return *this;
  }
  ~LinkParts();

  int fd = -1;  // connected Unix socket (SOCK_SEQPACKET), nonblocking
  std::unique_ptr<OwnRegion> own;
  std::unique_ptr<PeerRegion> peer;
  uint64_t peer_arena_bytes = 0;
  std::string local_name, peer_name;
};

class ShmLink final : public proto::Link, public EventHandler {
 public:
  ShmLink(Context& context, LoanKeeper& keeper, LinkParts parts);
  ~ShmLink() override;

  // Requires: before the first poll(). The client outlives the link's last call.
  void set_client(proto::LinkClient* client) { client_ = client; }
  // Must be called once before the first poll(). Errors: kNoMemory (epoll).
  Status watch();
  bool closed() const { return fd_ < 0; }

  // Handles what has arrived, up to a bound; returns how much.
  size_t poll(Instant now) {
    if (!reader_.ready() && !blocked_) [[likely]] return 0;
    return poll_busy(now);
  }
  // About to sleep. False: something has arrived.
  bool begin_sleep();
  void end_sleep() { reader_.end_sleep(); }
  // The ring to the peer is full: nobody rings when there is room again.
  bool blocked() const { return blocked_; }

  // Link.
  const proto::LinkTraits& traits() const override { return traits_; }
  bool send(proto::ConstBytes header, std::span<const proto::ConstBytes> payload) override;
  bool push(proto::ConstBytes header, std::span<const proto::ConstBytes> payload, uint64_t cookie) override;
  void flush() override {}
  bool rides_now() const override;
  Result<bool> export_run(const std::byte* data, size_t length, wire::Segment& out) override;
  Result<proto::ImportedRun> import_run(const wire::Segment& segment) override;
  void quarantine(StorageRef loan) override { loans_.push_back(std::move(loan)); }
  void close() override;
  std::string local_name() const override { return local_name_; }
  std::string peer_name() const override { return peer_name_; }

  // EventHandler: doorbells, extents, the end of the peer.
  void on_event(uint32_t epoll_events) noexcept override;

 private:
  friend class RingPayload;
  size_t poll_busy(Instant now);
  size_t drain_ring(Instant now, size_t most);
  Status handle_front(Instant now);
  Status read_socket();
  Status take_extent(proto::ConstBytes bytes, int fd);
  Status announce(const ExtentInfo& extent);
  void wake_peer();
  void fail(const Status& why);

  Context& context_;
  LoanKeeper& keeper_;
  proto::LinkTraits traits_;
  proto::LinkClient* client_ = nullptr;
  int fd_;
  std::unique_ptr<OwnRegion> own_;
  std::unique_ptr<PeerRegion> peer_;
  RingWriter<std::atomic> writer_;
  RingReader<std::atomic> reader_;
  PeerArena* peer_arena_;
  std::vector<bool> announced_;  // extents of ours the peer has, by id
  std::vector<StorageRef> loans_;
  uint64_t rung_sleep_ = 0;      // the peer's sleep that we have rung for
  bool blocked_ = false;
  bool hung_up_ = false;         // the peer has let go of everything
  bool ended_ = false;           // the peer sends nothing more
  bool corrupt_ = false;
  std::string local_name_, peer_name_;
};

}  // namespace sluice::shm

#endif  // SLUICE_SHM_LINK_H_
