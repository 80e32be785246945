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
#include <sluice/proto/transfer.h>
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
  // the peer makes progress. Each session takes something between half of it and all.
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
  AnyLink link;
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

class Session final : public EndpointCore,
                      public LinkClient,
                      private TransferHost,
                      private ViewOwner {
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
  // The host's marks: whether it already knows that there is work, when it calls handle_timeout(),
  // and where that stands among its timers.
  bool marked_active = false;
  Instant timer_due = kNever;
  size_t timer_place = 0;
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
  void writable(Instant now) override;
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
  void arm_timeout(Instant when) override;
  void complete(Operation* op, Status status) override;        // delivers now: from progress only
  void complete_later(Operation* op, Status status) override;  // from a post
  void release_operation(Operation* op) override;
  void end_early(Operation* op, const Status& why);
  void fail_all(const Status& why);
  void fail_connection(const Status& why) override;
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
  bool eager_by_hint(uint64_t total) const;
  bool try_send_at_once(Tag tag, const Tensor& segment, OperationId& id);
  void start_or_queue(Operation* op) override;
  Started start(Operation* op);
  Started start_send(Operation* op);
  Started start_write(Operation* op);
  Started start_supply(Operation* op);
  Started send_offer(Operation* op, wire::Offer& offer);
  void run_queue();
  template <typename Message>
  void send_control(const Message& message);
  bool flush_backlog();
  void queue_bytes(ConstBytes header);
  void send_releases();
  void send_done(uint64_t id, Code code, uint64_t bytes) override;

  // session_receive.cc: what arrives. session_access.cc: grants, their use, answers.
  Status on_offer(wire::Offer& offer, PayloadReader& payload, Instant now);
  Status on_tagged_inline(const wire::TaggedInline& message, PayloadReader& payload);
  Status on_tagged(wire::Offer& offer, PayloadReader& payload);
  Status on_supply(wire::Offer& offer, PayloadReader& payload, Instant now);
  Status on_remote_write(wire::Offer& offer, PayloadReader& payload);
  Status on_want(const wire::Want& want);
  Status on_remote_read(const wire::Want& want);
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
  Status make_destination(Operation* op, const TensorDescriptor& layout);
  void refuse_offer(const wire::Offer& offer, Code code);
  void finish_incoming(Operation* op) override;
  void conclude(Operation* op, Status status) override;
  Result<Operation*> take_internal(OperationKind kind, const Grant& grant, uint64_t offset,
                                   uint64_t length);
  Operation* match_posted(Tag tag, uint64_t total);
  uint64_t capacity_of(const Operation* op) const;
  void withdraw(const Operation& op);
  void stop_read(Operation* op);
  void view_ended(uint64_t offer_id) noexcept override;
  void note_consumed(uint64_t messages, uint64_t bytes);

  // TransferHost, what is short.
  OperationTable& operations() override { return table_; }
  EndpointCounters& live_counters() override { return counters_; }
  Grants& grants() override { return grants_; }
  Arena& arena() override { return *arena_; }
  Instant now() const override { return host_->now(); }
  Instant exact_now() const override { return host_->exact_now(); }
  void activate() noexcept override { host_->activate(*this); }
  void begin_link_call() override { ++depth_; }
  void end_link_call() override { --depth_; }
  void peer_heard(Instant now) override { last_heard_ = now; }
  bool link_dead() const override { return link_dead_; }
  bool finished() const override { return finished_; }
  bool blocked() const override { return blocked_; }
  void set_blocked() override { blocked_ = true; }
  void flush_later() override { needs_flush_ = true; }
  void hold_offers() override { offers_held_ = true; }
  void release_offers() override {
    if (std::exchange(offers_held_, false)) host_->activate(*this);
  }
  Operation* find_by_peer_id(uint64_t peer_id, bool (*accept)(const Operation&)) override {
    return cancellable_.find(peer_id, accept);
  }
  StorageRef make_view(const ImportedRun& run, size_t length, uint64_t offer_id) override {
    return views_->make(run, length, offer_id);
  }
  void revoke_grant(uint64_t number) override { (void)revoke(RemoteKey{.grant = number}); }
  void recheck_end() override {
    if (ready_to_finish()) host_->activate(*this);
  }
  void send_want(const wire::Want& want) override { send_control(want); }
  void send_cancel(const wire::Cancel& cancel) override { send_control(cancel); }

  const AnyLink owned_link_;
  Link* const link_;  // that
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

  uint64_t at_once_ = 0;    // sends that needed no operation
  uint64_t withdrawn_ = 0;  // our offers, by CANCEL
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
  // The path can name no more memory to the peer: nothing is offered, but all else goes on, since
  // the peer's answers make room.
  bool offers_held_ = false;
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
  // What a CANCEL of the peer may name: what comes from it, what it asked for.
  IdIndex<Operation> cancellable_;
  IdIndex<Unexpected> cancellable_messages_;
  EndpointCounters counters_{};
  std::shared_ptr<PeerAccount> account_;
  ConnectionTicket ticket_;
  std::unique_ptr<Transfer> transfer_;  // last: it refers to what is above
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_SESSION_H_
