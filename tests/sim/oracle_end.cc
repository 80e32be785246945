// The oracle's judgement over a whole schedule: nothing stuck, nothing twice, nothing
// lost that was promised.
#include <algorithm>

#include "tests/sim/oracle.h"
#include "tests/sim/pattern.h"

namespace sluice::sim {
namespace {

// Ended in a way that may have used up a message without receiving it.
bool took_and_lost(const Record& receive, Tag tag) {
  return receive.done && receive.code != Code::kOk && receive.code != Code::kInvalidArgument &&
         receive.got == tag;
}

}  // namespace

bool Oracle::taken(const Record& send) const {
  return std::any_of(records_.begin(), records_.end(), [&](const Record& r) {
    bool other = r.kind == OperationKind::kReceive && r.side != send.side;
    return other &&
           (took_and_lost(r, send.tag) || (r.done && r.code == Code::kOk && r.got == send.tag));
  });
}

// Whether every message of `sender` that left was received, for certain.
bool Oracle::all_taken(int sender) const {
  return std::all_of(records_.begin(), records_.end(), [&](const Record& r) {
    bool lies =
        r.kind == OperationKind::kSend && r.side == sender && on_wire_[sender].contains(r.tag);
    return !lies || std::any_of(records_.begin(), records_.end(), [&](const Record& receive) {
      bool got = receive.kind == OperationKind::kReceive && receive.side != sender &&
                 receive.done && receive.code == Code::kOk;
      return got && receive.got == r.tag;
    });
  });
}

// A message that has come, and a posted receive that would take it.
void Oracle::stuck_messages(int sender) {
  for (Record& send : records_) {
    if (send.kind != OperationKind::kSend || send.side != sender) continue;
    bool on_wire = on_wire_[sender].contains(send.tag);
    if (!on_wire && !send.done) {
      uint64_t bytes = sent_bytes_[sender] + send.total;
      if (sent_messages_[sender] < credit_messages_[sender] && bytes <= credit_bytes_[sender])
        wrong(send, "has credit and is not sent");
      if (all_taken(sender)) wrong(send, "waits for credit though all before it was taken");
      break;  // those behind it wait for it
    }
    if (!on_wire || (send.done && send.code != Code::kOk)) continue;
    if (taken(send)) continue;
    for (Record& receive : records_) {
      bool other =
          receive.kind == OperationKind::kReceive && receive.side != sender && !receive.done;
      if (other && receive.match.matches(send.tag))
        wrong(receive, "waits though its message " + std::to_string(send.key) + " has come");
    }
  }
}

void Oracle::check_nothing_stuck() {
  for (int sender = 0; sender < 2; ++sender) stuck_messages(sender);
  for (Record& record : records_) {
    if (record.done) continue;
    if (record.kind == OperationKind::kRead || record.kind == OperationKind::kWrite)
      wrong(record, "is stuck");
    if (record.kind == OperationKind::kWant && supply_by_step_.contains(record.step)) {
      wrong(record, "was answered and waits on");
    }
    if (record.kind != OperationKind::kSupply) continue;
    bool held = std::any_of(held_.begin(), held_.end(), [&](const HeldTensor& h) {
      return h.side != record.side && h.key == record.key;
    });
    if (!held) wrong(record, "waits though nobody holds its tensor");
  }
}

void Oracle::check_messages(int crashed) {
  std::map<Tag, int> received;
  for (Record& record : records_) {
    if (record.kind != OperationKind::kReceive || !record.done || record.code != Code::kOk)
      continue;
    if (++received[record.got] > 1) wrong(record, "received a message for the second time");
    Record* send = sent_with(1 - record.side, record.got);
    if (send == nullptr) continue;
    bool unsent = send->done && send->code != Code::kOk && send->code != Code::kOutcomeUnknown;
    if (unsent) wrong(*send, "says that nothing was delivered, and it was");
  }
  for (Record& send : records_) {
    bool promised = send.kind == OperationKind::kSend && send.done && send.code == Code::kOk &&
                    send.level != Level::kSourceReusable;
    if (promised && crashed != 1 - send.side && !received.contains(send.tag))
      wrong(send, "says placed, and nobody received it");
  }
}

// Receives take messages in the order they were sent, messages take receives in the
// order they were posted: of two that fit both, the first gets the first.
void Oracle::check_order() {
  for (size_t i = 0; i < records_.size(); ++i) {
    Record& first = records_[i];
    if (first.kind != OperationKind::kReceive || first.code != Code::kOk || !first.done) continue;
    for (size_t j = i + 1; j < records_.size(); ++j) {
      Record& second = records_[j];
      if (second.kind != OperationKind::kReceive || second.side != first.side ||
          second.code != Code::kOk || !second.done)
        continue;
      if (first.match.matches(second.got) && (second.got >> 16) < (first.got >> 16)) {
        wrong(first, "overtook: a later receive got message " + std::to_string(second.got >> 16));
      }
    }
  }
}

void Oracle::check_writes() {
  for (Record& record : records_) {
    if (record.kind != OperationKind::kWrite) continue;
    GrantRecord& grant = grants_[record.grant];
    if (record.must_be_denied || !grant.memory || record.total == 0) continue;
    std::span<const std::byte> slot = grant.memory.bytes().subspan(record.offset, record.total);
    bool whole = has_pattern(slot, record.key);
    bool untouched =
        std::all_of(slot.begin(), slot.end(), [](std::byte b) { return b == std::byte{0}; });
    if (record.done && record.code == Code::kOk && !whole)
      wrong(record, "says placed, and the bytes are not there");
    bool may_be_partial = record.code == Code::kOk || record.code == Code::kOutcomeUnknown ||
                          (record.code == Code::kAccessDenied && (grant.revoked || grant.expires));
    if (record.done && !may_be_partial && !untouched)
      wrong(record, "says that nothing was written, and it was");
  }
  for (GrantRecord& grant : grants_) {
    if (!has_pattern({grant.data(), grant.fixed_bytes}, grant.key))
      trace_.wrong("granted memory was written outside of every write");
    if (!grant.at_revoke.empty() &&
        !std::equal(grant.at_revoke.begin(), grant.at_revoke.end(), grant.memory.bytes().begin())) {
      trace_.wrong("memory was written after its grant was revoked");
    }
  }
}

void Oracle::check_wants(int crashed) {
  for (auto& [step, index] : supply_by_step_) {
    Record& supply = records_[index];
    auto found = want_by_step_.find(step);
    if (found == want_by_step_.end() || crashed == 1 - supply.side) continue;
    Record& want = records_[found->second];
    bool promised = supply.done && supply.code == Code::kOk;
    if (promised && !(want.done && want.code == Code::kOk))
      wrong(want, "failed, and its supply says consumed");
  }
}

void Oracle::check_end(int crashed) {
  for (Record& record : records_) {
    if (!record.done && !record.silent && record.side != crashed) wrong(record, "never completed");
    for (Buffer& buffer : record.back) {
      if (!has_pattern(buffer.bytes(), record.canary))
        wrong(record, "its buffer was written after its completion");
    }
  }
  check_messages(crashed);
  check_order();
  check_writes();
  check_wants(crashed);
}

}  // namespace sluice::sim
