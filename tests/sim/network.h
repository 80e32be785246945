// Two simulated links under virtual time: delay, narrow queues, fragments, stalls, a cut
// at any moment, and a shared memory that knows who reads what. Knows nothing of
// sessions but their LinkClient.
#ifndef SLUICE_TESTS_SIM_NETWORK_H_
#define SLUICE_TESTS_SIM_NETWORK_H_

#include <array>
#include <deque>
#include <memory>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/spi/link.h>

#include "tests/sim/random.h"
#include "tests/sim/trace.h"

namespace sluice::sim {

struct NetworkOptions {
  bool views = true;
  uint32_t inline_bytes = 64;
  uint32_t most_inline_bytes = 0;
  uint32_t data_bytes = 512;
  size_t queue_bytes = 4096;   // waiting at the sender; beyond it send() says no
  size_t window_bytes = 4096;  // on the way at once
  Duration latency_max{};
  uint64_t refuse_percent = 0;  // send() says no although there is room
  uint64_t fragment_max = 512;
  bool strict_flush = false;      // nothing leaves before flush()
  uint64_t announce_percent = 0;  // export_run() says "no room now"
};

// Sees every control message as it is sent and as it is handled.
class WireSpy {
 public:
  virtual void message_sent(int from, ConstBytes header) = 0;
  virtual void message_handled(int at, ConstBytes header) = 0;

 protected:
  ~WireSpy() = default;
};

class Network;

// Messages, as any path carries them.
class SimEnd {
 public:
  SimEnd(Network& network, int side) : network_(network), side_(side) {}

 protected:
  ~SimEnd() = default;
  const LinkTraits& network_traits() const;
  bool send_message(ConstBytes header, std::span<const ConstBytes> payload);
  void flush_messages();
  bool ask_eager() const;
  void keep(StorageRef loan);
  void end();
  std::string name(int side) const { return side == 0 ? "sim:A" : "sim:B"; }

  Network& network_;
  int side_;
};

template <typename Kind>
class SimLink : public Kind, protected SimEnd {
 public:
  using SimEnd::SimEnd;
  ~SimLink() override { end(); }
  const LinkTraits& traits() const override { return network_traits(); }
  bool send(ConstBytes header, std::span<const ConstBytes> payload) override {
    return send_message(header, payload);
  }
  void flush() override { flush_messages(); }
  bool prefer_eager() const override { return ask_eager(); }
  void quarantine(StorageRef loan) override { keep(std::move(loan)); }
  void close() override { end(); }
  std::string local_name() const override { return name(side_); }
  std::string peer_name() const override { return name(1 - side_); }
};

class SimViewLink final : public SimLink<ViewLink> {
 public:
  using SimLink::SimLink;
  void set_client(LinkClient* session, ViewClient* transfer) override;
  Result<bool> export_run(const std::byte* data, size_t length, wire::Segment& out) override;
  Result<ImportedRun> import_run(const wire::Segment& segment) override;
};

class SimStreamLink final : public SimLink<StreamLink> {
 public:
  using SimLink::SimLink;
  void set_client(LinkClient* session, StreamClient* transfer) override;
  bool push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override;
  void settle(uint64_t cookie) override;
};

// Outlives the sessions and every view. Ends of it are numbered 0 and 1.
class Network {
 public:
  Network(const NetworkOptions& options, uint64_t seed, std::array<Arena*, 2> arenas, Trace& trace,
          WireSpy& spy);
  ~Network();

  AnyLink make_link(int side) {
    if (options_.views) return std::make_unique<SimViewLink>(*this, side);
    return std::make_unique<SimStreamLink>(*this, side);
  }

  // Moves what may move by now from the senders' queues to the way.
  void pump();
  // When pump() has something to do, and when poll() of a side has; kNever: only after
  // somebody else has acted.
  Instant next_pump() const;
  Instant next_poll(int side) const;
  // The side's turn: messages, pushed(), writable(), link_down(), as a backend's poll.
  void poll(int side);

  // Nothing from this side moves before `until`.
  void stall(int from, Instant until);
  // The path breaks now; each side hears of it at its time.
  void cut(std::array<Instant, 2> told, bool lose_what_is_on_the_way);
  // The process of this side is gone: it never acts again, its mappings are void.
  void crash(int side);
  // No more chance: full speed, wide queues.
  void heal();

  // Whether this side's memory is mapped for reading at the other now.
  bool read_by_peer(int owner, const std::byte* data, size_t length) const;
  size_t live_imports() const { return imports_.size(); }
  // Gives back loans whose reader cannot read any more.
  void release_quarantine();
  size_t quarantined() const { return ends_[0].quarantine.size() + ends_[1].quarantine.size(); }
  bool broken() const { return broken_; }
  bool closed(int side) const { return ends_[side].closed; }

 private:
  friend class SimEnd;
  friend class SimViewLink;
  friend class SimStreamLink;
  class Import;

  // A message that waits at the sender. DATA is read from the sender's memory when it
  // leaves.
  struct Waiting {
    std::vector<std::byte> bytes;  // header, and the payload of a control message
    size_t header_bytes = 0;
    bool data = false;
    std::array<ConstBytes, kMaxPlaces> pieces;
    size_t piece_count = 0;
    uint64_t length = 0, gone = 0, cookie = 0, id = 0, offset = 0;
  };
  struct Packet {
    Instant arrives;
    std::vector<std::byte> bytes;
    size_t header_bytes = 0;
    bool data = false;
    uint64_t id = 0, offset = 0, left_in_message = 0;
    size_t done = 0;
  };
  struct End {
    LinkClient* client = nullptr;
    StreamClient* data = nullptr;  // of a stream
    bool closed = false;           // close() was called
    bool crashed = false;
    bool told_down = false;
    Instant down_at = kNever;
    // Outgoing.
    std::deque<Waiting> queue;
    size_t queue_bytes = 0;
    size_t may_leave = 0;    // items of the queue that were flushed
    bool want_room = false;  // the sender was refused
    size_t wanted_bytes = 0;
    Instant stalled_until = kStart;
    Instant next_move = kStart;
    std::deque<std::pair<uint64_t, uint64_t>> pushed;  // cookie, bytes
    // On the way from this end.
    std::deque<Packet> way;
    size_t way_bytes = 0;
    Instant last_arrival = kStart;
    std::vector<StorageRef> quarantine;
    uint64_t rides_asked = 0;
  };

  bool accept(int side, size_t bytes);
  bool swallow(int side) const { return ends_[side].closed || broken_ || ends_[1 - side].crashed; }
  bool has_room(const End& end) const {
    return end.queue.empty() || end.queue_bytes + end.wanted_bytes <= options_.queue_bytes;
  }
  bool move_one(int side);
  void depart(End& end, Packet packet);
  void drop_queue(End& end);
  void bring_down(int side, const Status& why);
  bool handle_control(int side, Packet& packet);
  bool handle_data(int side, Packet& packet);

  NetworkOptions options_;
  Random random_;
  Trace& trace_;
  WireSpy& spy_;
  std::array<Arena*, 2> arenas_;
  LinkTraits traits_;
  std::array<End, 2> ends_;
  std::vector<Import*> imports_;
  bool broken_ = false;
};

}  // namespace sluice::sim

#endif  // SLUICE_TESTS_SIM_NETWORK_H_
