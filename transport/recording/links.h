// Links that tell a recorder what passes through them. They change nothing.
#ifndef SLUICE_RECORDING_LINKS_H_
#define SLUICE_RECORDING_LINKS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <sluice/recording/recorder.h>
#include <sluice/spi/forwarding_link.h>

namespace sluice::recording {

// The part that is the same for all kinds.
template <typename Kind>
class RecordedKind : public Forwarding<Kind>, public LinkClient {
 public:
  RecordedKind(std::shared_ptr<Recorder> recorder, std::unique_ptr<Kind> inner, uint32_t connection)
      : Forwarding<Kind>(std::move(inner)),
        recorder_(std::move(recorder)),
        connection_(connection) {}

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
  void close() override {
    recorder_->flush();
    inner_->close();
  }

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

  using Forwarding<Kind>::inner_;
  std::shared_ptr<Recorder> recorder_;
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
  bool begin_copy(uint64_t withdrawals_seen) override {
    recorder_->note_poll();
    return inner_->begin_copy(withdrawals_seen);
  }
  void end_copy() override {
    inner_->end_copy();
    recorder_->note_move();
  }
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
  bool lend(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override {
    recorder_->note_call();
    const bool lent = inner_->lend(header, payload, cookie);
    recorder_->note_move();
    return lent;
  }

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
  // What is written for a WANT has no offer. Its last piece has the notice.
  Result<bool> write(std::span<const ConstBytes> from, const wire::Segment& peer, uint64_t cookie,
                     const uint32_t* notice) override {
    recorder_->note_call();
    Result<bool> written = inner_->write(from, peer, cookie, notice);
    recorder_->note_move();
    if (!written.ok() || !*written) return written;
    Written& so_far = written_[cookie];
    so_far.bytes += peer.length;
    so_far.under_way += peer.length;
    if (notice != nullptr) {
      recorder_->note_message(EventKind::kSent, connection_, so_far.bytes);
      written_.erase(cookie);
    } else if (written_.size() >= most_written_) {
      forget_ended();
    }
    return written;
  }
  bool cancel_moves(uint64_t cookie) override {
    written_.erase(cookie);
    return inner_->cancel_moves(cookie);
  }

  // If so many operations are remembered, those are forgotten of which nothing is under way.
  static constexpr size_t kMostWritten = 256;
  size_t remembered() const { return written_.size(); }

 private:
  struct Written {
    uint64_t bytes = 0;
    uint64_t under_way = 0;
  };
  // A one-sided write has no notice, and nothing else says which piece is its last. If one with a
  // notice is among them, between two of its pieces, its message is recorded too short.
  void forget_ended() {
    std::erase_if(written_, [](const auto& each) { return each.second.under_way == 0; });
    most_written_ = std::max(kMostWritten, 2 * written_.size());
  }
  void transfer_done(uint64_t cookie, uint64_t length, const Status& status, Instant now) override {
    recorder_->note_poll();
    if (auto found = written_.find(cookie); found != written_.end()) {
      found->second.under_way -= std::min(length, found->second.under_way);
      if (!status.ok()) written_.erase(found);
    }
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
  std::map<uint64_t, Written> written_;  // by operation
  size_t most_written_ = kMostWritten;
};

}  // namespace sluice::recording

#endif  // SLUICE_RECORDING_LINKS_H_
