// A session between a fake link and a fake host, for tests that play a hostile peer.
// Checks what leaves: every message the session sends must be well-formed.
#ifndef SLUICE_TESTS_FUZZ_SESSION_WORLD_H_
#define SLUICE_TESTS_FUZZ_SESSION_WORLD_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/api/completion.h>
#include <sluice/proto/session.h>
#include <sluice/runtime/mailbox.h>

namespace sluice::fuzz {

// The peer's memory as this side sees it, with its references counted.
class FakeMapping final : public PeerMapping {
 public:
  void retain() noexcept override { ++references; }
  void drop() noexcept override { --references; }
  // Null if the run reaches outside.
  const std::byte* at(uint64_t offset, uint64_t length) const;
  int64_t references = 0;
};

struct SentData {
  uint64_t cookie, length;
};

// What the link saw; outlives it.
struct LinkRecord {
  std::vector<uint64_t> ids;       // from the session's messages: what a peer may name
  std::deque<SentData> in_flight;  // pushed, not yet acknowledged
  std::vector<StorageRef> quarantined;
  uint64_t sent = 0;
  uint64_t withdrawals_told = 0, withdrawals_counted = 0;  // of a link with views
  uint64_t room = ~uint64_t{0};                            // messages until send() says no
  bool refused = false;                                    // said no: writable() is due
  bool closed = false;
  std::string problem;           // the first message that is not well-formed
  StreamClient* data = nullptr;  // of a stream: who takes DATA
};

bool take_room(LinkRecord& record);
// Of a message that leaves.
void check(LinkRecord& record, ConstBytes header, std::span<const ConstBytes> payload);
void note_id(LinkRecord& record, ConstBytes header);
void note_close(LinkRecord& record);

// What is the same for both kinds.
template <typename Kind>
class FakeLink : public Kind {
 public:
  FakeLink(const LinkTraits& traits, LinkRecord& record) : record_(record), traits_(traits) {}

  const LinkTraits& traits() const override { return traits_; }
  bool send(ConstBytes header, std::span<const ConstBytes> payload) override {
    if (!take_room(record_)) return false;
    check(record_, header, payload);
    note_id(record_, header);
    return true;
  }
  void flush() override {}
  void quarantine(StorageRef loan) override { record_.quarantined.push_back(std::move(loan)); }
  void close() override { note_close(record_); }
  std::string local_name() const override { return "here"; }
  std::string peer_name() const override { return "there"; }

 protected:
  LinkRecord& record_;

 private:
  const LinkTraits traits_;
};

class FakeViewLink final : public FakeLink<ViewLink> {
 public:
  FakeViewLink(const LinkTraits& traits, LinkRecord& record, FakeMapping& mapping,
               const Arena& arena)
      : FakeLink(traits, record), mapping_(mapping), arena_(arena) {}
  void set_client(LinkClient*, ViewClient*) override {}
  bool send(ConstBytes header, std::span<const ConstBytes> payload) override;
  void count_withdrawals(uint64_t total) override { record_.withdrawals_counted = total; }
  Result<bool> export_run(const std::byte* data, size_t length, wire::Segment& out) override;
  Result<ImportedRun> import_run(const wire::Segment& segment) override;

 private:
  FakeMapping& mapping_;
  const Arena& arena_;
};

class FakeStreamLink final : public FakeLink<StreamLink> {
 public:
  using FakeLink::FakeLink;
  void set_client(LinkClient*, StreamClient* transfer) override { record_.data = transfer; }
  bool push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override;
  void settle(uint64_t) override {}
};

class FakeHost final : public proto::SessionHost {
 public:
  void activate(proto::Session&) noexcept override {}
  Instant now() const override { return time; }
  Instant time = Instant(std::chrono::seconds(1000));
};

// Counts completions and keeps what came with them.
class CountingSink final : public CompletionSink {
 public:
  void on_completion(Completion&& completion) noexcept override;
  uint64_t count = 0;
  std::vector<uint64_t> times_ended;  // by user_data
  std::vector<Tensor> tensors;
  std::vector<Buffer> buffers;
  std::string problem;
};

class BytesPayload final : public PayloadReader {
 public:
  explicit BytesPayload(ConstBytes bytes) : bytes_(bytes) {}
  void read(MutableBytes out) override;
  std::string problem;

 private:
  ConstBytes bytes_;
};

// The arena of the process: one, since making one costs more than a run.
std::shared_ptr<Arena> shared_arena();

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_SESSION_WORLD_H_
