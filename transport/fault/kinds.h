// Faulty links of each kind: what it adds to a link of messages.
#ifndef SLUICE_FAULT_KINDS_H_
#define SLUICE_FAULT_KINDS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sluice/fault/link.h>
#include <sluice/spi/forwarding_link.h>

namespace sluice::fault {

// The part of sluice::Link that is the same for all kinds.
template <typename Kind>
class FaultyKind : public Forwarding<Kind>, public FaultyLink {
 public:
  FaultyKind(std::shared_ptr<Injector> injector, std::unique_ptr<Kind> inner, uint32_t connection)
      : Forwarding<Kind>(std::move(inner)), FaultyLink(std::move(injector), *inner_, connection) {}
  ~FaultyKind() override { close_path(); }

  bool send(ConstBytes header, std::span<const ConstBytes> payload) override {
    return send_message(header, payload);
  }
  void flush() override { flush_messages(); }
  bool has_unsent() const override { return has_rest() || inner_->has_unsent(); }
  void close() override { close_path(); }

 protected:
  using Forwarding<Kind>::inner_;
};

class FaultyViewLink final : public FaultyKind<ViewLink>, private ViewClient {
 public:
  using FaultyKind::FaultyKind;
  void set_client(LinkClient* session, ViewClient* transfer) override {
    set_session(session);
    transfer_ = transfer;
    inner_->set_client(this, this);
  }
  Result<bool> export_run(const std::byte* data, size_t length, wire::Segment& out) override;
  Result<ImportedRun> import_run(const wire::Segment& segment) override;

 private:
  bool copies_pending() const override { return transfer_->copies_pending(); }

  ViewClient* transfer_ = nullptr;
};

class FaultyStreamLink final : public FaultyKind<StreamLink>, private StreamClient {
 public:
  using FaultyKind::FaultyKind;
  void set_client(LinkClient* session, StreamClient* transfer) override {
    set_session(session);
    transfer_ = transfer;
    inner_->set_client(this, this);
  }
  bool push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override {
    return push_by(&StreamLink::push, header, payload, cookie);
  }
  bool lend(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override {
    return push_by(&StreamLink::lend, header, payload, cookie);
  }
  void settle(uint64_t cookie) override;

 private:
  using Push = bool (StreamLink::*)(ConstBytes, std::span<const ConstBytes>, uint64_t);
  struct Report {
    uint64_t cookie = 0, length = 0;
    uint32_t turns = 0;
  };
  // The second piece of a push(), which the inner link has no room for yet.
  struct Rest {
    std::vector<std::byte> header;
    std::vector<ConstBytes> payload;
    uint64_t cookie = 0;
    Push push = nullptr;
  };
  Placement place(uint64_t id, uint64_t offset, uint64_t length) override;
  Status placed(uint64_t id, uint64_t offset, uint64_t length, Instant now) override;
  void pushed(uint64_t cookie, uint64_t length, Instant now) override;
  bool push_by(Push push, ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie);
  bool push_in_two(Push push, ConstBytes header, std::span<const ConstBytes> payload,
                   uint64_t cookie);
  bool has_rest() const override { return !rest_.empty(); }
  bool push_rest() override;
  bool has_reports() const override { return !reports_.empty(); }
  size_t deliver_reports(Instant now, bool all) override;
  void drop_data() override {
    reports_.clear();
    rest_.clear();
  }

  StreamClient* transfer_ = nullptr;
  std::deque<Report> reports_;
  std::vector<Rest> rest_;  // one at most
  // Copies of a Rest after settle(), which the inner link may still read: kept for the life of the
  // link, which tests alone have.
  std::vector<std::vector<std::byte>> settled_;
};

// What devices do is passed on as it is; verbs has a fake provider for its faults.
class FaultyDeviceLink final : public FaultyKind<DeviceLink>, private DeviceClient {
 public:
  using FaultyKind::FaultyKind;
  void set_client(LinkClient* session, DeviceClient* transfer) override {
    set_session(session);
    transfer_ = transfer;
    inner_->set_client(this, this);
  }

 private:
  void transfer_done(uint64_t cookie, uint64_t length, const Status& status, Instant now) override {
    if (!over()) transfer_->transfer_done(cookie, length, status, now);
  }
  Status arrived(uint32_t notice, Instant now) override;
  void window_closed(uint64_t cookie, Instant now) override {
    if (!over()) transfer_->window_closed(cookie, now);
  }

  DeviceClient* transfer_ = nullptr;
};

}  // namespace sluice::fault

#endif  // SLUICE_FAULT_KINDS_H_
