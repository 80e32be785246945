#include <sluice/proto/farewell.h>

#include <string>

#include <sluice/base/fault_point.h>
#include <sluice/proto/bye.h>

#include "transport/proto/errors.h"

namespace sluice::proto {
namespace {

Status closing_status() {
  return Status(Code::kCancelled, Scope::kEndpoint, kOrigin, "the endpoint is being closed");
}

}  // namespace

void Farewell::start() {
  fault_point("session.close");
  sends_.run();
  connection_.state = EndpointState::kClosing;
  connection_.draining = true;
  operations_.for_each([&](Operation& op) {
    bool over =
        op.internal || op.state == OperationState::kReady || op.state == OperationState::kZombie;
    if (!over && !sends_.leaves_with_room(op)) ends_.end_early(&op, closing_status());
  });
  control_.send_releases();
  say_in_turn();
  connection_.activate();
}

// The peer reads nothing after our BYE: what was sent before the close goes first.
void Farewell::say_in_turn() {
  bool waiting = false;
  operations_.for_each([&](Operation& op) {
    if (op.internal || op.state != OperationState::kQueued) return;
    if (sends_.waits_for_credit()) return ends_.end_early(&op, closing_status());
    waiting = true;
  });
  if (waiting || connection_.link_dead) return;
  connection_.draining = false;
  sent_ = true;
  control_.send(wire::Bye{.code = says_});
}

void Farewell::refuse_at_once(Code why) {
  says_ = why;
  sent_ = true;
  control_.send(wire::Bye{.code = why});
}

void Farewell::refuse(Code why) {
  says_ = why;
  limit_ = after(connection_.exact_now(), kFarewellTime);
  connection_.arm_timeout(limit_);
  start();
}

Instant Farewell::check(Instant now) {
  if (limit_ <= now && !connection_.link_dead) connection_.fail(connection_.close_reason);
  return connection_.link_dead ? kNever : limit_;
}

void Farewell::on_bye(const wire::Bye& bye) {
  received_ = true;
  fault_point("session.bye");
  if (!sent_) {
    connection_.state = EndpointState::kClosing;
    connection_.close_reason =
        Status(Code::kUnreachable, Scope::kEndpoint, kOrigin, "the peer " + why_ended(bye.code));
    ends_.fail_all(connection_.close_reason);
    control_.send(wire::Bye{});
    sent_ = true;
    connection_.draining = false;
  }
  connection_.activate();
}

}  // namespace sluice::proto
