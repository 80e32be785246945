// A session's path over one SLP connection, of this process or of the kernel's module. Does not
// know what the messages mean.
#ifndef SLUICE_PROTO_DIRECT_LINK_H_
#define SLUICE_PROTO_DIRECT_LINK_H_

#include <memory>
#include <string>

#include <sluice/proto/direct_connection.h>
#include <sluice/proto/idle_talk.h>
#include <sluice/spi/link.h>

namespace sluice::proto {

// Takes connections that the program has left, which may be in the middle of a call.
class Lingering {
 public:
  // Has it leave(), and lets its last messages go out.
  virtual void linger(std::unique_ptr<DirectConnection> connection) noexcept = 0;

 protected:
  ~Lingering() = default;
};

class DirectLink final : public DeviceLink, private DirectClient {
 public:
  // Requires: a connection that has greeted.
  DirectLink(Lingering& lingering, std::unique_ptr<DirectConnection> connection,
             const LinkTraits& traits);
  ~DirectLink() override { close(); }
  void set_client(LinkClient* session, DeviceClient* transfer) override;
  bool closed() const { return connection_ == nullptr; }
  // Hands on what has come; returns how much.
  size_t poll(Instant now);
  // There is something for poll().
  bool has_news() const {
    return !closed() && !down_ && (connection_->has_news() || connection_->failed());
  }

  // Link.
  const LinkTraits& traits() const override { return traits_; }
  Path bulk_path() const override {
    return closed() ? traits_.properties.path : connection_->bulk_path();
  }
  uint64_t uncopied_in(uint64_t bytes) override {
    return closed() ? 0 : connection_->uncopied_in(bytes);
  }
  uint64_t uncopied_out(uint64_t bytes) override {
    return closed() ? 0 : connection_->uncopied_out(bytes);
  }
  bool send(ConstBytes header, std::span<const ConstBytes> payload) override;
  void flush() override {}
  void quarantine(StorageRef) override {}  // after stop() nobody reaches anything
  Result<WindowId> open_window(std::byte* data, uint64_t length, Right rights, uint64_t cookie,
                               bool whole, wire::Segment& out) override;
  void close_window(WindowId window) override;
  Status revoke_window(WindowId window) override;
  Result<bool> read(const wire::Segment& peer, std::span<const MutableBytes> into,
                    uint64_t cookie) override;
  Result<bool> write(std::span<const ConstBytes> from, const wire::Segment& peer, uint64_t cookie,
                     const uint32_t* notice) override;
  bool cancel_moves(uint64_t cookie) override;
  bool stop() override;
  void close() override;
  std::string local_name() const override { return local_name_; }
  std::string peer_name() const override { return peer_name_; }

 private:
  void on_message(ConstBytes message, Instant now) override;
  bool takes_messages(Instant now) override;
  void on_notice(uint32_t notice, Instant now) override;
  void on_moved(uint64_t cookie, uint64_t length, Instant now) override;
  void on_refused(uint64_t cookie, uint64_t length, const Status& why, Instant now) override;
  void on_window_closed(uint64_t cookie, Instant now) override;
  void go_down(Instant now);

  Lingering& lingering_;
  std::unique_ptr<DirectConnection> connection_;
  LinkTraits traits_;
  LinkClient* client_ = nullptr;
  DeviceClient* transfer_ = nullptr;
  bool down_ = false;  // stopped by the session, or link_down() was said
  IdleTalk idle_talk_;
  std::string local_name_, peer_name_;
};

}  // namespace sluice::proto

#endif  // SLUICE_PROTO_DIRECT_LINK_H_
