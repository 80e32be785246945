#include <sluice/proto/timed_out.h>

#include <string>

#include "transport/proto/errors.h"

namespace sluice::proto {

namespace {

// Messages that a text names, of those that wait for another receive.
constexpr size_t kMostNamed = 4;

std::string bytes(uint64_t count) {
  return std::to_string(count) + (count == 1 ? " byte" : " bytes");
}

std::string tag_text(const TagMatch& match) {
  std::string text = "tag " + std::to_string(match.tag);
  if (match.mask != ~Tag{0}) text += " under mask " + std::to_string(match.mask);
  return text;
}

std::string arrived_instead(UnexpectedQueue& unexpected) {
  size_t count = 0;
  std::string named;
  for (auto message = unexpected.begin(); message != unexpected.end(); ++message) {
    if (++count > kMostNamed) continue;
    named += (named.empty() ? "" : ", ") + std::string("tag ") + std::to_string(message->tag) +
             " (" + bytes(message->total) + ")";
  }
  if (count == 0) return "no other message waits either; check that the peer sends it";
  if (count > kMostNamed) named += " and " + std::to_string(count - kMostNamed) + " more";
  return "other messages wait: " + named + "; receive those, or check which tag the peer sends";
}

std::string waited_for(const Operation& op, UnexpectedQueue& unexpected) {
  const bool under_way = op.state == OperationState::kPulling ||
                         op.state == OperationState::kPlacing ||
                         op.state == OperationState::kPushing;
  const std::string progress =
      std::to_string(op.moved) + " of " + bytes(op.total) + " had been moved";
  const char* slow = "; give it longer, or find what slows the path (sluice perf)";
  switch (op.kind) {
    case OperationKind::kReceive: {
      if (under_way) return "a message had begun to arrive, " + progress + slow;
      uint64_t room = 0;
      for (const Buffer& buffer : op.completion.buffers) room += buffer.size_bytes();
      return "no message with " + tag_text(op.match) + " arrived for a receive of " + bytes(room) +
             "; " + arrived_instead(unexpected);
    }
    case OperationKind::kSend: {
      const std::string what =
          "the message of " + bytes(op.total) + " with tag " + std::to_string(op.match.tag);
      if (under_way) return what + " was on its way, " + progress + slow;
      if (op.state == OperationState::kQueued)
        return what +
               " waited for the peer, which has not received those before it; post "
               "receives there, and let it call progress()";
      return what +
             " was not taken by the peer; post a receive for this tag there, and let it "
             "call progress()";
    }
    case OperationKind::kWant:
      if (under_way) return "a tensor had begun to arrive, " + progress + slow;
      return "the peer has not supplied the tensor; publish it there, and let the peer call "
             "progress()";
    case OperationKind::kSupply:
      if (under_way) return "a supplied tensor was on its way, " + progress + slow;
      return "the reader has not released the tensor of " + bytes(op.total) +
             "; let it call progress() and drop its view, or raise the exchange's timeouts";
    case OperationKind::kRead:
    case OperationKind::kWrite:
    case OperationKind::kAtomic: {
      const char* name = op.kind == OperationKind::kRead    ? "the read of "
                         : op.kind == OperationKind::kWrite ? "the write of "
                                                            : "the atomic on ";
      if (under_way) return name + bytes(op.total) + " was under way, " + progress + slow;
      return name + bytes(op.total) +
             " was not answered; let the owner of the grant call progress(), or use a path of "
             "Capability::kPassiveTarget";
    }
  }
  return "it was not answered; let the peer call progress()";
}

}  // namespace

Status timed_out(const Operation& op, UnexpectedQueue& unexpected, bool silent) {
  std::string text = "the deadline passed: " + waited_for(op, unexpected);
  if (silent) {
    text +=
        "; nothing came from the peer for seconds: its program does not call progress(), or it is "
        "gone and the path has not told yet";
  }
  return Status(Code::kTimedOut, Scope::kOperation, kOrigin, std::move(text));
}

}  // namespace sluice::proto
