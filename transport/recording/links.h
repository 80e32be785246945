// Links that tell a recorder what passes through them. They change nothing.
#ifndef SLUICE_RECORDING_LINKS_H_
#define SLUICE_RECORDING_LINKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <sluice/recording/recorder.h>
#include <sluice/spi/link.h>

namespace sluice::recording {

// The part that is the same for all kinds.
template <typename Kind>
class RecordedKind : public Kind, public LinkClient {
 public:
  RecordedKind(std::shared_ptr<Recorder> recorder, std::unique_ptr<Kind> inner, uint32_t connection)
      : recorder_(std::move(recorder)), inner_(std::move(inner)), connection_(connection) {}

  const LinkTraits& traits() const override { return inner_->traits(); }
  bool send(ConstBytes header, std::span<const ConstBytes> payload) override {
    recorder_->note_call();
    const bool sent = inner_->send(header, payload);
    recorder_->note_move();
    if (sent) note_offer(EventKind::kSent, header);
    return sent;
  }
  void flush() override {
    recorder_->note_poll();
    inner_->flush();
    recorder_->note_move();
  }
  bool prefer_eager() const override { return inner_->prefer_eager(); }
  bool has_unsent() const override { return inner_->has_unsent(); }
  void quarantine(StorageRef loan) override { inner_->quarantine(std::move(loan)); }
  void close() override {
    recorder_->flush();
    inner_->close();
  }
  std::string local_name() const override { return inner_->local_name(); }
  std::string peer_name() const override { return inner_->peer_name(); }

  // LinkClient.
  Status handle_message(ConstBytes header, PayloadReader& payload, Instant now) override {
    recorder_->note_poll();
    note_offer(EventKind::kReceived, header);
    return session_->handle_message(header, payload, now);
  }
  Status handle_tagged_inline(const wire::TaggedInline& message, PayloadReader& payload,
                              Instant now) override {
    recorder_->note_poll();
    recorder_->note_message(EventKind::kReceived, connection_, message.payload_bytes);
    return session_->handle_tagged_inline(message, payload, now);
  }
  bool note_messages(uint32_t messages, Duration took, Instant now) override {
    return session_->note_messages(messages, took, now);
  }
  bool overdrawn(Instant now) const override { return session_->overdrawn(now); }
  void writable(Instant now) override { session_->writable(now); }
  void link_down(const Status& why, Instant now) override { session_->link_down(why, now); }

 protected:
  // Messages with payload begin with an OFFER, but for what devices write by themselves.
  void note_offer(EventKind kind, ConstBytes header) {
    if (header.empty() || header[0] != static_cast<std::byte>(wire::MessageType::kOffer)) return;
    if (!wire::decode(header, offer_).ok()) return;
    const bool view = std::is_same_v<Kind, ViewLink> && offer_.segment_count > 0 &&
                      offer_.about.kind() == wire::OfferKind::kSupply;
    recorder_->note_message(kind, connection_, offer_.total, view);
  }

  std::shared_ptr<Recorder> recorder_;
  std::unique_ptr<Kind> inner_;
  const uint32_t connection_;
  LinkClient* session_ = nullptr;
  wire::Offer offer_;  // large
};

class RecordedViewLink final : public RecordedKind<ViewLink> {
 public:
  using RecordedKind::RecordedKind;
  void set_client(LinkClient* session, ViewClient* transfer) override {
    session_ = session;
    inner_->set_client(this, transfer);
  }
  Result<bool> export_run(const std::byte* data, size_t length, wire::Segment& out) override {
    return inner_->export_run(data, length, out);
  }
  Result<ImportedRun> import_run(const wire::Segment& segment) override {
    return inner_->import_run(segment);
  }
  bool begin_copy(uint64_t withdrawals_seen) override {
    recorder_->note_poll();
    return inner_->begin_copy(withdrawals_seen);
  }
  void end_copy() override {
    inner_->end_copy();
    recorder_->note_move();
  }
  void count_withdrawals(uint64_t total) override { inner_->count_withdrawals(total); }
  bool peer_is_copying() override { return inner_->peer_is_copying(); }
};

class RecordedStreamLink final : public RecordedKind<StreamLink>, private StreamClient {
 public:
  using RecordedKind::RecordedKind;
  void set_client(LinkClient* session, StreamClient* transfer) override {
    session_ = session;
    transfer_ = transfer;
    inner_->set_client(this, this);
  }
  bool push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override {
    recorder_->note_call();
    const bool pushed = inner_->push(header, payload, cookie);
    recorder_->note_move();
    return pushed;
  }
  void settle(uint64_t cookie) override { inner_->settle(cookie); }

 private:
  Placement place(uint64_t id, uint64_t offset, uint64_t length) override {
    recorder_->note_poll();
    return transfer_->place(id, offset, length);
  }
  Status placed(uint64_t id, uint64_t offset, uint64_t length, Instant now) override {
    recorder_->note_moved(length);
    return transfer_->placed(id, offset, length, now);
  }
  void pushed(uint64_t cookie, uint64_t length, Instant now) override {
    recorder_->note_moved(length);
    transfer_->pushed(cookie, length, now);
  }

  StreamClient* transfer_ = nullptr;
};

class RecordedDeviceLink final : public RecordedKind<DeviceLink>, private DeviceClient {
 public:
  using RecordedKind::RecordedKind;
  void set_client(LinkClient* session, DeviceClient* transfer) override {
    session_ = session;
    transfer_ = transfer;
    inner_->set_client(this, this);
  }
  Path bulk_path() const override { return inner_->bulk_path(); }
  uint64_t uncopied_in(uint64_t bytes) override { return inner_->uncopied_in(bytes); }
  uint64_t uncopied_out(uint64_t bytes) override { return inner_->uncopied_out(bytes); }
  Result<WindowId> open_window(std::byte* data, uint64_t length, Right rights, uint64_t cookie,
                               bool whole, wire::Segment& out) override {
    return inner_->open_window(data, length, rights, cookie, whole, out);
  }
  void close_window(WindowId window) override { inner_->close_window(window); }
  Status revoke_window(WindowId window) override { return inner_->revoke_window(window); }
  Result<bool> read(const wire::Segment& peer, std::span<const MutableBytes> into,
                    uint64_t cookie) override {
    return inner_->read(peer, into, cookie);
  }
  // What is written for a WANT has no offer. Its last piece has the notice.
  Result<bool> write(std::span<const ConstBytes> from, const wire::Segment& peer, uint64_t cookie,
                     const uint32_t* notice) override {
    recorder_->note_call();
    Result<bool> written = inner_->write(from, peer, cookie, notice);
    recorder_->note_move();
    if (!written.ok() || !*written) return written;
    written_[cookie] += peer.length;
    if (notice != nullptr) {
      recorder_->note_message(EventKind::kSent, connection_, written_[cookie]);
      written_.erase(cookie);
    }
    return written;
  }
  Result<bool> atomic(const wire::Segment& peer, const AtomicRequest& request, std::byte* result,
                      uint64_t cookie) override {
    return inner_->atomic(peer, request, result, cookie);
  }
  bool idle() const override { return inner_->idle(); }
  bool cancel_moves(uint64_t cookie) override {
    written_.erase(cookie);
    return inner_->cancel_moves(cookie);
  }
  bool stop() override { return inner_->stop(); }

 private:
  void transfer_done(uint64_t cookie, uint64_t length, const Status& status, Instant now) override {
    recorder_->note_poll();
    if (!status.ok()) written_.erase(cookie);
    transfer_->transfer_done(cookie, length, status, now);
  }
  // How much it was the sender knows.
  Status arrived(uint32_t notice, Instant now) override {
    recorder_->note_poll();
    recorder_->note_message(EventKind::kReceived, connection_, 0);
    return transfer_->arrived(notice, now);
  }
  void window_closed(uint64_t cookie, Instant now) override {
    transfer_->window_closed(cookie, now);
  }

  DeviceClient* transfer_ = nullptr;
  std::map<uint64_t, uint64_t> written_;  // by operation, of those under way
};

}  // namespace sluice::recording

#endif  // SLUICE_RECORDING_LINKS_H_
