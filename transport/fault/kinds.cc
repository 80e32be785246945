#include <sluice/fault/kinds.h>

#include <algorithm>
#include <cstring>

#include <sluice/wire/messages.h>

namespace sluice::fault {
namespace {

constexpr const char* kOrigin = "fault/link";

uint32_t payload_bytes_of(ConstBytes header) {
  uint32_t length;
  std::memcpy(&length, header.data() + 4, 4);
  return length;
}

}  // namespace

// Views.

Result<bool> FaultyViewLink::export_run(const std::byte* data, size_t length, wire::Segment& out) {
  if (over() || broken()) return inner_->export_run(data, length, out);
  if (strike(Call::kExport) == Action::kFail) {
    return Status(Code::kNoMemory, Scope::kOperation, kOrigin,
                  "memory cannot be announced, as planned");
  }
  if (no_room())
    return Status(Code::kTryAgain, Scope::kOperation, kOrigin, "no room now, as planned");
  return inner_->export_run(data, length, out);
}

Result<ImportedRun> FaultyViewLink::import_run(const wire::Segment& segment) {
  if (strike(Call::kImport) == Action::kFail) {
    return Status(Code::kNoMemory, Scope::kEndpoint, kOrigin,
                  "the peer's memory cannot be mapped, as planned");
  }
  return inner_->import_run(segment);
}

// Streams.

bool FaultyStreamLink::push_by(Push push, ConstBytes header, std::span<const ConstBytes> payload,
                               uint64_t cookie) {
  if (over() || broken()) return true;
  switch (strike(Call::kPush)) {
    case Action::kFail: break_path(Call::kPush); return true;
    case Action::kDrop:
      reports_.push_back({cookie, payload_bytes_of(header), turns()});
      return true;
    default: break;
  }
  if (no_room()) return false;
  maybe_wake();
  if (payload_bytes_of(header) > 1 && split_push())
    return push_in_two(push, header, payload, cookie);
  return ((*inner_).*push)(header, payload, cookie);
}

bool FaultyStreamLink::push_in_two(Push push, ConstBytes header,
                                   std::span<const ConstBytes> payload, uint64_t cookie) {
  wire::Data data;
  if (!wire::decode(header, data).ok()) return ((*inner_).*push)(header, payload, cookie);
  uint32_t total = data.payload_bytes;
  auto cut = static_cast<uint32_t>(1 + below(total - 1));
  std::vector<ConstBytes> first;
  Rest rest{.header = std::vector<std::byte>(wire::kMaxHeaderBytes),
            .payload = {},
            .cookie = cookie,
            .push = push};
  size_t left = cut;
  for (ConstBytes piece : payload) {
    size_t taken = std::min(left, piece.size());
    if (taken > 0) first.push_back(piece.first(taken));
    if (taken < piece.size()) rest.payload.push_back(piece.subspan(taken));
    left -= taken;
  }
  std::byte bytes[wire::kMaxHeaderBytes];
  data.payload_bytes = cut;
  size_t length = wire::encode(data, bytes);
  if (!((*inner_).*push)(ConstBytes(bytes, length), first, cookie)) return false;
  data.offset += cut;
  data.payload_bytes = total - cut;
  rest.header.resize(wire::encode(data, rest.header));
  rest_.push_back(std::move(rest));
  push_rest();
  return true;
}

// False: no room yet, the inner link's writable() follows.
bool FaultyStreamLink::push_rest() {
  if (rest_.empty()) return true;
  const Rest& rest = rest_[0];
  if (!((*inner_).*rest.push)(rest.header, rest.payload, rest.cookie)) return false;
  rest_.clear();
  inner_->flush();
  return true;
}

void FaultyStreamLink::settle(uint64_t cookie) {
  inner_->settle(cookie);
  for (Rest& rest : rest_) {
    if (rest.cookie != cookie) continue;
    rest.push = &StreamLink::push;
    std::vector<std::byte>& copy = settled_.emplace_back();
    for (ConstBytes piece : rest.payload) copy.insert(copy.end(), piece.begin(), piece.end());
    rest.payload = {ConstBytes(copy)};
  }
}

size_t FaultyStreamLink::deliver_reports(Instant now, bool all) {
  size_t delivered = 0;
  // Each by itself: reports of different transfers may overtake each other.
  for (size_t i = 0; i < reports_.size() && !over();) {
    if (!all && reports_[i].turns > 0) {
      --reports_[i++].turns;
      continue;
    }
    Report report = reports_[i];
    reports_.erase(reports_.begin() + static_cast<ptrdiff_t>(i));
    ++delivered;
    transfer_->pushed(report.cookie, report.length, now);
  }
  return delivered;
}

Placement FaultyStreamLink::place(uint64_t id, uint64_t offset, uint64_t length) {
  if (over() || broken()) return {};
  // DATA must not overtake the message that says what it is.
  deliver_arrivals(last_time(), true);
  if (over()) return {};
  return transfer_->place(id, offset, length);
}

Status FaultyStreamLink::placed(uint64_t id, uint64_t offset, uint64_t length, Instant now) {
  if (over() || broken()) return Status();
  // One that was dropped, or put aside by place(), has none before it.
  deliver_arrivals(now, true);
  if (over()) return Status();
  switch (strike(Call::kPlaced)) {
    case Action::kFail: break_path(Call::kPlaced); return Status();
    case Action::kDrop: return Status();
    case Action::kTruncatePayload: length /= 2; break;
    default: break;
  }
  return transfer_->placed(id, offset, length, now);
}

void FaultyStreamLink::pushed(uint64_t cookie, uint64_t length, Instant now) {
  if (over()) return;
  if (strike(Call::kPushed) == Action::kFail) break_path(Call::kPushed);
  maybe_wake();
  if (hold_back()) {
    reports_.push_back({cookie, length, turns()});
    return;
  }
  transfer_->pushed(cookie, length, now);
}

// Devices.

// It comes behind the messages that came before it.
Status FaultyDeviceLink::arrived(uint32_t notice, Instant now) {
  if (!over()) deliver_arrivals(now, true);
  return over() ? Status() : transfer_->arrived(notice, now);
}

}  // namespace sluice::fault
