// One connection's protocol, put together from its parts. Implements EndpointCore over any Link:
// passes each post, each message and each turn to the part that it is for. No I/O, no clock, no
// threads.
#ifndef SLUICE_PROTO_SESSION_H_
#define SLUICE_PROTO_SESSION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <sluice/allocator/arena.h>
#include <sluice/api/endpoint.h>
#include <sluice/base/process_mark.h>
#include <sluice/proto/bounce.h>
#include <sluice/proto/connection.h>
#include <sluice/proto/connection_ticket.h>
#include <sluice/proto/control_queue.h>
#include <sluice/proto/credits.h>
#include <sluice/proto/farewell.h>
#include <sluice/proto/granted_access.h>
#include <sluice/proto/incoming.h>
#include <sluice/proto/liveness.h>
#include <sluice/proto/matching.h>
#include <sluice/proto/operation_ends.h>
#include <sluice/proto/operations.h>
#include <sluice/proto/peer_view.h>
#include <sluice/proto/requests.h>
#include <sluice/proto/send_queue.h>
#include <sluice/proto/session_options.h>
#include <sluice/proto/transfer.h>
#include <sluice/proto/want_table.h>
#include <sluice/runtime/identity.h>
#include <sluice/runtime/mailbox.h>
#include <sluice/runtime/peer_account.h>
#include <sluice/runtime/population.h>
#include <sluice/spi/endpoint_core.h>
#include <sluice/spi/link.h>

namespace sluice::proto {

// What a session is made of.
struct SessionParts {
  AnyLink link;
  std::shared_ptr<Arena> arena;
  Population* population = nullptr;  // of the arena's context; outlives the session's last call
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

class Session final : public EndpointCore, public LinkClient, private ConnectionEnd {
 public:
  explicit Session(SessionParts parts);
  ~Session() override;

  // Delivers completions, copies, pushes, flushes; bounded. Returns how much it did.
  size_t progress(Instant now);
  // Whether progress() would do something now.
  bool has_work() const;
  // The host or the link is calling it at this moment.
  bool in_call() const { return connection_.depth > 0; }
  // Answers or messages wait until the path has room for them.
  bool has_unsent() const;
  // Ends what is past its deadline, pings. Spurious calls are harmless.
  void handle_timeout(Instant now);
  Instant next_timeout() const { return connection_.next_timeout; }
  Link& link() { return connection_.link; }
  // The host's marks: whether it already knows that there is work, when it calls handle_timeout(),
  // and where that stands among its timers.
  bool marked_active = false;
  Instant timer_due = kNever;
  size_t timer_place = 0;
  // Closed, but messages that had come whole can still be received: the host keeps it.
  bool has_leftovers() const { return matching_.has_unexpected(); }
  // Closes at once without delivering anything: the host is going away.
  void detach();
  // A listener's count of this connection ends when its link is closed.
  void hold(ConnectionTicket ticket) { ticket_ = std::move(ticket); }
  // Tells the peer that we do not take it. Closed when it has heard that, after a second at most.
  // Without patience at once: the words may get lost.
  void turn_away(const Status& why, bool patient);
  // Something arrived from the peer (also for backends that see bytes, not messages).
  void heard(Instant now) { connection_.last_heard = now; }

  // EndpointCore.
  Result<OperationId> post_send(Tag tag, std::span<const Tensor> segments,
                                const PostOptions& options) override {
    if (!Bounce::one_of_host(segments)) [[unlikely]]
      return bounce_.post_send(tag, segments, options);
    return sends_.post_send(tag, segments, options);
  }
  Result<OperationId> post_receive(TagMatch match, std::span<Buffer> segments,
                                   const PostOptions& options) override {
    if (!Bounce::one_of_host(std::span<const Buffer>(segments))) [[unlikely]]
      return bounce_.post_receive(match, segments, options);
    return matching_.post_receive(match, segments, options);
  }
  Result<OperationId> post_read(const RemoteKey& key, uint64_t offset, Buffer& into,
                                const PostOptions& options) override {
    if (into.in_device_memory()) [[unlikely]]
      return bounce_.post_read(key, offset, into, options);
    return requests_.post_read(key, offset, into, options);
  }
  Result<OperationId> post_write(const RemoteKey& key, uint64_t offset, Tensor& from,
                                 const PostOptions& options) override {
    if (from.in_device_memory()) [[unlikely]]
      return bounce_.post_write(key, offset, from, options);
    return requests_.post_write(key, offset, from, options);
  }
  Result<OperationId> post_atomic(const RemoteKey& key, uint64_t offset, const Atomic& request,
                                  Buffer& result, const PostOptions& options) override {
    if (result.in_device_memory()) [[unlikely]]
      return bounce_.post_atomic(key, offset, request, result, options);
    return requests_.post_atomic(key, offset, request, result, options);
  }
  Result<OperationId> post_want(WantOptions& want, const PostOptions& options) override {
    if (want.destination.in_device_memory()) [[unlikely]]
      return bounce_.post_want(want, options);
    return requests_.post_want(want, options);
  }
  Result<size_t> post_wants(const WantOptions& want, std::span<const PostOptions> options,
                            std::span<OperationId> ids) override {
    return requests_.post_wants(want, options, ids);
  }
  Result<OperationId> post_supply(uint64_t token, const Tensor& tensor,
                                  const PostOptions& options) override {
    if (tensor.in_device_memory()) [[unlikely]]
      return bounce_.post_supply(token, tensor, options);
    return wants_.post_supply(token, tensor, options);
  }
  bool reaches(const Tensor& tensor) override { return !bounce_.needed(tensor); }
  Status refuse_want(uint64_t token, Code code) override { return wants_.refuse(token, code); }
  Status cancel(OperationId id) override;
  Result<RemoteKey> grant(const Buffer& memory, const GrantOptions& options) override {
    return granted_.grant(memory, options);
  }
  Result<RemoteKey> grant(const Tensor& memory, const GrantOptions& options) override {
    return granted_.grant(memory, options);
  }
  Status revoke(const RemoteKey& key) override { return granted_.revoke(key); }
  void set_want_handler(WantHandler* handler) override { wants_.set_handler(handler); }
  const WantHandler* want_handler() const override { return wants_.handler(); }
  void start_close() override;
  void abort(const Status& why) override;
  void drop_unexpected() override;
  EndpointState state() const override { return connection_.state; }
  EndpointInfo info() const override;
  EndpointCounters counters() const override;
  void set_default_timeout(Duration timeout) override {
    connection_.options.operation_timeout = timeout;
  }
  const std::shared_ptr<PeerAccount>& peer_account() const override { return connection_.account; }

  // LinkClient.
  Status handle_message(ConstBytes header, PayloadReader& payload, Instant now) override;
  Status handle_tagged_inline(const wire::TaggedInline& message, PayloadReader& payload,
                              Instant now) override;
  bool note_messages(uint32_t messages, Duration took, Instant now) override;
  bool overdrawn(Instant now) const override { return connection_.account->overdrawn(now); }
  void writable(Instant now) override;
  void link_down(const Status& why, Instant now) override;

 private:
  Status dispatch(ConstBytes header, PayloadReader& payload);
  Status on_offer(wire::Offer& offer, PayloadReader& payload);
  Status on_want(const wire::Want& want);
  void on_cancel(const wire::Cancel& cancel);

  void fail_connection(const Status& why) override;
  bool ready_to_finish() const;
  void finish_close();
  void drop_link();

  const AnyLink owned_link_;
  const wire::Hello ours_, peer_;
  const std::string reason_;
  const ProcessMark owner_ = ProcessMark::current();
  ConnectionTicket ticket_;
  bool link_dropped_ = false;
  bool unwanted_ = false;      // nobody receives what has come
  uint64_t changes_seen_ = 0;  // of the operations, by note_messages()

  // The parts, each after those that it calls; a transfer is told of incoming_ before that exists.
  Connection connection_;
  Credits credits_;
  ControlQueue control_;
  Operations operations_;
  ViewPool* const views_;
  const std::unique_ptr<Transfer> transfer_;
  Incoming incoming_;
  SendQueue sends_;
  Matching matching_;
  Requests requests_;
  GrantedAccess granted_;
  WantTable wants_;
  Bounce bounce_;
  OperationEnds ends_;
  Farewell farewell_;
  Liveness liveness_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_SESSION_H_
