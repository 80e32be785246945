// How two ends meet by the RDMA connection manager, and what belongs to a connection from
// then on: its id and its queue pair, or several of them: each further one is met in the same
// way, and bound to the first by a token in the private data of both. Knows no session.
#ifndef SLUICE_VERBS_CONNECTION_H_
#define SLUICE_VERBS_CONNECTION_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sluice/runtime/context_core.h>
#include <sluice/verbs/cm_hub.h>
#include <sluice/verbs/device.h>
#include <sluice/verbs/lanes.h>
#include <sluice/verbs/queue_pair.h>

namespace sluice::verbs {

// Devices by name, opened once per context.
class DeviceTable {
 public:
  virtual Result<Device*> device(const std::string& name) = 0;

 protected:
  ~DeviceTable() = default;
};

// Names one connection; the end that accepts it chooses it. Zeros: none.
using LaneToken = std::array<std::byte, 16>;

// How many queue pairs the bytes of each direction are spread over: SLUICE_RDMA_QUEUE_PAIRS at
// the end that connects, 1 to kMostStripes; 1 without it.
uint32_t stripes_wanted();

class Connection final : private CmClient, private proto::DirectClient {
 public:
  // kJoining: the further queue pairs are being connected.
  enum class State : uint8_t { kResolving, kConnecting, kJoining, kGreeting, kReady, kEnded };

  // Starts to connect; progress comes by events and step().
  static Result<std::unique_ptr<Connection>> connect(CmHub& hub, DeviceTable& devices,
                                                     SocketAddress address, const wire::Hello& ours,
                                                     Instant deadline);
  // Answers a request. The id is the connection's from now on, also on failure.
  static Result<std::unique_ptr<Connection>> accept(CmHub& hub, DeviceTable& devices,
                                                    const CmEvent& request,
                                                    const wire::Hello& ours);
  // The machine that sent a request.
  static PeerIdentity requester_of(const CmEvent& request);
  // A request for a further queue pair of some connection: of which. Nothing: for a connection.
  static std::optional<LaneToken> lane_asked_of(const CmEvent& request);
  // Refuses a request, and is done with its id.
  static void refuse(CmHub& hub, const CmEvent& request);
  static void refuse_lane(CmHub& hub, const CmEvent& request);
  // Answers such a request, if it is one of those that were agreed on. The id is the
  // connection's from now on, also on failure. Errors: kCorrupt (a peer that lies), as accept().
  Status accept_lane(const CmEvent& request);
  bool has_token(const LaneToken& token) const { return !lanes_.empty() && token_ == token; }
  ~Connection();

  State state() const { return state_; }
  // kEnded: why.
  const Status& why() const { return why_; }
  // The peer ended the connection, its process is gone, or the device is.
  bool peer_gone() const { return peer_gone_ || (!lanes_.empty() && lane_gone()); }
  bool concerned_by(const DeviceEvent& event) const;
  // Moves the greeting on. Returns how much it did.
  size_t step(Instant now);
  // About to sleep. False: step() has work. What comes after HELLO is of whoever takes it.
  bool arm() {
    return queue_ == nullptr || state_ == State::kEnded || state_ == State::kReady || queue_->arm();
  }
  void fail(Status why);

  QueuePair& queue() { return *queue_; }
  // Over which this end reaches the other's memory; and those for the other way.
  std::vector<QueuePair*> reaching() const { return lanes_of(active_); }
  std::vector<QueuePair*> reached() const { return lanes_of(!active_); }
  const wire::Hello& ours() const { return ours_; }
  const wire::Hello& peer() const { return peer_; }
  wire::Hello& ours_to_send() { return ours_; }
  std::string local_name() const;
  std::string peer_name() const;
  PeerIdentity peer_identity() const;
  // Tells the peer's connection manager; the queue pair is ended by the caller before.
  void disconnect();

 private:
  Connection(CmHub& hub, DeviceTable& devices, const wire::Hello& ours, bool active)
      : hub_(hub), devices_(devices), ours_(ours), active_(active) {}
  Status resolve_to(const SocketAddress& address);
  Status make_queue();
  struct PrivateData;
  Status join(const PrivateData& theirs);
  void become_lane(Connection& whole, uint8_t number);
  size_t step_joining();
  bool all_lanes_here() const;
  bool lane_gone() const;
  std::vector<QueuePair*> lanes_of(bool asked_by_active) const;
  Status request();
  Status respond(const CmEvent& request);
  Status finish_connecting(const CmEvent& response);
  Status learn_of_peer(const CmEvent& established);
  void send_hello();
  void on_cm_event(const CmEvent& event) noexcept override;
  void on_message(ConstBytes message, Instant now) override;
  void on_notice(uint32_t notice, Instant now) override;
  void on_moved(uint64_t, uint64_t, Instant) override {}
  void on_window_closed(uint64_t, Instant) override {}

  CmHub& hub_;
  DeviceTable& devices_;
  wire::Hello ours_, peer_;
  bool active_;
  bool hello_sent_ = false;
  bool peer_gone_ = false;
  State state_ = State::kResolving;
  Status why_;
  rdma_cm_id* id_ = nullptr;
  int timeout_ms_ = 2000;
  std::unique_ptr<QueuePair> queue_;
  // Those of odd number carry requests of the active end, the others those of the passive one.
  uint32_t stripes_ = 1;
  LaneToken token_{};
  std::vector<std::unique_ptr<Connection>>
      lanes_;  // by number - 1; the peer's have yet to come where null
  // A lane's own: its number, and whose it is.
  uint8_t lane_ = 0;
  Connection* whole_ = nullptr;
  SocketAddress address_;  // of the peer, where this end is the active one
};

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_CONNECTION_H_
