#include "tests/sim/oracle.h"

#include <algorithm>

#include "tests/sim/pattern.h"

namespace sluice::sim {
namespace {

// Late by more than this after a turn: the timer was missed, not slow.
constexpr Duration kLate = std::chrono::milliseconds(1);

const char* kind_name(OperationKind kind) {
  constexpr const char* kNames[] = {"send", "receive", "read", "write", "want", "supply"};
  return kNames[static_cast<int>(kind)];
}

}  // namespace

Oracle::Oracle(Trace& trace, std::array<uint64_t, 2> credit_messages,
               std::array<uint64_t, 2> credit_bytes, std::array<uint64_t, 2> want_limit)
    : trace_(trace),
      credit_messages_(credit_messages),
      credit_bytes_(credit_bytes),
      want_limit_(want_limit) {}

void Oracle::wrong(const Record& record, const std::string& what) {
  trace_.wrong(std::string(kind_name(record.kind)) + " of " + (record.side == 0 ? "A" : "B") +
               " (serial " + std::to_string(record.key) + ", " + std::to_string(record.total) +
               " bytes, ended " + (record.done ? std::string(to_string(record.code)) : "not yet") +
               "): " + what);
}

void Oracle::accepted(Record record) {
  size_t index = records_.size();
  trace_.note(record.side, "posted", index + 1, static_cast<uint64_t>(record.kind));
  if (record.kind == OperationKind::kSend) by_serial_[record.key] = index;
  if (record.kind == OperationKind::kWant) want_by_step_[record.step] = index;
  if (record.kind == OperationKind::kSupply) supply_by_step_[record.step] = index;
  if (!record.silent) ++pending_[record.side];
  records_.push_back(std::move(record));
}

void Oracle::supplied(uint64_t step, uint64_t key, const TensorDescriptor& layout) {
  supplies_[step] = {key, layout};
}

void Oracle::want_arrived(int side, uint64_t step) {
  trace_.note(side, "want arrived", step);
  if (!wants_arrived_.insert(step).second) trace_.wrong("a want was handed to the program twice");
}

void Oracle::want_cancelled(int side, uint64_t step) { trace_.note(side, "want withdrawn", step); }

void Oracle::completed(int side, Completion&& completion) {
  if (in_call_ > 0) trace_.wrong("a completion was delivered inside a call");
  if (completion.user_data == 0 || completion.user_data > records_.size()) {
    trace_.wrong("a completion of no operation");
    return;
  }
  Record& record = records_[completion.user_data - 1];
  trace_.note(side, kind_name(record.kind), completion.user_data,
              static_cast<uint64_t>(completion.status.code()));
  if (trace_.printing() && !completion.status.ok())
    std::printf("%20s%s\n", "", completion.status.to_string().c_str());
  if (record.done || record.silent) return wrong(record, "completed twice");
  if (record.side != side || record.kind != completion.kind || record.id != completion.id) {
    return wrong(record, "completed as another operation");
  }
  record.done = true;
  record.code = completion.status.code();
  --pending_[side];
  if (record.code == Code::kTimedOut && trace_.now < record.deadline &&
      !completion.status.detail().starts_with("the peer")) {
    wrong(record, "timed out before its deadline");
  }
  if (record.code == Code::kCorrupt || record.code == Code::kInternal)
    wrong(record, completion.status.to_string());
  if (record.must_be_denied && record.code == Code::kOk)
    wrong(record, "went through a grant that forbids it");
  switch (record.kind) {
    case OperationKind::kReceive: end_receive(record, completion); break;
    case OperationKind::kWant: end_want(record, completion); break;
    case OperationKind::kRead: end_read(record, completion); break;
    default: break;
  }
  keep_buffers(record, completion);
}

// Whether the bytes from `from` on are as the program left them.
bool Oracle::buffers_untouched(const Record& record, const Completion& completion,
                               uint64_t from) const {
  uint64_t at = 0;
  for (const Buffer& buffer : completion.buffers) {
    uint64_t size = buffer.size_bytes();
    uint64_t skip = from > at ? std::min(from - at, size) : 0;
    if (!has_pattern(buffer.bytes().subspan(skip), prefill_key(record), at + skip)) return false;
    at += size;
  }
  return true;
}

Record* Oracle::sent_with(int side, Tag tag) {
  auto found = by_serial_.find(tag >> 16);
  if (found == by_serial_.end()) return nullptr;
  Record& send = records_[found->second];
  return send.side == side && send.tag == tag ? &send : nullptr;
}

void Oracle::end_receive(Record& record, Completion& completion) {
  record.got = completion.tag;
  if (record.code == Code::kInvalidArgument) {
    Record* send = sent_with(1 - record.side, completion.tag);
    if (!buffers_untouched(record, completion, 0))
      wrong(record, "was too small and yet was written to");
    if (send != nullptr && send->total <= record.capacity)
      wrong(record, "was called too small for a message that fits");
  }
  if (record.code != Code::kOk) return;
  Record* send = sent_with(1 - record.side, completion.tag);
  if (send == nullptr) return wrong(record, "received a message that was never sent");
  if (!record.match.matches(completion.tag))
    return wrong(record, "received a message that it does not match");
  if (completion.receipt.bytes != send->total)
    wrong(record, "the receipt has another length than the message");
  uint64_t at = 0;
  for (const Buffer& buffer : completion.buffers) {
    uint64_t take = std::min<uint64_t>(send->total - at, buffer.size_bytes());
    if (!has_pattern(buffer.bytes().first(take), send->key, at))
      return wrong(record, "received other bytes than were sent");
    at += take;
  }
  if (at != send->total) wrong(record, "received less than was sent");
  if (!buffers_untouched(record, completion, send->total))
    wrong(record, "was written beyond the message");
}

void Oracle::end_want(Record& record, Completion& completion) {
  if (record.code != Code::kOk) return;
  auto supply = supplies_.find(record.step);
  if (supply == supplies_.end()) return wrong(record, "ended ok though nothing was supplied");
  const auto& [key, layout] = supply->second;
  if (record.has_destination) {
    if (!record.layout.same_layout(layout)) return wrong(record, "took a tensor of another layout");
    bool same = completion.buffers.size() == 1 && has_pattern(completion.buffers[0].bytes(), key);
    if (!same) wrong(record, "holds other bytes than were supplied");
    return;
  }
  Tensor& tensor = completion.tensor;
  if (!tensor && layout.span_bytes() > 0) return wrong(record, "ended ok without a tensor");
  if (!tensor.descriptor().same_layout(layout))
    return wrong(record, "brought a tensor of another layout");
  if (!has_pattern(tensor.bytes(), key))
    return wrong(record, "shows other bytes than were supplied");
  held_.push_back({record.side, std::move(tensor), key});
}

void Oracle::end_read(Record& record, Completion& completion) {
  if (record.code != Code::kOk) return;
  const GrantRecord& grant = grants_[record.grant];
  if (!has_pattern(completion.buffers[0].bytes(), grant.key, record.offset))
    wrong(record, "read other bytes than are there");
}

void Oracle::keep_buffers(Record& record, Completion& completion) {
  if (completion.buffers.empty()) {
    bool should_come_back = record.kind == OperationKind::kReceive ||
                            record.kind == OperationKind::kRead || record.has_destination;
    if (should_come_back) wrong(record, "the buffers did not come back");
    return;
  }
  record.canary = 0xCA00'0000'0000u + completion.user_data;
  for (Buffer& buffer : completion.buffers) {
    fill_pattern(buffer.bytes(), record.canary);
    record.back.push_back(std::move(buffer));
  }
}

void Oracle::revoked(GrantRecord& grant) {
  grant.revoked = true;
  for (auto& [read, number] : reads_[grant.side]) {
    if (number == grant.remote.grant) void_reads_[grant.side].insert(read);
  }
  if (grant.memory)
    grant.at_revoke.assign(grant.memory.bytes().begin(), grant.memory.bytes().end());
}

void Oracle::drop_view(size_t index) {
  HeldTensor& held = held_[index];
  if (!has_pattern(held.tensor.bytes(), held.key))
    trace_.wrong("a tensor changed while it was held");
  trace_.note(held.side, "dropped", held.key);
  held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
}

void Oracle::drop_views(int side) {
  for (size_t i = held_.size(); i-- > 0;) {
    if (held_[i].side == side) drop_view(i);
  }
}

void Oracle::forget_views(int side) {
  std::erase_if(held_, [&](const HeldTensor& held) { return held.side == side; });
}

uint64_t Oracle::offered(int side, uint64_t inline_bytes) const {
  return static_cast<uint64_t>(
      std::count_if(records_.begin(), records_.end(), [&](const Record& r) {
        bool pending = r.kind == OperationKind::kSend && r.side == side && !r.done;
        return pending && r.total > inline_bytes && on_wire_[side].contains(r.tag);
      }));
}

void Oracle::check_deadlines(int side) {
  for (Record& record : records_) {
    if (record.side != side || record.done || record.deadline == kNever) continue;
    if (record.deadline + kLate < trace_.now) {
      wrong(record, "is past its deadline");
      record.deadline = kNever;
    }
  }
}

}  // namespace sluice::sim
