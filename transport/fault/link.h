// A link that goes wrong as the plan says: calls refused, arrivals late, one call lost or
// broken. Between a session and any path; knows neither.
//
// Harmless faults stay within the contract of proto::Link: messages keep their order, DATA
// never overtakes a message, what was accepted goes out.
#ifndef SLUICE_FAULT_LINK_H_
#define SLUICE_FAULT_LINK_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/fault/injector.h>
#include <sluice/fault/plan.h>
#include <sluice/proto/link_decorator.h>

namespace sluice::fault {

class FaultyLink final : public proto::DecoratedLink {
 public:
  FaultyLink(std::shared_ptr<Injector> injector, std::unique_ptr<proto::Link> inner,
             uint32_t connection);
  ~FaultyLink() override { close(); }

  void set_client(proto::LinkClient* session) override { client_ = session; }
  // Once in each round of the context. Returns how much it did.
  size_t turn(Instant now);
  // Something is held back, so turn() must come.
  bool waiting() const;

  // Link.
  const proto::LinkTraits& traits() const override { return inner_->traits(); }
  uint64_t uncopied_in(uint64_t bytes) override { return inner_->uncopied_in(bytes); }
  bool send(proto::ConstBytes header, std::span<const proto::ConstBytes> payload) override;
  bool push(proto::ConstBytes header, std::span<const proto::ConstBytes> payload,
            uint64_t cookie) override;
  void settle(uint64_t cookie) override;
  void flush() override;
  bool rides_now() const override { return inner_->rides_now(); }
  bool has_unsent() const override { return !rest_.empty() || inner_->has_unsent(); }
  Result<bool> export_run(const std::byte* data, size_t length, wire::Segment& out) override;
  Result<proto::ImportedRun> import_run(const wire::Segment& segment) override;
  bool begin_copy(uint64_t withdrawals_seen) override {
    return inner_->begin_copy(withdrawals_seen);
  }
  void end_copy() override { inner_->end_copy(); }
  void count_withdrawals(uint64_t total) override { inner_->count_withdrawals(total); }
  bool peer_is_copying() override { return inner_->peer_is_copying(); }
  void quarantine(StorageRef loan) override { inner_->quarantine(std::move(loan)); }
  // What devices do is passed on as it is; verbs has a fake provider for its faults.
  Result<proto::WindowId> open_window(std::byte* data, uint64_t length, Right rights,
                                      uint64_t cookie, bool whole, wire::Segment& out) override {
    return inner_->open_window(data, length, rights, cookie, whole, out);
  }
  void close_window(proto::WindowId window) override { inner_->close_window(window); }
  Status revoke_window(proto::WindowId window) override { return inner_->revoke_window(window); }
  Result<bool> read(const wire::Segment& peer, std::span<const proto::MutableBytes> into,
                    uint64_t cookie) override {
    return inner_->read(peer, into, cookie);
  }
  Result<bool> write(std::span<const proto::ConstBytes> from, const wire::Segment& peer,
                     uint64_t cookie, const uint32_t* notice) override {
    return inner_->write(from, peer, cookie, notice);
  }
  Result<bool> atomic(const wire::Segment& peer, const proto::AtomicRequest& request,
                      std::byte* result, uint64_t cookie) override {
    return inner_->atomic(peer, request, result, cookie);
  }
  bool cancel_moves(uint64_t cookie) override { return inner_->cancel_moves(cookie); }
  bool stop() override { return inner_->stop(); }
  void close() override;
  std::string local_name() const override { return inner_->local_name(); }
  std::string peer_name() const override { return inner_->peer_name(); }

  // LinkClient.
  Status handle_message(proto::ConstBytes header, proto::PayloadReader& payload,
                        Instant now) override;
  Status handle_tagged_inline(const wire::TaggedInline& message, proto::PayloadReader& payload,
                              Instant now) override;
  proto::Placement place(uint64_t id, uint64_t offset, uint64_t length) override;
  Status placed(uint64_t id, uint64_t offset, uint64_t length, Instant now) override;
  void pushed(uint64_t cookie, uint64_t length, Instant now) override;
  void moved(uint64_t cookie, uint64_t length, const Status& status, Instant now) override {
    if (!over()) client_->moved(cookie, length, status, now);
  }
  Status arrived(uint32_t notice, Instant now) override;
  void window_closed(uint64_t cookie, Instant now) override {
    if (!over()) client_->window_closed(cookie, now);
  }
  void writable(Instant now) override;
  bool copies_pending() const override { return client_->copies_pending(); }
  void link_down(const Status& why, Instant now) override;

 private:
  struct Arrival {
    std::vector<std::byte> header, payload;
    uint32_t turns = 0;
  };
  struct Report {
    uint64_t cookie = 0, length = 0;
    uint32_t turns = 0;
  };
  // The second piece of a push(), which the inner link has no room for yet.
  struct Rest {
    std::vector<std::byte> header;
    std::vector<proto::ConstBytes> payload;
    uint64_t cookie = 0;
  };
  bool over() const { return closed_ || down_; }
  bool broken() const { return !breaking_.ok(); }
  Action strike(Call call) { return injector_->strike(call, connection_); }
  void break_path(Call call);
  bool no_room();
  bool push_in_two(proto::ConstBytes header, std::span<const proto::ConstBytes> payload,
                   uint64_t cookie);
  bool push_rest();
  void maybe_wake();
  void say_writable(Instant now);
  Arrival copy(proto::ConstBytes header, proto::PayloadReader& payload);
  Status hand_over(const Arrival& arrival, Instant now);
  size_t deliver_arrivals(Instant now, bool all);
  size_t deliver_reports(Instant now, bool all);
  void end(const Status& why, Instant now);

  std::shared_ptr<Injector> injector_;
  std::unique_ptr<proto::Link> inner_;
  proto::LinkClient* client_ = nullptr;
  uint32_t connection_;

  std::deque<Arrival> arrivals_;
  std::deque<Report> reports_;
  std::vector<Arrival> overtaken_;  // one at most, behind the next arrival
  std::vector<Rest> rest_;          // one at most
  // Copies of a Rest after settle(), which the inner link may still read: kept for the life of the
  // link, which tests alone have.
  std::vector<std::vector<std::byte>> settled_;
  Instant now_{};             // of the last call with a time
  uint32_t writable_in_ = 0;  // turns until writable(); 0: none is due
  bool refusing_ = false;     // we said "no room": writable() must follow
  Status breaking_;           // told at the next turn
  bool down_ = false;         // link_down() was called
  bool closed_ = false;
};

}  // namespace sluice::fault

#endif  // SLUICE_FAULT_LINK_H_
