// Both ends of a connection in one process: the reference behaviour, and the trusted
// fake of tests. A mutex and plain queues; the memory needs no mapping.
#ifndef SLUICE_LOOPBACK_LINK_H_
#define SLUICE_LOOPBACK_LINK_H_

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/runtime/mailbox.h>
#include <sluice/spi/link.h>

namespace sluice::loopback {

class LoopbackLink;
struct Wire;

LinkTraits loopback_traits();

// The ends of one context for which something has come since it looked. Thread: any.
class RungEnds {
 public:
  using End = std::pair<std::shared_ptr<Wire>, int>;  // and its side
  void add(std::shared_ptr<Wire> wire, int side);
  void add_closed();  // one of its links has closed
  bool empty() const { return !any_.load(std::memory_order_acquire); }
  // True: a link has closed.
  bool take(std::vector<End>& out);

 private:
  std::mutex mutex_;
  std::vector<End> ends_;
  bool closed_ = false;
  std::atomic<bool> any_{false};
};

// Memory of an end that has closed, of which the other end may still have views.
using Loans = std::vector<StorageRef>;

// Shared by the two ends, which may belong to contexts of two threads.
struct Wire {
  struct Side;
  struct Bell : Letter {
    Side* side = nullptr;
    std::shared_ptr<Wire> keep;  // while it is out
  };
  struct Side {
    std::deque<std::vector<std::byte>> arrived;  // messages for this side
    size_t arrived_bytes = 0;
    bool was_full = false;  // the other side was told "no room"
    bool closed = false;    // this side has ended
    std::shared_ptr<Mailbox> mailbox;
    std::shared_ptr<Arena> arena;
    Bell bell;  // wakes this side's context; posted at most once at a time
    bool bell_posted = false;
    std::shared_ptr<RungEnds> rung;  // null: no link yet, or none any more
    bool is_rung = false;            // this side is in it
    LoopbackLink* link = nullptr;    // for this side's context
    // Of this side's memory; held by each view of it, too. Null once both sides have closed. The
    // wire may last longer: a bell keeps it in the mailbox of a context that looks no more.
    std::shared_ptr<Loans> loans = std::make_shared<Loans>();
    // See Link::begin_copy().
    std::atomic<uint64_t> withdrawals{0};
    std::atomic<bool> copying{false};
  };
  std::mutex mutex;
  Side sides[2];
};

class LoopbackLink final : public ViewLink {
 public:
  // Whatever comes for it, or makes room, adds it to `rung`. What came before may be there already.
  LoopbackLink(std::shared_ptr<RungEnds> rung, std::shared_ptr<Wire> wire, int side,
               std::string name);
  ~LoopbackLink() override { close(); }
  void set_client(LinkClient* session, ViewClient*) override { client_ = session; }
  bool closed() const { return closed_; }
  // Handles what has arrived, up to a bound; returns how much.
  size_t poll(Instant now);
  // Whether poll() has to be called once more.
  bool due() const;
  bool marked_due = false;  // the provider's

  const LinkTraits& traits() const override { return traits_; }
  bool send(ConstBytes header, std::span<const ConstBytes> payload) override;
  void flush() override {}
  Result<bool> export_run(const std::byte* data, size_t length, wire::Segment& out) override;
  Result<ImportedRun> import_run(const wire::Segment& segment) override;
  bool begin_copy(uint64_t withdrawals_seen) override;
  void end_copy() override { mine().copying.store(false, std::memory_order_release); }
  void count_withdrawals(uint64_t total) override {
    mine().withdrawals.store(total, std::memory_order_seq_cst);
  }
  bool peer_is_copying() override { return theirs().copying.load(std::memory_order_seq_cst); }
  void quarantine(StorageRef loan) override;
  void close() override;
  std::string local_name() const override { return name_; }
  std::string peer_name() const override { return name_; }
  // Something has come for this side. Requires: the wire's mutex.
  static void ring(const std::shared_ptr<Wire>& wire, Wire::Side& side);

 private:
  Wire::Side& mine() { return wire_->sides[side_]; }
  Wire::Side& theirs() { return wire_->sides[1 - side_]; }

  std::shared_ptr<Wire> wire_;
  int side_;
  std::string name_;
  LinkTraits traits_;
  LinkClient* client_ = nullptr;
  bool closed_ = false;
  bool blocked_ = false;
  bool down_ = false;
};

}  // namespace sluice::loopback

#endif  // SLUICE_LOOPBACK_LINK_H_
