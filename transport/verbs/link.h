// A session's path over one RDMA connection. Knows nothing of what the messages mean.
#ifndef SLUICE_VERBS_LINK_H_
#define SLUICE_VERBS_LINK_H_

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include <sluice/spi/link.h>
#include <sluice/verbs/connection.h>
#include <sluice/verbs/lanes.h>

namespace sluice::verbs {

// A connection on which nothing comes asks the peer's device so often whether it is there.
// With the device's repeats (0.27 s each, seven of them) an unplugged peer is found in about 3 s,
// as tcp's keepalives find it.
inline constexpr Duration kProbeAfter = std::chrono::seconds(1);

LinkTraits verbs_traits(const DeviceLimits& limits, uint64_t chunk_bytes);

// Connections whose last messages are still going out.
class Lingering {
 public:
  virtual void linger(std::unique_ptr<Connection> connection) = 0;

 protected:
  ~Lingering() = default;
};

class VerbsLink final : public DeviceLink, private proto::DirectClient {
 public:
  // Requires: a connection in State::kReady.
  VerbsLink(Lingering& lingering, std::unique_ptr<Connection> connection);
  ~VerbsLink() override { close(); }
  void set_client(LinkClient* session, DeviceClient* transfer) override {
    client_ = session;
    transfer_ = transfer;
  }
  bool closed() const { return connection_ == nullptr; }
  // Handles what has come, up to a bound; returns how much.
  size_t poll(Instant now) { return idle(now) ? 0 : handle(now); }
  // About to sleep. False: there is work.
  bool arm() {
    return closed() || down_ ||
           (!connection_->queue().failed() && !connection_->peer_gone() &&
            connection_->queue().arm() && lanes_.arm());
  }
  // For how long it has been found here that its port is down; nothing: it is up. Requires: not
  // closed.
  std::optional<Duration> port_down_for(Instant now) {
    const bool up = connection_->queue().port_active();
    port_down_since_ = up ? kNever : std::min(port_down_since_, now);
    return up ? std::nullopt : std::optional(now - port_down_since_);
  }
  // The device says that something failed; what is not this connection's is left alone.
  void device_failed(const DeviceEvent& event, const Status& why);
  void unplugged(const Status& why);

  // DeviceLink.
  bool reaches(DeviceStorage& memory) override {
    return !closed() && connection_->queue().device().registrar().reaches(memory);
  }

  // Link.
  const LinkTraits& traits() const override { return traits_; }
  bool send(ConstBytes header, std::span<const ConstBytes> payload) override;
  void flush() override;
  void quarantine(StorageRef memory) override;
  Result<WindowId> open_window(std::byte* data, uint64_t length, Right rights, uint64_t cookie,
                               bool whole, wire::Segment& out) override;
  void close_window(WindowId window) override;
  Status revoke_window(WindowId window) override;
  Result<bool> read(const wire::Segment& peer, std::span<const MutableBytes> into,
                    uint64_t cookie) override;
  Result<bool> write(std::span<const ConstBytes> from, const wire::Segment& peer, uint64_t cookie,
                     const uint32_t* notice) override;
  Result<bool> atomic(const wire::Segment& peer, const AtomicRequest& request, std::byte* result,
                      uint64_t cookie) override;
  bool nothing_under_way() const override {
    // A queue that has failed is empty, too.
    return !closed() && !down_ && connection_->queue().works() && connection_->queue().drained() &&
           lanes_.all_retired();
  }
  bool read_at_once(const wire::Segment& peer, std::byte* into, uint64_t cookie) override {
    return !closed() && !lanes_.striped() &&
           connection_->queue().move_at_once(IBV_WR_RDMA_READ, into, peer, cookie);
  }
  bool write_at_once(const std::byte* from, const wire::Segment& peer, uint64_t cookie) override {
    return !closed() && !lanes_.striped() &&
           connection_->queue().move_at_once(IBV_WR_RDMA_WRITE, from, peer, cookie);
  }
  bool stop() override;
  void close() override;
  std::string local_name() const override { return local_name_; }
  std::string peer_name() const override { return peer_name_; }

 private:
  void on_message(ConstBytes message, Instant now) override;
  void on_notice(uint32_t notice, Instant now) override;
  void on_moved(uint64_t cookie, uint64_t length, Instant now) override;
  void on_window_closed(uint64_t cookie, Instant now) override;
  bool idle(Instant now) {
    if (closed() || down_) return true;
    QueuePair& queue = connection_->queue();
    return !blocked_ && now - quiet_since_ < kProbeAfter && !connection_->peer_gone() &&
           !queue.stopped() && !queue.failed() && !queue.look() && !lanes_.look();
  }
  size_t handle(Instant now);
  void ask_device(QueuePair& queue);
  void go_down(Instant now);

  Lingering& lingering_;
  std::unique_ptr<Connection> connection_;
  Lanes lanes_;  // of the connection: nothing of them is used after it
  LinkTraits traits_;
  LinkClient* client_ = nullptr;
  DeviceClient* transfer_ = nullptr;
  Instant quiet_since_;      // nothing has come since, or the peer's device was asked then
  uint32_t unanswered_ = 0;  // probes since then
  Instant port_down_since_ = kNever;
  bool blocked_ = false;
  bool down_ = false;
  uint32_t polling_ = 0;    // calls of handle() that are running
  bool close_due_ = false;  // close() came from inside poll()
  std::string local_name_, peer_name_;
};

}  // namespace sluice::verbs

#endif  // SLUICE_VERBS_LINK_H_
