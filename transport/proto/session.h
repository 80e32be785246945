// One connection's protocol: matches messages, moves transfers, keeps loans, credits
// and deadlines. Implements EndpointCore over any Link; no I/O, no clock, no threads.
#ifndef SLUICE_PROTO_SESSION_H_
#define SLUICE_PROTO_SESSION_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sluice/allocator/arena.h>
#include <sluice/api/endpoint.h>
#include <sluice/api/identity.h>
#include <sluice/api/mailbox.h>
#include <sluice/api/peer_account.h>
#include <sluice/base/id_index.h>
#include <sluice/base/process_mark.h>
#include <sluice/proto/connection_ticket.h>
#include <sluice/proto/grants.h>
#include <sluice/proto/link.h>
#include <sluice/proto/operation_table.h>
#include <sluice/proto/peer_view.h>
#include <sluice/proto/unexpected.h>

namespace sluice::proto {

class Session;

// Whoever drives sessions (SessionSet, the simulator).
class SessionHost {
 public:
  // The session has something for progress(). May be called again before that.
  virtual void activate(Session& session) noexcept = 0;
  // The time as of the host's last progress.
  virtual Instant now() const = 0;
  // The time itself: a host that was not progressed for long has an old now().
  virtual Instant exact_now() const { return now(); }

 protected:
  ~SessionHost() = default;
};

// How long a peer that was turned away may take to answer our BYE.
inline constexpr Duration kFarewellTime = std::chrono::seconds(1);

struct SessionOptions {
  // Why this path, where a backend has no other reason.
  std::string why = "was asked for";
  // Deadline of operations that state none.
  Duration operation_timeout = std::chrono::seconds(30);
  // With operations outstanding and nothing heard for this long, a PING asks whether
  // the peer makes progress.
  Duration ping_interval = std::chrono::seconds(1);
  // A PING unanswered for this long: the peer is reported silent.
  Duration silent_after = std::chrono::seconds(3);
  // A silent peer is closed after this; zero: never.
  Duration silence_limit = Duration(0);
  // A connection that nobody uses is closed after this, and at twice that at the latest; zero:
  // never.
  Duration idle_limit = Duration(0);
  // Operations outstanding at once: ours, and those made for the peer's requests.
  uint32_t operation_limit = 4096;
  // Requests for keys the peer may have waiting here.
  uint32_t want_limit = 4096;
  // What may arrive before a receive was posted for it; told to the peer in HELLO.
  uint64_t credit_messages = 256;
  uint64_t credit_bytes = 1u << 20;
};

// What ConnectOptions and ListenOptions say of a session.
template <typename Options>
SessionOptions session_options(const Options& options) {
  SessionOptions session;
  session.operation_timeout = options.operation_timeout;
  session.silence_limit = options.silence_limit;
  if constexpr (requires { options.idle_limit; }) session.idle_limit = options.idle_limit;
  return session;
}

// The parts a session is made of.
struct SessionParts {
  std::unique_ptr<Link> link;  // its client is set to the session by the backend
  std::shared_ptr<Arena> arena;
  std::shared_ptr<Mailbox> mailbox;
  SessionHost* host = nullptr;  // outlives the session's last call
  wire::Hello ours;             // as sent
  wire::Hello peer;             // as received
  SessionOptions options;
  std::string reason;  // why this path: for info()
  // Where the names of grants come from.
  RandomSource random = fill_random;
  // Who is charged for what the peer makes us keep; null: an account of this session alone,
  // without limits (tests).
  std::shared_ptr<PeerAccount> account;
};

class Session final : public EndpointCore, public LinkClient, private ViewOwner {
 public:
  explicit Session(SessionParts parts);
  ~Session() override;

  // Delivers completions, copies, pushes, flushes; bounded. Returns how much it did.
  size_t progress(Instant now);
  // Whether progress() would do something now.
  bool has_work() const;
  // Answers or messages wait until the path has room for them.
  bool has_unsent() const;
  // Ends what is past its deadline, pings. Spurious calls are harmless.
  void handle_timeout(Instant now);
  Instant next_timeout() const { return next_timeout_; }
  Link& link() { return *link_; }
  // The host's mark: whether it already knows that there is work.
  bool marked_active = false;
  // Closed, but messages that had come whole can still be received: the host keeps it.
  bool has_leftovers() const { return !unexpected_.empty(); }
  // Closes at once without delivering anything: the host is going away.
  void detach();
  // A listener's count of this connection ends when its link is closed.
  void hold(ConnectionTicket ticket) { ticket_ = std::move(ticket); }
  // Tells the peer that we do not take it. Closed when it has heard that, after a second at most.
  // Without patience at once: the words may get lost.
  void turn_away(const Status& why, bool patient);
  // Something arrived from the peer (also for backends that see bytes, not messages).
  void heard(Instant now) { last_heard_ = now; }

  // EndpointCore.
  Result<OperationId> post_send(Tag tag, std::span<const Tensor> segments,
                                const PostOptions& options) override;
  Result<OperationId> post_receive(TagMatch match, std::span<Buffer> segments,
                                   const PostOptions& options) override;
  Result<OperationId> post_read(const RemoteKey& key, uint64_t offset, Buffer& into,
                                const PostOptions& options) override;
  Result<OperationId> post_write(const RemoteKey& key, uint64_t offset, Tensor& from,
                                 const PostOptions& options) override;
  Result<OperationId> post_atomic(const RemoteKey& key, uint64_t offset, const Atomic& request,
                                  Buffer& result, const PostOptions& options) override;
  Result<OperationId> post_want(WantOptions& want, const PostOptions& options) override;
  Result<OperationId> post_supply(uint64_t token, const Tensor& tensor,
                                  const PostOptions& options) override;
  Status refuse_want(uint64_t token, Code code) override;
  Status cancel(OperationId id) override;
  Result<RemoteKey> grant(const Buffer& memory, const GrantOptions& options) override;
  Result<RemoteKey> grant(const Tensor& memory, const GrantOptions& options) override;
  Status revoke(const RemoteKey& key) override;
  void set_want_handler(WantHandler* handler) override;
  const WantHandler* want_handler() const override { return want_handler_; }
  void start_close() override;
  void abort(const Status& why) override;
  EndpointState state() const override { return state_; }
  EndpointInfo info() const override;
  EndpointCounters counters() const override;
  void set_default_timeout(Duration timeout) override { options_.operation_timeout = timeout; }
  const std::shared_ptr<PeerAccount>& peer_account() const override { return account_; }

  // LinkClient.
  Status handle_message(ConstBytes header, PayloadReader& payload, Instant now) override;
  Status handle_tagged_inline(const wire::TaggedInline& message, PayloadReader& payload,
                              Instant now) override;
  Placement place(uint64_t id, uint64_t offset, uint64_t length) override;
  Status placed(uint64_t id, uint64_t offset, uint64_t length, Instant now) override;
  void pushed(uint64_t cookie, uint64_t length, Instant now) override;
  void moved(uint64_t cookie, uint64_t length, const Status& status, Instant now) override;
  Status arrived(uint32_t notice, Instant now) override;
  void window_closed(uint64_t cookie, Instant now) override;
  void writable(Instant now) override;
  bool copies_pending() const override { return !pulling_.empty() && !copies_held_; }
  void link_down(const Status& why, Instant now) override;

 private:
  struct Busy {
    explicit Busy(Session& s) : session(s) { ++session.depth_; }
    ~Busy() { --session.depth_; }
    Session& session;
  };

  // session.cc: posting and completing. session_end.cc: closing, failing, deadlines.
  Result<Operation*> take_operation(OperationKind kind, const PostOptions& options);
  Status check_connected() const;
  void arm_deadline(Operation* op);
  void arm_timeout(Instant when);
  void complete(Operation* op, Status status);        // delivers now: from progress only
  void complete_later(Operation* op, Status status);  // from a post
  void release_operation(Operation* op);
  void end_early(Operation* op, const Status& why);
  void fail_all(const Status& why);
  void fail_connection(const Status& why);
  void discard_leftovers();
  void finish_close();
  void drop_link();
  void quarantine_reachable();
  bool ready_to_finish() const;
  Instant check_silence(Instant now);
  Instant check_idle(Instant now);
  Status closed_status() const;
  static Status closing_status();
  bool leaves_before_bye(const Operation& op) const;
  void send_bye_in_turn();
  size_t deliver_ready();
  void unlink(Operation* op) {
    if (op->list != nullptr) op->list->remove(op);
  }
  void refund_incoming(Operation* op) {
    if (op->incoming > 0)
      account_->refund(PeerResource::kIncomingBytes, std::exchange(op->incoming, 0));
  }
  // The peer may cancel it by `peer_id` from now on.
  void index_by_peer_id(Operation* op) {
    cancellable_.remove(op);
    cancellable_.insert(op, op->peer_id);
  }
  void end_want();
  Status keep_early_want(const wire::Want& want, const WantRequest& request);
  void want_flush() {
    if (traits_.sends_at_once || needs_flush_) return;
    needs_flush_ = true;
    host_->activate(*this);
  }
  Result<RemoteKey> add_grant(const StorageRef& storage, std::byte* data, uint64_t length,
                              const GrantOptions& options);

  // session_send.cc: what leaves.
  enum class Started : uint8_t { kSent, kBlocked, kFailed };
  bool rides_by_hint(uint64_t total) const;
  bool try_send_at_once(Tag tag, const Tensor& segment, OperationId& id);
  bool start_or_queue(Operation* op);
  Started start(Operation* op);
  Started start_send(Operation* op);
  Started start_write(Operation* op);
  Started start_supply(Operation* op);
  Started send_offer(Operation* op, wire::Offer& offer);
  Started describe_segments(Operation* op, wire::Offer& offer);
  Status move_to_arena(Tensor& tensor, Operation* op);
  void run_queue();
  size_t push_some();
  bool push_chunk(Operation* op);
  template <typename Message>
  void send_control(const Message& message);
  bool flush_backlog();
  void queue_bytes(ConstBytes header);
  void send_releases();
  void send_done(uint64_t id, Code code, uint64_t bytes);
  void maybe_grant_credit(bool always);

  // session_receive.cc: what arrives. session_transfer.cc: the bytes of offers.
  Status on_offer(wire::Offer& offer, PayloadReader& payload, Instant now);
  Status on_tagged_inline(const wire::TaggedInline& message, PayloadReader& payload);
  Status on_tagged(wire::Offer& offer, PayloadReader& payload);
  Status on_supply(wire::Offer& offer, PayloadReader& payload, Instant now);
  Status on_remote_write(wire::Offer& offer, PayloadReader& payload);
  Status on_want(const wire::Want& want);
  Status on_remote_read(const wire::Want& want);
  Status on_pull(const wire::Want& want);
  Status on_done(const wire::Done& done);
  Status on_release(const wire::Release& release);
  Status on_cancel(const wire::Cancel& cancel);
  Status on_want_given_up(uint64_t token);
  Status store_unexpected(const wire::TaggedInline& message, PayloadReader& payload);
  Result<Unexpected*> store_unexpected(uint64_t offer_id, Tag tag, uint64_t total, uint64_t kept);
  void drop_unexpected(UnexpectedQueue::Iterator message);
  void clear_unexpected();
  Status keep_unexpected(uint64_t bytes);
  void let_go_unexpected(uint64_t bytes);
  Status consume_unexpected(Operation* op, UnexpectedQueue::Iterator message);
  void read_inline(Operation* op, PayloadReader& payload, uint64_t total);
  Status start_pull(Operation* op, uint64_t offer_id, std::span<const wire::Segment> segments,
                    uint64_t total);
  Status deliver_view(Operation* op, const wire::Offer& offer, const wire::Segment& segment);
  Status make_destination(Operation* op, const TensorDescriptor& layout);
  void refuse_offer(const wire::Offer& offer, Code code);
  void finish_incoming(Operation* op, Status status);
  size_t pull_some();
  void copy_piece(Operation* op, uint64_t& budget);
  void drop_runs(Operation* op);
  Result<Operation*> take_internal(OperationKind kind, const Grant& grant, uint64_t offset,
                                   uint64_t length);
  Operation* match_posted(Tag tag, uint64_t total);
  uint64_t capacity_of(const Operation* op) const;
  void withdraw(const Operation& op);
  void await_copies();
  void stop_read(Operation* op);
  void view_ended(uint64_t offer_id) noexcept override;
  void note_consumed(uint64_t messages, uint64_t bytes);

  // session_direct.cc: paths whose devices move the bytes.
  Status open_destination(Operation* op, Buffer& destination, wire::Want& message);
  Started open_sources(Operation* op, wire::Offer& offer);
  void close_windows(Operation* op);
  size_t move_some(OperationList& list);
  struct ChunkPlace {
    size_t window = 0;
    uint64_t before = 0;
  };
  ChunkPlace place_of_chunk(const Operation& op) const;
  Result<bool> post_chunk(Operation* op);
  void give_up_moving(Operation* op, const Status& why);
  void start_moving(Operation* op, OperationState state);
  Result<OperationId> start_one_sided(Operation* op, const RemoteKey& key, uint64_t offset,
                                      OperationState state);
  Status check_device_key(const RemoteKey& key, Right right) const;
  void count_copies(Operation* op, uint64_t bytes, const CopyCost& cost);
  void count_moved(Operation* op, uint64_t bytes, const CopyCost& cost);
  void count_received(Operation* op, uint64_t bytes);
  void count_sent(Operation* op, uint64_t bytes);
  void conclude(Operation* op, Status status);
  void fence(Operation* op, Status status);
  void end_fence(Operation* op);
  bool fence_early(Operation* op, const Status& why, bool peer_answers);
  void fence_overdue(Operation* op, Instant now);
  void answer_fence(Operation* op, const wire::Done& done);
  void keep_want_windows(const wire::Want& want);
  bool take_want_windows(uint64_t token, Operation* op);
  void drop_want_windows(uint64_t token);
  void cancel_supply(uint64_t token);
  Instant expire_grants(Instant now);

  std::unique_ptr<Link> link_;
  std::shared_ptr<Arena> arena_;
  SessionHost* host_;
  const LinkTraits traits_;
  wire::Hello ours_, peer_;
  SessionOptions options_;
  std::string reason_;
  ProcessMark owner_ = ProcessMark::current();
  WantHandler* want_handler_ = nullptr;
  EndpointState state_ = EndpointState::kConnected;
  Status close_reason_;

  OperationTable table_;
  OperationList posted_;  // receives waiting for a message
  OperationList queued_;  // sends waiting for credit or room, in order
  OperationList pulling_;
  OperationList pushing_;
  OperationList ready_;
  UnexpectedQueue unexpected_;
  uint64_t unexpected_kept_ = 0;     // bytes in it
  uint64_t unexpected_charged_ = 0;  // of those, to the peer's account
  Grants grants_;
  ViewPool* views_;

  // Encoded control messages the link had no room for.
  std::vector<std::byte> backlog_;
  size_t backlog_start_ = 0;
  uint64_t control_charged_ = 0;  // bytes of it, to the peer's account
  wire::Release releases_;

  uint64_t sent_messages_ = 0, sent_bytes_ = 0;          // against the peer's credit
  uint64_t credit_messages_ = 0, credit_bytes_ = 0;      // absolute limits from the peer
  uint64_t taken_messages_ = 0, taken_bytes_ = 0;        // arrived here
  uint64_t consumed_messages_ = 0, consumed_bytes_ = 0;  // of those, out of the queue
  uint64_t granted_messages_ = 0, granted_bytes_ = 0;
  uint32_t wants_waiting_ = 0;

  uint64_t at_once_ = 0;           // sends that needed no operation
  uint64_t withdrawn_ = 0;         // our offers, by CANCEL
  uint64_t withdrawals_seen_ = 0;  // the peer's
  Instant next_timeout_ = kNever;
  Instant farewell_ends_ = kNever;  // of a peer that was turned away
  Code farewell_ = Code::kOk;       // what our BYE says
  Instant last_heard_{};
  Instant ping_sent_{};
  Instant idle_due_ = kNever;  // when check_idle() looks again
  uint64_t idle_mark_ = 0;     // uses_ when it last looked
  uint64_t pings_ = 0;         // of either end
  uint64_t ping_nonce_ = 0;
  bool ping_out_ = false;
  bool silent_ = false;
  bool silence_news_ = false;  // whoever waits has a look at peer_silent
  bool bye_due_ = false;       // closing: messages of before go out first
  bool bye_sent_ = false, bye_received_ = false;
  bool blocked_ = false;  // the link said no; writable() follows
  bool copies_held_ =
      false;  // the peer has withdrawn an offer: nothing is copied before we know which
  // All windows are open: nothing is offered, but all else goes on, since the peer's answers close
  // them.
  bool windows_short_ = false;
  bool needs_flush_ = false;
  bool credit_blocked_ = false;  // the first queued send waits for a CREDIT
  bool link_dead_ = false;
  bool link_dropped_ = false;
  uint32_t depth_ = 0;  // calls from the host or the link that are running
  bool finished_ = false;
  // When check_silence() asked to be called; kNever: not at all.
  Instant silence_due_ = kNever;
  // Requests for keys that came before an exchange was attached, by token.
  struct EarlyWant {
    uint64_t order = 0;
    WantRequest request;
    std::string key;
  };
  std::unordered_map<uint64_t, EarlyWant> early_wants_;
  uint64_t early_order_ = 0;
  // Direct: where the peer's waiting requests want their bytes, by token.
  struct WantWindows {
    TensorDescriptor layout;
    InlineVector<wire::Segment, 1> windows;
  };
  std::unordered_map<uint64_t, WantWindows> want_windows_;
  // What a CANCEL of the peer may name: what comes from it, what it asked for.
  IdIndex<Operation> cancellable_;
  IdIndex<Unexpected> cancellable_messages_;
  uint32_t fencing_ = 0;  // operations in kFencing
  EndpointCounters counters_{};
  std::shared_ptr<PeerAccount> account_;
  ConnectionTicket ticket_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_SESSION_H_
