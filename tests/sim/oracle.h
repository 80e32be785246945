// What must be true of every schedule, whatever the sessions do: a model of its own,
// fed with what the program asked for, what it was told, and what crossed the wire.
// Must not know the session: only the API's types and the wire format.
#ifndef SLUICE_TESTS_SIM_ORACLE_H_
#define SLUICE_TESTS_SIM_ORACLE_H_

#include <array>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <sluice/api/endpoint.h>
#include <sluice/wire/messages.h>

#include "tests/sim/network.h"
#include "tests/sim/trace.h"

namespace sluice::sim {

// One operation that a post accepted. `user_data` of the post is its index + 1.
struct Record {
  int side = 0;
  OperationKind kind = OperationKind::kSend;
  OperationId id = kNoOperation;
  Instant deadline = kNever;
  Level level = Level::kSourceReusable;
  // kSend: tag = serial << 16 | stream. The serial is also the key of its bytes.
  Tag tag = 0;
  uint64_t key = 0;
  uint64_t total = 0;
  // kReceive.
  TagMatch match;
  uint64_t capacity = 0;
  // kWant, kSupply: `step` pairs them.
  uint64_t step = 0;
  bool has_destination = false;
  TensorDescriptor layout;
  // kRead, kWrite.
  size_t grant = 0;
  uint64_t offset = 0;
  bool must_be_denied = false;
  bool silent = false;  // posted without a sink: its end is not told
  // How it ended.
  bool done = false;
  Code code = Code::kOk;
  Tag got = 0;
  std::vector<Buffer> back;  // filled with a canary: nobody may write there any more
  uint64_t canary = 0;
};

// Memory one side lets the other reach. The first half is read only and has the
// pattern `key`; in the second each write has a slot of its own, zero at first.
struct GrantRecord {
  int side = 0;
  RemoteKey remote;
  uint64_t key = 0;
  uint64_t fixed_bytes = 0;
  Buffer memory;
  Tensor tensor;  // instead of memory: may be read only
  uint64_t next_slot = 0;
  bool revoked = false;
  bool expires = false;
  std::vector<std::byte> at_revoke;
  const std::byte* data() const { return memory ? memory.data() : tensor.data(); }
};

// A tensor a receiver holds in the sender's memory, or fresh memory it was given.
struct HeldTensor {
  int side = 0;
  Tensor tensor;
  uint64_t key = 0;
};

class Oracle final : public WireSpy {
 public:
  // Credits by sender; want_limit by the side that is asked.
  Oracle(Trace& trace, std::array<uint64_t, 2> credit_messages,
         std::array<uint64_t, 2> credit_bytes, std::array<uint64_t, 2> want_limit);

  // The program's side.
  // The user_data for the next post; then what the post took.
  uint64_t next_user_data() const { return records_.size() + 1; }
  void accepted(Record record);
  void supplied(uint64_t step, uint64_t key, const TensorDescriptor& layout);
  void want_arrived(int side, uint64_t step);
  void want_cancelled(int side, uint64_t step);
  void completed(int side, Completion&& completion);
  void revoked(GrantRecord& grant);
  void drop_view(size_t index);
  void drop_views(int side);
  void forget_views(int side);  // its process was killed
  void entered_call() { ++in_call_; }
  void left_call() { --in_call_; }

  // WireSpy.
  void message_sent(int from, ConstBytes header) override;
  void message_handled(int at, ConstBytes header) override;

  // After a turn of `side`.
  void check_deadlines(int side);
  // Nothing moves any more though both sides live and the path is whole: whatever could
  // go on and does not is stuck.
  void check_nothing_stuck();
  // Both sides are closed. `crashed`: the side whose process was killed, or -1.
  void check_end(int crashed);

  std::deque<Record>& records() { return records_; }
  std::deque<GrantRecord>& grants() { return grants_; }
  std::vector<HeldTensor>& held() { return held_; }
  size_t pending(int side) const { return pending_[side]; }
  // Messages that wait at the peer for a receive and are too long to ride along.
  uint64_t offered(int side, uint64_t inline_bytes) const;
  uint64_t prefill_key(const Record& record) const { return 0xF111'0000'0000u + record.key; }
  bool want_supplied(uint64_t step) const { return supplies_.contains(step); }

 private:
  struct Supply {
    uint64_t key;
    TensorDescriptor layout;
  };
  void wrong(const Record& record, const std::string& what);
  void end_receive(Record& record, Completion& completion);
  void end_want(Record& record, Completion& completion);
  void end_read(Record& record, Completion& completion);
  void keep_buffers(Record& record, Completion& completion);
  bool buffers_untouched(const Record& record, const Completion& completion, uint64_t from) const;
  Record* sent_with(int side, Tag tag);
  void check_messages(int crashed);
  void check_order();
  void check_writes();
  void check_wants(int crashed);
  bool taken(const Record& send) const;
  bool all_taken(int sender) const;
  void stuck_messages(int sender);
  void want_handled(int at, const wire::Want& want);
  void offer_sent(int from, const wire::Offer& offer);

  Trace& trace_;
  std::deque<Record> records_;
  std::deque<GrantRecord> grants_;
  std::vector<HeldTensor> held_;
  std::map<uint64_t, Supply> supplies_;
  std::map<uint64_t, size_t> by_serial_;  // send
  std::map<uint64_t, size_t> want_by_step_, supply_by_step_;
  std::set<uint64_t> wants_arrived_;
  std::array<size_t, 2> pending_{};
  int in_call_ = 0;
  // By sender: what it may have sent and what it did, by its own count of the wire.
  std::array<uint64_t, 2> credit_messages_, credit_bytes_;
  std::array<uint64_t, 2> sent_messages_{}, sent_bytes_{};
  std::set<Tag> on_wire_[2];
  std::array<uint64_t, 2> want_limit_;
  // By the side that is asked: requests for keys without an answer, those of them that
  // found room, one-sided reads by their grant, and those whose grant is gone.
  std::set<uint64_t> asked_[2], had_room_[2], void_reads_[2];
  std::map<uint64_t, uint64_t> reads_[2];
};

}  // namespace sluice::sim

#endif  // SLUICE_TESTS_SIM_ORACLE_H_
