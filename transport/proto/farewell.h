// The orderly end of a connection: what was posted before goes out, then BYE, and the peer's BYE.
#ifndef SLUICE_PROTO_FAREWELL_H_
#define SLUICE_PROTO_FAREWELL_H_

#include <chrono>

#include <sluice/proto/connection.h>
#include <sluice/proto/control_queue.h>
#include <sluice/proto/operation_ends.h>
#include <sluice/proto/operations.h>
#include <sluice/proto/send_queue.h>

namespace sluice::proto {

// How long a peer that was turned away may take to answer our BYE.
inline constexpr Duration kFarewellTime = std::chrono::seconds(1);

// Thread: the context's. Blocks: never.
class Farewell {
 public:
  Farewell(Connection& connection, Operations& operations, OperationEnds& ends,
           ControlQueue& control, SendQueue& sends)
      : connection_(connection),
        operations_(operations),
        ends_(ends),
        control_(control),
        sends_(sends) {}

  // The connection is to be closed. Requires: it is connected.
  void start();
  // Says so as soon as nothing waits before it. Called in each round.
  void go_on() {
    if (connection_.draining && !connection_.link_dead) say_in_turn();
  }
  // Says why we do not take the peer: at once, before anything else; or with start(), and the
  // connection ends after kFarewellTime at the latest.
  void refuse_at_once(Code why);
  void refuse(Code why);
  // Ends the connection to a peer that has not answered refuse(); returns when to look again.
  Instant check(Instant now);

  void on_bye(const wire::Bye& bye);
  // Nothing follows from either end.
  bool said_by_both() const { return sent_ && received_; }

 private:
  void say_in_turn();

  Connection& connection_;
  Operations& operations_;
  OperationEnds& ends_;
  ControlQueue& control_;
  SendQueue& sends_;
  Code says_ = Code::kOk;   // what our BYE says
  Instant limit_ = kNever;  // for the answer of a peer that was turned away
  bool sent_ = false;
  bool received_ = false;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_FAREWELL_H_
