// One port of one carrier: which connection each frame is for. Listens without state for who
// has not shown that frames reach it.
#ifndef SLUICE_L2_PORT_H_
#define SLUICE_L2_PORT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <sluice/base/log.h>
#include <sluice/l2/carrier/allowance.h>
#include <sluice/l2/carrier/frames.h>
#include <sluice/l2/carrier/places.h>
#include <sluice/l2/connection.h>
#include <sluice/l2/flood_watch.h>
#include <sluice/proto/turn_budget.h>
#include <sluice/runtime/context_core.h>

struct slp_base;
struct slp_listener;

namespace sluice::l2 {

// Gets callers whose HELLO was valid.
class PortListener {
 public:
  // False: it is not wanted, and told so.
  virtual bool on_hello(const PeerAddress& from, uint16_t peer_port, const slp_hello& hello) = 0;

 protected:
  ~PortListener() = default;
};

// The owner that polls ports in its turns.
class PortOwner {
 public:
  // Something has come there, or is about to.
  virtual void heat(Port& port) noexcept = 0;

 protected:
  ~PortOwner() = default;
};

class Port final : public EventHandler {
 public:
  // Connections of one port.
  static constexpr size_t kMostConnections = 16384;

  // Errors: kNoMemory.
  static Result<std::unique_ptr<Port>> open(ContextCore& context, PortOwner& owner,
                                            OpenedCarrier opened);
  ~Port();

  Carrier& carrier() { return *carrier_; }
  uint16_t number() const { return number_; }
  std::string name() const { return carrier_->address_text(carrier_->own_address(), number_); }

  // The number that frames to this connection carry. Errors: kTryAgain.
  Result<uint32_t> add(Connection& connection);
  void remove(uint32_t connection);
  // With a secret, only callers that have it too are heard. Errors: those of Cipher::open().
  Status set_listener(PortListener* listener, std::shared_ptr<const Secret> secret);
  void remove_listener() { listener_ = nullptr; }
  bool in_use() const { return listener_ != nullptr || !connections_.empty(); }

  // Whether epoll says when something comes. Whom it need not tell, the kernel has less to do for.
  // Errors: kNoMemory.
  Status watch();
  void unwatch();

  // Connections of an interface that has not been usable for 3 s end; those of one whose MTU has
  // become smaller send smaller frames. To be called as often as connections have timers: once
  // a second at least.
  void check(Instant now);
  // Begins to drop frames of strangers, and ends it. A frame that is dropped is no work: to be
  // called now and then without any.
  void mind_floods(Instant now);
  // Frames of strangers are dropped, for a flood.
  bool guarded() const { return floods_.keeps_one_of() > 1; }

  // Its next frames may be received where they belong.
  void expect(Connection& connection) {
    if (carrier_->scatters()) expecting_ = &connection;
  }

  // Hands out what has come, while there is budget; returns how many frames. If there were any,
  // `now` is when they were taken. What is left of a batch stays in the room, which is this port's
  // until resume() has handed it out.
  size_t receive(ReceiveRoom& room, Instant& now, proto::TurnBudget& budget);
  // Requires: the room is this port's.
  size_t resume(ReceiveRoom& room, Instant& now, proto::TurnBudget& budget);

 private:
  Port(ContextCore& context, PortOwner& owner, OpenedCarrier opened);
  void on_event(uint32_t epoll_events) noexcept override;
  void put_strays_aside(ReceiveRoom& room);
  size_t hand_out(ReceiveRoom& room, Instant now, proto::TurnBudget& budget);
  void take(const FrameIn& in, Instant now);
  void take_hello(const FrameIn& in, const slp_frame& frame, const slp_base& base, Instant now);
  void refuse(const FrameIn& in, const slp_frame& frame, Instant now);
  void guard();
  void reply(const FrameIn& in, const uint8_t* bytes, size_t count);
  Connection* find(uint32_t number) const;
  // The same, if it is not over.
  Connection* find_living(uint32_t number) const;
  void end_predecessors(const Connection& connection);

  ContextCore& context_;
  PortOwner& owner_;
  std::unique_ptr<Carrier> carrier_;
  uint16_t number_;
  PortListener* listener_ = nullptr;
  std::unique_ptr<slp_listener> listening_;
  std::unique_ptr<Cipher> cipher_;
  // Random numbers: nobody who does not see the frames of a connection knows its own.
  std::unordered_map<uint32_t, Connection*> connections_;
  mutable uint32_t last_number_ = 0;  // that was looked for: frames come in rows; 0: none
  mutable Connection* last_ = nullptr;
  Places places_;
  Instant looked_{}, unusable_since_{};
  uint32_t bad_looks_ = 0;
  uint16_t last_mtu_;
  bool watched_ = false;
  Allowance refusals_;
  FloodWatch floods_;
  bool guard_is_old_ = false;  // a connection has begun that the kernel's filter does not know
  LogThrottle floods_told_;
  uint32_t hellos_left_ = 0;  // that make a connection in this turn
  Connection* expecting_ = nullptr;
  uint32_t distrust_ = 0;  // receives until something is expected again
};

}  // namespace sluice::l2

#endif  // SLUICE_L2_PORT_H_
