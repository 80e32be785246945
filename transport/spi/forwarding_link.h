// Links that pass everything on to another of their kind. What comes between a session and its
// path (link_decorator.h) overrides the part that it is about.
#ifndef SLUICE_SPI_FORWARDING_LINK_H_
#define SLUICE_SPI_FORWARDING_LINK_H_

#include <memory>
#include <string>
#include <utility>

#include <sluice/spi/link.h>

namespace sluice {

// The part of Link, which is the same for all kinds.
template <typename Kind>
class ForwardingBase : public Kind {
 public:
  explicit ForwardingBase(std::unique_ptr<Kind> inner) : inner_(std::move(inner)) {}

  const LinkTraits& traits() const override { return inner_->traits(); }
  bool send(ConstBytes header, std::span<const ConstBytes> payload) override {
    return inner_->send(header, payload);
  }
  void flush() override { inner_->flush(); }
  bool prefer_eager() const override { return inner_->prefer_eager(); }
  uint32_t streams() const override { return inner_->streams(); }
  bool has_unsent() const override { return inner_->has_unsent(); }
  void quarantine(StorageRef loan) override { inner_->quarantine(std::move(loan)); }
  void close() override { inner_->close(); }
  std::string local_name() const override { return inner_->local_name(); }
  std::string peer_name() const override { return inner_->peer_name(); }

 protected:
  const std::unique_ptr<Kind> inner_;
};

template <typename Kind>
class Forwarding;

template <>
class Forwarding<ViewLink> : public ForwardingBase<ViewLink> {
 public:
  using ForwardingBase::ForwardingBase;
  Result<bool> export_run(const std::byte* data, size_t length, wire::Segment& out) override {
    return inner_->export_run(data, length, out);
  }
  Result<ImportedRun> import_run(const wire::Segment& segment) override {
    return inner_->import_run(segment);
  }
  bool begin_copy(uint64_t withdrawals_seen) override {
    return inner_->begin_copy(withdrawals_seen);
  }
  void end_copy() override { inner_->end_copy(); }
  void count_withdrawals(uint64_t total) override { inner_->count_withdrawals(total); }
  bool peer_is_copying() override { return inner_->peer_is_copying(); }
};

template <>
class Forwarding<StreamLink> : public ForwardingBase<StreamLink> {
 public:
  using ForwardingBase::ForwardingBase;
  bool push(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override {
    return inner_->push(header, payload, cookie);
  }
  bool lend(ConstBytes header, std::span<const ConstBytes> payload, uint64_t cookie) override {
    return inner_->lend(header, payload, cookie);
  }
  uint64_t uncopied_out(uint64_t bytes) override { return inner_->uncopied_out(bytes); }
  void settle(uint64_t cookie) override { inner_->settle(cookie); }
  bool may_reorder() const override { return inner_->may_reorder(); }
};

template <>
class Forwarding<DeviceLink> : public ForwardingBase<DeviceLink> {
 public:
  using ForwardingBase::ForwardingBase;
  bool reaches(DeviceStorage& memory) override { return inner_->reaches(memory); }
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
  Result<bool> write(std::span<const ConstBytes> from, const wire::Segment& peer, uint64_t cookie,
                     const uint32_t* notice) override {
    return inner_->write(from, peer, cookie, notice);
  }
  Result<bool> atomic(const wire::Segment& peer, const AtomicRequest& request, std::byte* result,
                      uint64_t cookie) override {
    return inner_->atomic(peer, request, result, cookie);
  }
  bool nothing_under_way() const override { return inner_->nothing_under_way(); }
  bool cancel_moves(uint64_t cookie) override { return inner_->cancel_moves(cookie); }
  bool stop() override { return inner_->stop(); }
};

}  // namespace sluice

#endif  // SLUICE_SPI_FORWARDING_LINK_H_
