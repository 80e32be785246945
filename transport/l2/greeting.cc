// The greeting of a connection: HELLO both ways, or a BYE in its place. Knows no endpoint and no
// accept().
#include <string>
#include <utility>

#include <sluice/base/fault_point.h>
#include <sluice/l2/connection.h>
#include <sluice/proto/bye.h>

namespace sluice::l2 {
namespace {

constexpr const char* kOrigin = "l2/greeting";

// What a BYE in the place of a HELLO says.
Status refused(ConstBytes message) {
  wire::Bye bye;
  SLUICE_RETURN_IF_ERROR(wire::decode(message, bye));
  return proto::refused_by("the peer", bye.code, Scope::kEndpoint, kOrigin);
}

}  // namespace

void Connection::send_hello() {
  fault_point("l2.answered");
  std::byte header[wire::kMaxHeaderBytes];
  size_t length = wire::encode(ours_, header);
  (void)send(ConstBytes(header, length), {});  // the first message: there is room
}

// Sent instead of our HELLO, and not repeated: if the frame is lost, the peer learns only that the
// session is over.
void Connection::send_bye(Code why) {
  std::byte header[wire::kMaxHeaderBytes];
  size_t length = wire::encode(wire::Bye{.code = why}, header);
  (void)send(ConstBytes(header, length), {});
  (void)pump(now());
}

void Connection::take_hello(ConstBytes message) {
  Result<wire::Header> common = wire::decode_header(message);
  Status status = common.status();
  if (status.ok() && common->type == wire::MessageType::kBye) return fail(refused(message));
  if (status.ok() &&
      (common->type != wire::MessageType::kHello || common->header_bytes != message.size())) {
    status = Status(Code::kCorrupt, Scope::kEndpoint, kOrigin, "a message before HELLO");
  }
  if (status.ok()) status = wire::decode(message, peer_);
  if (status.ok()) status = wire::negotiate(ours_, peer_).status();
  // From now on it is no half-open one any more, whether or not somebody accepts it soon.
  if (status.ok() && !active_) status = charge(PeerResource::kConnections);
  if (!status.ok()) {
    if (!active_) send_bye(status.code());
    return fail(std::move(status));
  }
  if (!active_) send_hello();
  fault_point("l2.greeted");
  state_ = State::kReady;
}

}  // namespace sluice::l2
